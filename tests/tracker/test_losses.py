from __future__ import annotations

import pytest

from tracker.errors import ApiError, told
from tracker.losses import AGAIN

CAUSES = "tunnel: not_found: no node beta is connected here that you may ask; relay: not_found: no node beta is here"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            f"pipeline error: layers 15–29 on node beta: {CAUSES}; direct: no direct endpoint; no other node could "
            "take over: the session can't do without node beta: layers 15–29 have no node online (node c is paused).",
            "The chat lost layers 15–29: node beta isn't connected any more, and no other node online has them.",
        ),
        (
            "pipeline error: layer 5 on node b: relay: silent; no other node could take over: layers 3–5 have no node "
            "online",
            "The chat lost layer 5: node b doesn't answer, and no other node could take over: layers 3–5 have no node "
            "online.",
        ),
        (
            "pipeline error: layers 2–3 on peer ab12cd34: relay: refused; no other node could take over: no tracker",
            "The chat lost layers 2–3: a node can't be reached, and no other node could take over.",
        ),
        ("pipeline error: layers 2–3 on node b: broken", "The chat lost layers 2–3: node b failed."),
        (
            "the head of the route, layers 0–5 on node one, is lost: the peer has gone; no other node can go on: tiny "
            "can't answer now: layers 0–5 have no node online.",
            "The chat lost layers 0–5: node one isn't connected any more, and no other node online has them.",
        ),
        ("pipeline error: this node's own layers: torn", "A node on the chat's way failed."),
    ],
)
def test_a_user_is_told_in_one_sentence_which_layers_which_node_and_why(message: str, said: str) -> None:
    error = told(ApiError(502, message, code="node_failed"))
    assert (error.code, error.status, error.message) == ("node_failed", 502, f"{said} {AGAIN}")
    assert told(error) is error


def test_a_full_node_is_no_broken_one() -> None:
    error = told(ApiError(503, "pipeline error: layers 2–3 on node b: full", code="busy"))
    assert error.message == f"The chat lost layers 2–3: node b has no room for it now. {AGAIN}"


def test_other_words_stay_as_they_are() -> None:
    error = ApiError(502, "the head of the route is odd", code="node_failed")
    assert told(error) is error
