from __future__ import annotations

from typing import Any

import pytest

from tracker.dashboard.happenings import happenings

LOSS = {
    "kind": "hop",
    "node": "b",
    "layers": "layers 6–11",
    "code": "node_failed",
    "cause": "no path works",
    "reported_by": "a",
    "instead": ["c"],
    "after_s": 2.0,
    "position": 17,
    "answer_position": 8,
    "resume_ms": 812.4,
    "kept": "tokens",
    "replayed_tokens": 1,
    "replay_compute_ms": None,
}


def told(cancelled_by: str = "", **fields: Any) -> list[str]:
    story = {
        "state": "done",
        "hops": [{"node": "a"}, {"node": "b"}],
        "earlier_routes": [],
        "failovers": [],
        "ttft_ms": 500.0,
        "completion_tokens": 1,
        "finish_reason": "stop",
        "duration_s": 3.0,
        "error": None,
    } | fields
    return [f"{one.said} {one.more}".strip() for one in happenings(story, cancelled_by)]


def test_a_session_that_went_well_began_spoke_and_was_done() -> None:
    assert told() == ["It began, over a → b.", "The first text was there.", "It was done: 1 token, ended by stop."]


def test_it_began_over_its_first_route() -> None:
    earlier = [{"epoch": epoch, "hops": [{"node": node}]} for epoch, node in ((1, "y"), (0, "x"))]
    assert told(earlier_routes=earlier)[0] == "It began, over x."
    assert told(hops=[])[0] == "It began, over no node that is still known."


def test_a_loss_is_told_and_who_took_over() -> None:
    _, _, loss, rescue, _ = told(failovers=[LOSS])
    assert loss == "b, layers 6–11, was lost: node_failed: no path works. Said by a, at token 8 of the answer."
    assert rescue == (
        "c took over; the next token came 812 ms after the loss. "
        "Filled with 1 token again, from token ids, through the whole route."
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"resume_ms": None}, "c took over. Filled"),
        ({"instead": []}, "The session went on over the nodes that it had; the next token came"),
        ({"kind": "move", "code": "move", "cause": ""}, "b, layers 6–11, is being drained: the session leaves it."),
        (
            {"kind": "head", "reported_by": None},
            "b, layers 6–11 (the head), was lost: node_failed: no path works. Seen",
        ),
        ({"answer_position": None}, "Said by a, at token 17 of prompt and answer."),
        ({"answer_position": None, "position": None}, "Said by a."),
        ({"replayed_tokens": None}, "Filled again, from token ids"),
        ({"kept": None}, "the next token came 812 ms after the loss."),
        ({"replay_compute_ms": 31.6}, "through the whole route: 32 ms of computing."),
    ],
)
def test_a_loss_is_told_as_far_as_it_is_known(fields: dict[str, Any], words: str) -> None:
    assert words in " ".join(told(failovers=[LOSS | fields]))


def test_a_loss_that_nobody_has_mended_yet_stands_alone() -> None:
    story = told(failovers=[LOSS | {"resume_ms": None, "instead": []}], state="running")
    assert story[-1].startswith("b, layers 6–11, was lost")


def test_what_happens_is_told_in_the_order_of_time() -> None:
    _, loss, rescue, first_text, _ = told(failovers=[LOSS | {"after_s": 0.1, "resume_ms": 50.0}])
    assert ("was lost" in loss, "took over" in rescue, first_text) == (True, True, "The first text was there.")


ERROR = {"code": "node_failed", "message": "the head is lost"}


@pytest.mark.parametrize(
    ("state", "error", "cancelled_by", "words"),
    [
        ("failed", ERROR, "", "It failed: node_failed: the head is lost"),
        ("lost", None, "", "The process of the site that ran it gives no news any more: it is lost."),
        ("cancelled", None, "", "Its client left before the answer was whole."),
        ("cancelled", {"code": "", "message": "another choice failed"}, "", "another choice failed"),
        ("cancelled", {"code": "", "message": "An operator ended it."}, "ann", "ann ended it."),
        ("running", None, "ann", "ann has asked for its end, which comes within a few seconds."),
        ("running", None, "", "The first text was there."),
    ],
)
def test_its_end_is_told(state: str, error: Any, cancelled_by: str, words: str) -> None:
    assert told(cancelled_by, state=state, error=error)[-1] == words
