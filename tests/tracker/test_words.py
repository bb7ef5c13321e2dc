from __future__ import annotations

import pytest

from tracker.words import with_names

BETA, GAMMA = "528df49b" + "0" * 24, "c0ffee00" + "1" * 24
NAMES = {BETA: "beta", GAMMA: "gamma"}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("layers 6–11 on peer 528df49b: no path works", "layers 6–11 on node beta: no path works"),
        (f"the peer {GAMMA} is gone: it left", "the node gamma is gone: it left"),
        ("peer 528df49b, then peer c0ffee00", "node beta, then node gamma"),
        ("peer 0badf00d is nobody known", "peer 0badf00d is nobody known"),
        ("peer 528df49bc is no peer id, nor is 528df49b", "peer 528df49bc is no peer id, nor is 528df49b"),
    ],
)
def test_nodes_are_called_by_their_names(said: str, read: str) -> None:
    assert with_names(said, NAMES) == read


def test_of_two_that_begin_alike_neither_is_named() -> None:
    assert with_names("peer 528df49b", {BETA: "beta", "528df49b" + "2" * 24: "delta"}) == "peer 528df49b"
