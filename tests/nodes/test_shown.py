"""What users are told of the errors that end a chat."""

from __future__ import annotations

import pytest

from nodes.completion import CompletionError
from nodes.deadline import DeadlineOver
from nodes.downstream import HopFailed, HopRefused
from nodes.engine import EngineError, GrammarFailed
from nodes.resume import ResumeMismatch
from nodes.sessions import Busy, Stale
from nodes.shown import shown
from relay.wire import Code

TAIL = "layers 4–5 on peer 0000002"


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (CompletionError(418, "tea", "no coffee"), 418, "tea", "no coffee"),
        (ResumeMismatch("another text"), 409, "resume_mismatch", "another text"),
        (DeadlineOver("too late"), 504, "deadline", "too late"),
        (HopRefused(TAIL, Code.BUSY, "full"), 503, "busy", f"pipeline error: {TAIL}: full"),
        (HopRefused(TAIL, Code.STALE, "old"), 409, "stale", f"pipeline error: {TAIL}: old"),
        (
            HopRefused(TAIL, Code.NO_GRAMMAR, "no tokenizer"),
            502,
            "node_failed",
            f"pipeline error: {TAIL}: no tokenizer",
        ),
        (HopRefused(TAIL, Code.BAD_GRAMMAR, "too complex"), 400, "bad_request", "too complex"),
        (GrammarFailed("too complex"), 400, "bad_request", "too complex"),
        (HopFailed("pipeline error: gone"), 502, "node_failed", "pipeline error: gone"),
        (HopFailed("pipeline error: full", code=Code.BUSY), 503, "busy", "pipeline error: full"),
        (Busy("full"), 503, "busy", "full"),
        (Stale("old"), 409, "stale", "the session goes on at another head"),
        (EngineError("broken"), 502, "node_failed", "pipeline error: this node's own layers: broken"),
        (ZeroDivisionError("secret"), 500, "internal", "the head failed; its log says why"),
    ],
)
def test_every_error_has_a_status_a_code_and_words(error: Exception, status: int, code: str, message: str) -> None:
    told = shown(error)
    assert (told.status, told.code, told.message) == (status, code, message)
