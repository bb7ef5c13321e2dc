"""What the engine worked, as answers on the wire: activations, token ids, or why not."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from nodes import activations
from nodes.drafts import MAX_DRAFTS
from nodes.engine import EngineError, GrammarFailed, NoGrammar, StepResult
from nodes.events import Answer
from nodes.sampling import Sampled, TokenLogprobs
from nodes.sessions import Busy, Missing, Stale
from relay import headers as names
from relay import wire
from relay.wire import Code

logger = logging.getLogger(__name__)

T = TypeVar("T")


def step_answer(result: StepResult, request_id: str, dtype: str, is_tail: bool) -> wire.Response:
    times = {names.QUEUE_MS: f"{result.queue_ms:.3f}", names.COMPUTE_MS: f"{result.compute_ms:.3f}"}
    if is_tail or result.hidden is None:
        content: dict[str, Any] = {"token_ids": list(result.token_ids)}
        if result.logprobs:
            content["logprobs"] = [[one.logprob, one.top] for one in result.logprobs]
        return json_answer(request_id, content, times | {names.DRAFTS: str(MAX_DRAFTS)})
    shape = activations.format_shape(result.hidden.shape)
    about = {"content-type": "application/octet-stream", names.SHAPE: shape, names.DTYPE: dtype}
    return wire.Response(request_id, 200, about | times, activations.encode(result.hidden, dtype))


def read_sampled(body: bytes) -> list[Sampled]:
    """What a tail answered. Raises ValueError where it isn't what `step_answer` writes."""
    try:
        content = json.loads(body)
        ids = content["token_ids"]
        if not all(_is_id(token_id) for token_id in ids):
            raise ValueError("an id isn't one")
        if "logprobs" not in content:
            return [Sampled(token_id) for token_id in ids]
        told = [_logprobs(one, top) for one, top in content["logprobs"]]
        return [Sampled(token_id, logprobs) for token_id, logprobs in zip(ids, told, strict=True)]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from None


def _logprobs(logprob: Any, top: Any) -> TokenLogprobs:
    pairs = tuple((token_id, value) for token_id, value in top)
    if not all(_is_id(token_id) for token_id, _ in pairs):
        raise ValueError("log probabilities of no token")
    if not all(type(value) is float and math.isfinite(value) for value in (logprob, *(value for _, value in pairs))):
        raise ValueError("log probabilities that aren't numbers")
    return TokenLogprobs(logprob, pairs)


def _is_id(value: Any) -> bool:
    return type(value) is int and value >= 0


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


def kept(work: Future[T]) -> Future[T]:
    """Its result, for somebody who may leave: the work goes on. A session is freed whether or not its head waits."""
    seen: Future[T] = Future()
    hand_on(work, seen)
    return seen


def hand_on(work: Future[T], seen: Future[T]) -> None:
    """What comes of the work, unless nobody waits for it by then."""

    def done(work: Future[T]) -> None:
        if work.cancelled():
            seen.cancel()
        if not seen.set_running_or_notify_cancel():
            return
        error = work.exception()
        if error:
            seen.set_exception(error)
        else:
            seen.set_result(work.result())

    work.add_done_callback(done)


def engine_error(request_id: str, error: BaseException) -> wire.Response:
    match error:
        case Stale():
            return wire.error_response(request_id, Code.STALE, str(error))
        case Missing():
            cached = {names.CACHED: str(error.cached_tokens)}
            return wire.error_response(request_id, Code.MISSING, str(error), cached)
        case Busy():
            return wire.error_response(request_id, Code.BUSY, str(error))
        case NoGrammar():
            return wire.error_response(request_id, Code.NO_GRAMMAR, str(error))
        case GrammarFailed():
            return wire.error_response(request_id, Code.BAD_GRAMMAR, str(error))
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
