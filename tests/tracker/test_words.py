from __future__ import annotations

import pytest

from tracker.words import one_line, presentable, with_names

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


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("layers 3–5 failed: RuntimeError: boom", "layers 3–5 failed: boom"),
        ("failed: torch.OutOfMemoryError: no room", "failed: no room"),
        ("can't open /home/me/.cache/meshnet/a.py: no", "can't open …: no"),
        (r"can't open C:\Users\me\a.py", "can't open …"),
        (
            "HTTPConnectionPool(host='h'): gone (<http.Connection object at 0x7f00>: refused)",
            "… gone (… refused)",
        ),
    ],
)
def test_what_is_inside_a_node_is_nobodys_business(said: str, read: str) -> None:
    assert presentable(said) == read


@pytest.mark.parametrize(
    "said",
    ["layers 6–11 on node beta: no path works", "GET /v1/models lists them", "POST /forward", "org/name: 2/3 and/or"],
)
def test_words_for_people_stay_as_they_are(said: str) -> None:
    assert presentable(said) == said


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (" it is slow ", "it is slow"),
        ("Ada’s größter 木 👩‍🔬", "Ada’s größter 木 👩‍🔬"),
        ("a\r\nb\0c\td", "a b c d"),
        ("\x1b[31mred\x9b0m", "[31mred 0m"),
        ("a\u2028b\u202ec\u2066d\x7f", "a b c d"),
        ("\r\n", ""),
    ],
)
def test_words_from_outside_stand_in_one_line(said: str, kept: str) -> None:
    assert one_line(said) == kept
