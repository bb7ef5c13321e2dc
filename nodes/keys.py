"""The key by which a node shows who it is. The site may change it while it runs: whoever shows it asks here for it."""

from __future__ import annotations


class NodeKey:
    """Read by many threads; changed by the one that speaks with the tracker."""

    def __init__(self, text: str = "") -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:  # a key that lands in a log or a traceback must not be one
        return f"NodeKey({self._text.partition('.')[0]!r})"

    def change(self, text: str) -> None:
        self._text = text


Key = NodeKey | str  # text where it stays for good
