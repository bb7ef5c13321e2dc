"""What the engine worked, as answers on the wire: activations, token ids, or why not."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from nodes import activations
from nodes.engine import EngineError, StepResult
from nodes.events import Answer
from nodes.sessions import Busy, Missing, Stale
from relay import headers as names
from relay import wire
from relay.wire import Code

logger = logging.getLogger(__name__)


def step_answer(result: StepResult, request_id: str, dtype: str, is_tail: bool) -> wire.Response:
    times = {names.QUEUE_MS: f"{result.queue_ms:.3f}", names.COMPUTE_MS: f"{result.compute_ms:.3f}"}
    if is_tail or result.hidden is None:
        return json_answer(request_id, {"token_ids": list(result.token_ids)}, times)
    shape = activations.format_shape(result.hidden.shape)
    about = {"content-type": "application/octet-stream", names.SHAPE: shape, names.DTYPE: dtype}
    return wire.Response(request_id, 200, about | times, activations.encode(result.hidden, dtype))


def answer_of(work: Future[Any], request: wire.Request, answer: Callable[[Any], wire.Response]) -> Future[Answer]:
    """The answer to a request that the engine works on; made on the engine's thread, in microseconds."""
    answered: Future[Answer] = Future()

    def unwanted(answered: Future[Answer]) -> None:
        if answered.cancelled():
            work.cancel()

    def done(work: Future[Any]) -> None:
        if not answered.set_running_or_notify_cancel():
            return
        try:
            answered.set_result(answer(work.result()))
        except (Stale, Missing, Busy, EngineError, CancelledError) as error:
            answered.set_result(engine_error(request.request_id, error))
        except Exception:
            logger.exception("a step failed")
            answered.set_result(wire.error_response(request.request_id, Code.INTERNAL, "the node failed"))

    answered.add_done_callback(unwanted)
    work.add_done_callback(done)
    return answered


def engine_error(request_id: str, error: BaseException) -> wire.Response:
    match error:
        case Stale():
            return wire.error_response(request_id, Code.STALE, str(error))
        case Missing():
            cached = {names.CACHED: str(error.cached_tokens)}
            return wire.error_response(request_id, Code.MISSING, str(error), cached)
        case Busy():
            return wire.error_response(request_id, Code.BUSY, str(error))
        case CancelledError():
            return wire.error_response(request_id, Code.DRAINING, "this node is shutting down")
    return wire.error_response(request_id, Code.INTERNAL, str(error))


def json_answer(request_id: str, content: dict[str, Any], headers: Mapping[str, str] | None = None) -> wire.Response:
    kind = {"content-type": "application/json"}
    return wire.Response(request_id, 200, kind | dict(headers or {}), json.dumps(content).encode())


def answer_now(response: wire.Response) -> Future[Answer]:
    answered: Future[Answer] = Future()
    answered.set_result(response)
    return answered
