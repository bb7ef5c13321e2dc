"""A chat between its client and the head of its route, or several side by side. Async; no ORM while a head speaks.

The head is always asked for a stream, and the unstreamed answer is put together here: one path for the deadline, for a
client that leaves and for a head that fails. No thread is held: a chat is a coroutine with one timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from django.conf import settings
from django.utils import timezone

from tracker import answers, cancelling, endings, failover, kept, merging, news, reports
from tracker.answers import Answer, Completion
from tracker.background import in_thread
from tracker.chats import Chat
from tracker.endings import Outcome
from tracker.errors import ApiError, of_status, told
from tracker.events import Delta, Event, Keepalive
from tracker.hopreports import Report
from tracker.listening import Clock
from tracker.models import ChatSession

logger = logging.getLogger(__name__)

Said = tuple[Answer, Event]  # the choice that an event belongs to, which has taken it in already


def proxy_chats(chats: Sequence[Chat]) -> AsyncGenerator[Said, None]:
    """What the heads of a completion's choices say, as it comes. One that fails ends the others. As proxy_chat."""
    heard = [proxy_chat(chat) for chat in chats]
    return heard[0] if len(heard) == 1 else merging.merged(heard)


async def proxy_chat(chat: Chat) -> AsyncGenerator[Said, None]:
    """What the heads of the chat say. The first item, a Keepalive, comes when one has agreed to answer.

    Raises ApiError when none does, or when none goes on. Closing the generator cancels the request at the head; in each
    case the session's row is written once.
    """
    outcome, started, answer = Outcome(), asyncio.get_running_loop().time(), chat.answer
    running = news.of(chat.session_pk)
    running.answer, running.resume_ms = answer, chat.resume_ms
    clock = Clock(chat.deadline_s, settings.HEAD_SILENCE_S, is_cancelled=lambda: running.is_cancelled)
    try:
        async with aclosing(failover.heard(chat, clock, settings.FAILOVER_WAIT_S)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    if event.text and outcome.ttft_ms is None:
                        outcome.ttft_ms = running.ttft_ms = (asyncio.get_running_loop().time() - started) * 1000
                    answer.add(event)
                elif isinstance(event, Report):
                    answer.report = event
                    if answer.unnamed_peers:  # its head has gone on without a node
                        answer.node_names |= await in_thread(reports.names_of, answer.unnamed_peers)
                yield answer, event
        outcome.state = ChatSession.State.DONE
        num_tokens, reason = answer.completion_tokens, answer.finish_reason
        logger.info("session %s done: %d tokens, ended by %s", chat.short_id, num_tokens, reason)
    except ApiError as said:
        error = told(said)
        _take_down(chat, said, outcome)
        answer.completion.failure = answer.completion.failure or error
        raise error from None
    except (asyncio.CancelledError, GeneratorExit):
        failure = answer.completion.failure
        outcome.error_message = f"another choice of the completion failed: {kept.words_of(failure)}" if failure else ""
        logger.info("session %s cancelled: %s", chat.short_id, outcome.error_message or "its client has gone")
        outcome.state = ChatSession.State.CANCELLED
        raise
    finally:
        await _write_end(chat, outcome)


def _take_down(chat: Chat, said: ApiError, outcome: Outcome) -> None:
    """How a chat ends that an error ended."""
    if said.code == cancelling.CODE:
        logger.info("session %s cancelled: by an operator", chat.short_id)
        outcome.state, outcome.error_message = ChatSession.State.CANCELLED, said.message
        return
    logger.warning("session %s failed: %s: %s", chat.short_id, said.code, kept.words_of(said))
    error = told(said)
    outcome.state, outcome.error_code = ChatSession.State.FAILED, error.code or ""
    outcome.error_message = kept.words_of(error)
    if outcome.error_message != (details := kept.words_of(said)):
        outcome.error_details = details


async def streamed(completion: Completion, events: AsyncGenerator[Said, None]) -> AsyncIterator[bytes]:
    """The answer as server-sent events. A failure on the way is the last one before [DONE]."""
    async with aclosing(events):
        try:
            async for answer, event in events:
                if isinstance(event, Delta):
                    yield answer.chunk(event)
                elif isinstance(event, Keepalive):
                    yield answers.KEEPALIVE
            for chunk in completion.last_chunks():
                yield chunk
        except ApiError as error:
            yield answers.error_event(error)
        except Exception:  # the connection is open, and Django could only cut it
            logger.exception("the stream of %s failed", completion.completion_id)
            yield answers.error_event(of_status(500))
        yield answers.DONE


async def whole(completion: Completion, events: AsyncGenerator[Said, None]) -> dict[str, Any]:
    """The answer at once. Raises ApiError."""
    async with aclosing(events):
        async for _ in events:
            pass
    return completion.whole()


async def abandon(begun: Sequence[Chat]) -> None:
    """Writes the end of chats whose client left before their heads were asked."""
    for chat in begun:
        await _write_end(chat, Outcome(ChatSession.State.CANCELLED))


async def _write_end(chat: Chat, outcome: Outcome) -> None:
    await in_thread(endings.finish, chat, outcome, timezone.now())
