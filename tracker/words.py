"""How layers and numbers are written for people; layers inclusive, while code, command line and wire are half-open."""

from __future__ import annotations


def layers_in_words(start_layer: int, end_layer: int) -> str:
    """ "layers 12–17" for [12, 18), "layer 5" for [5, 6)."""
    return f"layer {start_layer}" if end_layer == start_layer + 1 else f"layers {start_layer}–{end_layer - 1}"


def counted(number: int, thing: str) -> str:
    """ "1 session", "2 sessions"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
