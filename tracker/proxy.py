"""One chat between its client and the head of its route. Async; no ORM between the first byte and the last.

The head is always asked for a stream, and the unstreamed answer is put together here: one path for the deadline, for a
client that leaves and for a head that fails. No thread is held: a chat is a coroutine with one timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone

from relay import wire
from tracker import answers, chats
from tracker.chats import Chat, Outcome
from tracker.errors import ApiError
from tracker.events import BadStream, Delta, Done, Event, EventReader, Failure, Keepalive, Report
from tracker.models import ChatSession

logger = logging.getLogger(__name__)

SILENCE_S = 15.0  # a head says something each second, be it a comment; one that doesn't is gone
END_S = 2.0  # between the head's [DONE] and the end of its answer

# What a head may answer that is the client's to mend or to repeat. Anything else is between the site and the node.
_FOR_THE_CLIENT = frozenset({400, 413, 422, 429, 500, 502, 503, 504})

_last_writes: set[asyncio.Task[None]] = set()  # the loop itself keeps tasks by weak references only


async def proxy_chat(chat: Chat, silence_s: float = SILENCE_S) -> AsyncGenerator[Event, None]:
    """What the head says. The first item, a Keepalive, comes when the head has agreed to answer.

    Raises ApiError when it hasn't, or when it fails on the way. Closing the generator cancels the request at the head;
    in each case the session's row is written once.
    """
    outcome, started = Outcome(), asyncio.get_running_loop().time()
    clock = _Clock(started + chat.deadline_s, silence_s)
    try:
        async with aclosing(chat.call(chat.request)) as head, aclosing(_events(head, clock)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    if event.text and outcome.ttft_ms is None:
                        outcome.ttft_ms = (asyncio.get_running_loop().time() - started) * 1000
                    chat.answer.add(event)
                elif isinstance(event, Report):
                    chat.answer.report = event
                elif isinstance(event, Failure):
                    raise ApiError(_status_of(event.code), event.message, code=event.code)
                yield event
        if chat.answer.finish_reason is None:
            raise ApiError(502, "the node at the head of the route ended its answer too early", code="bad_gateway")
        outcome.state = ChatSession.State.DONE
        reason, num_tokens = chat.answer.finish_reason, chat.answer.completion_tokens
        logger.info("session %s done: %d tokens, ended by %s", chat.short_id, num_tokens, reason)
    except ApiError as error:
        logger.warning("session %s failed: %s: %s", chat.short_id, error.code, error.message)
        outcome.state, outcome.error_code = ChatSession.State.FAILED, error.code or ""
        outcome.error_message = error.message
        raise
    except (asyncio.CancelledError, GeneratorExit):
        logger.info("session %s cancelled: its client has gone", chat.short_id)
        outcome.state = ChatSession.State.CANCELLED
        raise
    finally:
        await _write_end(chat, outcome)


async def streamed(chat: Chat, events: AsyncGenerator[Event, None]) -> AsyncIterator[bytes]:
    """The answer as server-sent events. A failure on the way is the last one before [DONE]."""
    async with aclosing(events):
        try:
            async for event in events:
                if isinstance(event, Delta):
                    yield chat.answer.chunk(event)
                elif isinstance(event, Keepalive):
                    yield answers.KEEPALIVE
            for chunk in chat.answer.last_chunks():
                yield chunk
        except ApiError as error:
            yield answers.error_event(error)
        yield answers.DONE


async def whole(chat: Chat, events: AsyncGenerator[Event, None]) -> dict[str, Any]:
    """The answer at once. Raises ApiError."""
    async with aclosing(events):
        async for _ in events:
            pass
    return chat.answer.whole()


class _Clock:
    """The chat's deadline and the head's silence, whichever ends first."""

    def __init__(self, ends: float, silence_s: float) -> None:
        self._ends, self._silence_s = ends, silence_s

    async def next(self, head: AsyncIterator[wire.Answer]) -> wire.Answer | None:
        """The head's next item; None after the last. Raises ApiError 504."""
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(self._ends, now + self._silence_s)):
                return await anext(head, None)
        except TimeoutError:
            if asyncio.get_running_loop().time() >= self._ends:
                raise ApiError(504, "the answer wasn't finished by the request's deadline", code="deadline") from None
            message = f"the node at the head of the route said nothing for {self._silence_s:.0f} s"
            raise ApiError(504, message, code="head_silent") from None


async def _events(head: AsyncIterator[wire.Answer], clock: _Clock) -> AsyncGenerator[Event, None]:
    """Raises ApiError for every failure, the relay's or the head's."""
    reader = EventReader()
    opening = await clock.next(head)
    if not isinstance(opening, wire.Response) or not opening.stream or opening.status != 200:
        raise _refusal(opening)
    yield Keepalive()
    while True:
        item = await clock.next(head)
        if isinstance(item, wire.Response):
            raise _refusal(item)
        if not isinstance(item, wire.Chunk):
            return
        try:
            for event in reader.feed(item.data):
                if isinstance(event, Done):
                    await _see_end(head)
                    return
                yield event
        except BadStream as error:
            raise ApiError(502, f"the head of the route can't be understood: {error}", code="bad_gateway") from None


async def _see_end(head: AsyncIterator[wire.Answer]) -> None:
    """All has been said; the head's call is over with its End, and closing it before that would be a cancel."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while await anext(head, None) is not None:
                pass


def _status_of(code: str) -> int:
    """Of an error in the middle of the stream, for a client that hasn't got a status yet."""
    status = {known.value: status for known, status in wire.STATUS.items()}.get(code, 502)
    return status if status in _FOR_THE_CLIENT else 502


def _refusal(answer: wire.Answer | None) -> ApiError:
    """What an answer that is no stream means to the client."""
    if not isinstance(answer, wire.Response) or answer.status < 400:
        return ApiError(502, "the node at the head of the route gave no answer", code="bad_gateway")
    code, message = wire.error_of(answer.status, answer.body)
    if answer.status in _FOR_THE_CLIENT:
        return ApiError(answer.status, message, code=code, param=_param_of(answer.body))
    return ApiError(502, f"the node at the head of the route refused: {message}", code=code)


def _param_of(body: bytes) -> str | None:
    """The parameter that the head blames, where wire.error_of has found an error to read."""
    try:
        param = json.loads(body)["error"].get("param")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return param if isinstance(param, str) else None


async def abandon(chat: Chat) -> None:
    """Writes the end of a chat whose client left before its head was asked."""
    await _write_end(chat, Outcome(ChatSession.State.CANCELLED))


async def _write_end(chat: Chat, outcome: Outcome) -> None:
    """Even when this task is being cancelled: the write is a task of its own.

    It gets an empty context: in the request's, asgiref would use the request's thread, which ends with the request.
    """
    write = asyncio.get_running_loop().create_task(_finish(chat, outcome), context=contextvars.Context())
    _last_writes.add(write)
    write.add_done_callback(_last_writes.discard)
    await asyncio.shield(write)


async def _finish(chat: Chat, outcome: Outcome) -> None:
    await sync_to_async(_finish_in_thread)(chat, outcome)


def _finish_in_thread(chat: Chat, outcome: Outcome) -> None:
    chats.finish(chat, outcome, timezone.now())
    close_old_connections()  # no request's end closes this thread's
