"""A chat over as many heads as it takes: when one is lost, the next goes on where it was, and the client sees no seam.

No head that failed in this chat is asked again while there is another. Where there is none, the chat waits for a node
to come, and one that is back may be asked again: sooner where its connection had ended than where it was only silent.
Once this process was told to stop, a chat that loses its head ends: it has no time for another.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from django.db import DatabaseError
from django.utils import timezone

from relay.wire import Code
from tracker import accusations, kept, reports, successors, words
from tracker.background import in_thread
from tracker.chats import Chat
from tracker.errors import ApiError
from tracker.events import Delta, Event, Keepalive
from tracker.listening import FINAL_STATUSES, Clock, HeadFailed, Loss, listen, shutting_down
from tracker.successors import Lost, NoSuccessor

logger = logging.getLogger(__name__)

POLL_S = (0.25, 1.0)  # how often a node is looked for, at first and at last
REST_S = 1.0  # of a head that is back, before it is asked again; twice as long each time
TELLING_S = 1.0  # of the deadline, kept to tell the client
NODE_FAILED = "node_failed"
RESUME_MISMATCH = "resume_mismatch"


@dataclass
class Losses:
    """Which heads have failed in a chat, and until when each is left alone. Pure: the clock is handed in."""

    wait_s: float
    gives_up_at: float = 0.0
    first: str = ""  # in words: who was lost, and how, before others only refused
    _rests_until: dict[str, float] = field(default_factory=dict)
    _times: dict[str, int] = field(default_factory=dict)
    _num_tokens: int = -1

    def add(self, peer_id: str, loss: Loss, num_tokens: int, now: float, in_words: str = "") -> None:
        """A chat that has grown since the last loss may wait anew: somebody took over."""
        if num_tokens > self._num_tokens:
            self.gives_up_at, self.first = 0.0, ""
        self._num_tokens = num_tokens
        if loss is not Loss.REFUSES:  # one that works and refuses would refuse again
            self.gives_up_at = self.gives_up_at or now + self.wait_s
            self.first = self.first or in_words
        self._times[peer_id] = self._times.get(peer_id, 0) + 1
        rest_s = {Loss.GONE: REST_S, Loss.SILENT: self.wait_s / 2, Loss.REFUSES: math.inf}[loss]
        self._rests_until[peer_id] = now + rest_s * 2 ** (self._times[peer_id] - 1)

    def all(self) -> set[str]:
        return set(self._rests_until)

    def resting(self, now: float) -> set[str]:
        """Those that mayn't be asked again; all of them once the wait is over."""
        is_over = now >= self.gives_up_at
        return {peer_id for peer_id, until in self._rests_until.items() if is_over or until > now}


async def heard(chat: Chat, clock: Clock, wait_s: float) -> AsyncGenerator[Event, None]:
    """What its heads say, as if they were one. The first event, a Keepalive, comes when one has agreed.

    Raises ApiError when none goes on. `chat.answer` has all that was given out by the time the next event is asked for.
    """
    losses, lost_at, has_agreed = Losses(wait_s), None, False
    while True:
        try:
            async with aclosing(_one_head(chat, clock)) as events:
                async for event in events:
                    has_agreed = True
                    if lost_at is not None and isinstance(event, Delta):
                        chat.resume_ms[chat.epoch], lost_at = (_now() - lost_at) * 1000, None
                    yield event
            return
        except ApiError as error:
            await _name_nodes(chat, error)
            raise
        except HeadFailed as head_failed:
            failed = head_failed
            await _name_nodes(chat, failed.error)
        if chat.answer.finish_reason:
            return  # the client has all of it
        lost_at = _now()
        in_words = f"{chat.head}, is lost: {failed.error.message}"
        losses.add(chat.head.peer_id, failed.loss, len(chat.answer.ids), lost_at, in_words)
        async with aclosing(_next_chats(chat, failed, losses, clock)) as found:
            async for next_chat in found:
                if next_chat:
                    chat = next_chat
                elif has_agreed:
                    yield Keepalive()


async def _one_head(chat: Chat, clock: Clock) -> AsyncGenerator[Event, None]:
    """Raises ApiError, HeadFailed."""
    answer, is_first = chat.answer, True
    answer.progress = None  # another head's, of another route
    num_told, expected = len(answer.ids), len(answer.prompt_ids) + len(answer.ids)
    try:
        async with aclosing(listen(chat.call, chat.request, clock)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    if num_told and is_first and event.position != expected:
                        raise HeadFailed.refuses(RESUME_MISMATCH, "it began anew instead of going on")
                    is_first = False
                yield event
    except ApiError as error:
        if num_told and error.status in FINAL_STATUSES:  # another head took it: this one can't read how to go on
            raise HeadFailed.refuses(error.code or "", kept.words_of(error)) from None
        raise
    if answer.finish_reason is None:
        raise HeadFailed.cut_off()


async def _name_nodes(chat: Chat, error: ApiError) -> None:
    """In what a head says, or the relay of it: they know other nodes by peer id, and people know them by name."""
    names = chat.answer.node_names
    error.message = words.with_names(error.message, names)
    if words.PEER.search(error.message):
        with suppress(DatabaseError):  # then it stays as it was said
            names |= await in_thread(reports.names_on_routes, chat.session_pk)
        error.message = words.with_names(error.message, names)


async def _next_chats(
    chat: Chat, failed: HeadFailed, losses: Losses, clock: Clock
) -> AsyncGenerator[Chat | None, None]:
    """The chat at its next head, the last item; None each time that there is none yet. Raises ApiError."""
    is_drained = failed.error.code == Code.DRAINING
    if is_drained:
        logger.info("session %s left %s, which is being drained", chat.short_id, chat.head)
    else:
        logger.warning("session %s: %s failed: %s", chat.short_id, chat.head, failed.error.message)
    if failed.loss is Loss.SILENT and not clock.is_stopping:
        await in_thread(accusations.site_saw, chat.head.peer_id, failed.error.message, timezone.now())
    pause_s, longest_s = POLL_S
    while True:
        clock.check()
        if clock.is_stopping:
            raise shutting_down()
        now = _now()
        lost = Lost(failed.error.code or "", failed.error.message, losses.all(), losses.resting(now))
        try:
            found = await in_thread(successors.next_chat, chat, lost, clock.left_s, timezone.now())
        except NoSuccessor as error:
            if not error.may_come or now >= min(losses.gives_up_at, now + clock.left_s - TELLING_S):
                raise _given_up(chat, failed, losses.first, str(error)) from None
        else:
            level = logging.INFO if is_drained else logging.WARNING
            logger.log(level, "session %s goes on at %s, epoch %d", chat.short_id, found.head, found.epoch)
            yield found
            return
        yield None
        await asyncio.sleep(min(random.uniform(pause_s / 2, pause_s), max(0.0, clock.left_s - TELLING_S)))
        pause_s = min(2 * pause_s, longest_s)


def _given_up(chat: Chat, failed: HeadFailed, first: str, why: str) -> ApiError:
    """`first`: the loss that the chat wanted to mend. One that was asked then and refuses is only why it couldn't."""
    lost = f"{chat.head}, is lost: {failed.error.message}"
    if failed.loss is Loss.REFUSES:
        if not first or failed.error.code == RESUME_MISMATCH:
            return failed.error
        lost, why = first, f"{chat.head}, refuses: {failed.error.message}"
    return ApiError(502, f"the head of the route, {lost}; no other node can go on: {why}", code=NODE_FAILED)


def _now() -> float:
    return asyncio.get_running_loop().time()
