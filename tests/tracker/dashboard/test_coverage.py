from __future__ import annotations

from typing import Any

from tracker.dashboard.coverage import Holder, gaps, parts, remedy


def holder(name: str, start_layer: int, end_layer: int, **fields: Any) -> Holder:
    told: dict[str, Any] = {"is_online": True, "closed": None, "why": "connected to the relay"} | fields
    return Holder(name, 1, start_layer, end_layer, **told)


def away(name: str, start_layer: int, end_layer: int) -> Holder:
    return holder(name, start_layer, end_layer, is_online=False, why="no heartbeat for 40 s")


def paused(name: str, start_layer: int, end_layer: int) -> Holder:
    return holder(name, start_layer, end_layer, closed="is paused by the operator")


def told(*holders: Holder, num_layers: int = 12) -> list[tuple[str, int, str]]:
    return [(part.words, part.times, part.kind) for part in parts(num_layers, holders)]


def test_neighbours_that_the_same_nodes_hold_are_one_part() -> None:
    assert told(holder("a", 0, 8), holder("b", 4, 12), holder("c", 4, 8)) == [
        ("layers 0–3", 1, "once"),
        ("layers 4–7", 3, "more"),
        ("layers 8–11", 1, "once"),
    ]
    assert told(holder("a", 0, 12), holder("b", 0, 12)) == [("layers 0–11", 2, "twice")]


def test_what_nobody_answers_for_is_a_gap_or_closed() -> None:
    assert told(holder("a", 0, 4), away("b", 4, 8), paused("c", 8, 11)) == [
        ("layers 0–3", 1, "once"),
        ("layers 4–7", 0, "gap"),
        ("layers 8–10", 0, "closed"),
        ("layer 11", 0, "gap"),
    ]
    assert told() == [("layers 0–11", 0, "gap")]


def test_a_shard_beyond_the_models_end_is_cut_there() -> None:
    assert told(holder("a", 4, 99), holder("b", 50, 60)) == [("layers 0–3", 0, "gap"), ("layers 4–11", 1, "once")]


def remedies(*holders: Holder, with_names: bool = True) -> list[str]:
    return [remedy(gap, with_names=with_names) for gap in gaps(parts(12, holders))]


def test_a_gap_says_who_would_close_it() -> None:
    [story] = remedies(holder("a", 0, 4), away("b", 4, 12))
    assert story == (
        "Layers 4–11 have no node online: b (no heartbeat for 40 s) held them. The gap closes when it is back. "
        "Another node with --layers 4:12 or --layers auto closes the gap, too."
    )


def test_a_gap_that_nobody_has_ever_held_asks_for_a_node() -> None:
    [story] = remedies(holder("a", 0, 11))
    assert story == "Layer 11 has no node. A node with --layers 11:12 or --layers auto closes the gap."


def test_layers_that_are_closed_say_whose_they_are_and_why() -> None:
    [story] = remedies(paused("a", 0, 12), away("b", 0, 12))
    assert story.startswith("Layers 0–11 have no node that takes sessions: a is paused by the operator. Another node")


def test_a_sentence_names_a_few_nodes_and_counts_the_rest() -> None:
    [story] = remedies(*(away(name, 0, 12) for name in "abcde"))
    assert "c (no heartbeat for 40 s) and 2 more held them. The gap closes when one of these is back" in story


def test_strangers_read_no_names() -> None:
    for holders in ([away("secret", 0, 12)], [paused("secret", 0, 12)], []):
        [story] = remedies(*holders, with_names=False)
        assert story.startswith("Layers 0–11 have no node")
        assert "secret" not in story
        assert "paused" not in story


def test_no_gap_no_words() -> None:
    assert remedies(holder("a", 0, 6), holder("b", 6, 12)) == []
