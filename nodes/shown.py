"""What the user of a chat is told when it fails: of every error that ends one, the status, the code and the words."""

from __future__ import annotations

import logging

from nodes.completion import CompletionError
from nodes.deadline import DeadlineOver
from nodes.downstream import NODE_FAILED, HopFailed, HopRefused
from nodes.engine import EngineError, GrammarFailed
from nodes.resume import ResumeMismatch
from nodes.sessions import Busy, Stale
from relay import wire

logger = logging.getLogger(__name__)

RESUME_MISMATCH = "resume_mismatch"


def shown(error: Exception) -> CompletionError:
    match error:
        case CompletionError():
            return error
        case ResumeMismatch():
            return CompletionError(409, RESUME_MISMATCH, str(error))
        case DeadlineOver():
            return CompletionError(504, wire.Code.DEADLINE, str(error))
        case HopRefused(code=wire.Code.STALE | wire.Code.BUSY as code) | HopFailed(code=wire.Code.BUSY as code):
            return CompletionError(wire.STATUS[wire.Code(code)], code, str(error))
        case Busy():
            return CompletionError(503, wire.Code.BUSY, str(error))
        case HopRefused(code=wire.Code.BAD_GRAMMAR):
            return CompletionError(400, wire.Code.BAD_REQUEST, error.message)
        case GrammarFailed():
            return CompletionError(400, wire.Code.BAD_REQUEST, str(error))
        case Stale():
            return CompletionError(409, wire.Code.STALE, "the session goes on at another head")
        case HopFailed() | HopRefused():
            return CompletionError(502, NODE_FAILED, str(error))
        case EngineError():
            return CompletionError(502, NODE_FAILED, f"pipeline error: this node's own layers: {error}")
    logger.error("a chat failed", exc_info=error)
    return CompletionError(500, wire.Code.INTERNAL, "the head failed; its log says why")
