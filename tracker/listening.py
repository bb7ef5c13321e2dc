"""One head of a chat as it is heard: its events, from its consent to its end, and what its failures mean. Async.

A failure is either the client's to mend, the deadline's or this site's, which shuts down, and ends the chat (ApiError);
or it is this head's, and another may go on (HeadFailed).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from enum import Enum

from relay import client, wire
from relay.wire import Code
from tracker import cancelling
from tracker.errors import CODES, ApiError
from tracker.events import BadStream, Done, Event, EventReader, Failure, Keepalive
from tracker.heads import HeadCall
from tracker.words import presentable

logger = logging.getLogger(__name__)

END_S = 2.0  # between the head's [DONE] and the end of its answer
LAST_WORDS_S = 1.0  # of the time that a process has left which was told to stop: for the client, and for the record

# What no other head would do better: the client's to mend or to repeat, or out of time.
_FINAL_CODES = frozenset({Code.BAD_REQUEST, Code.TOO_LARGE, Code.RATE_LIMITED, Code.DEADLINE}) | frozenset(
    {"context_length_exceeded", "chat_template_missing"}
)
FINAL_STATUSES = frozenset({400, 413, 422})
# Of the codes that users are told, those that a node says.
_SAID_BY_NODES = frozenset(
    {
        "invalid_value",
        "unsupported_parameter",
        "context_length_exceeded",
        "chat_template_missing",
        "too_large",
        "node_failed",
        "resume_mismatch",
        "no_route",
        "busy",
        "draining",
    }
)
_GONE_CODES = frozenset({Code.PEER_GONE, Code.NOT_FOUND, Code.BAD_ANSWER, Code.DRAINING})
# Of the statuses that a head may answer with, those that say to a client what they say here.
_FOR_THE_CLIENT = frozenset({400, 413, 422, 429, 500, 502, 503, 504})

_STATUS = {code.value: status for code, status in wire.STATUS.items()}


class Loss(Enum):
    GONE = "gone"  # its connection ended, or what came through it: it may be back at once
    SILENT = "silent"  # it says nothing, though its connection may be there
    REFUSES = "refuses"  # it works, but not on this


class HeadFailed(Exception):
    """This head can't go on, and another may. `error` is for the client, where none does."""

    def __init__(self, loss: Loss, error: ApiError) -> None:
        super().__init__(error.message)
        self.loss, self.error = loss, error

    @classmethod
    def cut_off(cls) -> HeadFailed:
        return cls(Loss.GONE, ApiError(502, "it ended its answer too early", code="bad_gateway"))

    @classmethod
    def breaks_rules(cls, what: str) -> HeadFailed:
        """It would again."""
        return cls(Loss.REFUSES, ApiError(502, f"the node at the head of the route {what}", code="bad_gateway"))

    @classmethod
    def refuses(cls, code: str, message: str) -> HeadFailed:
        return cls(Loss.REFUSES, ApiError(502, f"the node at the head of the route refused: {message}", code=code))


class Clock:
    """The chat's deadline, its head's silence, an operator's wish, the end of this process: whichever comes first."""

    def __init__(
        self,
        deadline_s: float,
        silence_s: float,
        stops_at: Callable[[], float] = client.stops_at,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ends, self._silence_s = asyncio.get_running_loop().time() + deadline_s, silence_s
        self._stops_at, self._is_cancelled = stops_at, is_cancelled

    @property
    def left_s(self) -> float:
        return self._ends - asyncio.get_running_loop().time()

    @property
    def is_stopping(self) -> bool:
        """This process was told to stop: a chat may end here, and no longer begin anew at another head."""
        return self._stops_at() < math.inf

    def check(self) -> None:
        """Raises ApiError 403 where an operator ends the chat."""
        if self._is_cancelled():
            raise cancelling.by_operator()

    async def next(self, head: AsyncIterator[wire.Answer]) -> wire.Answer | None:
        """The head's next item; None after the last. Raises ApiError 504 at the deadline, 503 at the end, 403 as
        `check`; HeadFailed.

        What begins during the wait, a stop or a cancel, is seen at the next item: heads say something each second."""
        self.check()
        now, stops_at = asyncio.get_running_loop().time(), self._stops_at() - LAST_WORDS_S
        if now >= stops_at:
            raise shutting_down()
        try:
            async with asyncio.timeout_at(min(self._ends, now + self._silence_s, stops_at)):
                return await anext(head, None)
        except TimeoutError:
            if asyncio.get_running_loop().time() >= stops_at:
                raise shutting_down() from None
            if self.left_s <= 0:
                raise ApiError(504, "the answer wasn't finished by the request's deadline", code="deadline") from None
            message = f"it said nothing for {self._silence_s:g} s"
            raise HeadFailed(Loss.SILENT, ApiError(504, message, code="head_silent")) from None


def shutting_down() -> ApiError:
    return ApiError(503, "the site is shutting down; ask again in a moment", code=Code.DRAINING)


async def listen(call: HeadCall, request: wire.Request, clock: Clock) -> AsyncGenerator[Event, None]:
    """Its events up to [DONE]; the first, a Keepalive, says that it has agreed. Closing this cancels the request.

    Raises ApiError, HeadFailed."""
    reader = EventReader()
    async with aclosing(call(request)) as head:
        opening = await clock.next(head)
        if not isinstance(opening, wire.Response) or not opening.stream or opening.status != 200:
            raise _refusal(opening)
        yield Keepalive()
        while isinstance(item := await clock.next(head), wire.Chunk):
            try:
                for event in reader.feed(item.data):
                    if isinstance(event, Done):
                        await _see_end(head)
                        return
                    if isinstance(event, Failure):
                        raise _failure(event.code, event.message, _STATUS.get(event.code, 502), event.param)
                    yield event
            except BadStream as error:
                logger.warning("a head's stream breaks a rule: %s (%r)", error, error.__cause__)
                raise HeadFailed.breaks_rules(f"can't be understood: {error}") from None
        if isinstance(item, wire.Response):
            raise _refusal(item)


async def _see_end(head: AsyncIterator[wire.Answer]) -> None:
    """All has been said; the head's call is over with its End, and closing it before that would be a cancel."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while await anext(head, None) is not None:
                pass


def _refusal(answer: wire.Answer | None) -> ApiError | HeadFailed:
    """What an answer means that is no stream."""
    if not isinstance(answer, wire.Response) or answer.status < 400:
        return HeadFailed.breaks_rules("gave no answer")
    code, message = wire.error_of(answer.status, answer.body)
    is_relays = client.IN_PLACE in answer.headers
    return _failure(code, message, answer.status, _param_of(answer.body), is_relays=is_relays)


def _failure(
    code: str, message: str, status: int, param: str | None = None, *, is_relays: bool = False
) -> ApiError | HeadFailed:
    """`is_relays`: the relay says it, of the way to the head; what the head has to say is unknown."""
    message = presentable(message)
    if code in CODES and code not in _SAID_BY_NODES:
        code = Code.BAD_ANSWER  # whose key it was, or which model is missing, no node knows
    error = ApiError(status if status in _FOR_THE_CLIENT else 502, message, code=code, param=param)
    if code in _FINAL_CODES or status in FINAL_STATUSES:
        return error
    if code in _GONE_CODES or is_relays:
        return HeadFailed(Loss.GONE, error)
    return HeadFailed(Loss.REFUSES, error) if status in _FOR_THE_CLIENT else HeadFailed.refuses(code, message)


def _param_of(body: bytes) -> str | None:
    """The parameter that the head blames, where wire.error_of has found an error to read."""
    try:
        param = json.loads(body)["error"].get("param")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return param if isinstance(param, str) else None
