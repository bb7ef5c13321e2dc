"""What a node remembers of its sessions, and what a numbered step means for it. Bookkeeping only: no torch, no clock.

A session has an epoch (the number of its route), the highest step worked in it with its kept answer, and a cache that
ends at some token. Steps are repeatable because of the numbers:

    lower epoch, or lower step of the epoch   Stale: nothing is touched
    the same step                             the kept answer again, nothing is computed
    higher step, position == cached tokens    append
                 position <  cached tokens    crop to position, append
                 position >  cached tokens    Missing: says how many there are; the head replays from there

A closed session refuses its epoch and the lower ones until its ticket can't be used any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

MAX_SESSIONS = 1024
MAX_CLOSED = 100_000

CacheT = TypeVar("CacheT")
AnswerT = TypeVar("AnswerT")


class Stale(Exception):
    """A later epoch or step has been seen, or the session is closed. Nothing was touched."""


class Missing(Exception):
    """The cache ends before the step begins."""

    def __init__(self, cached_tokens: int) -> None:
        super().__init__(f"only {cached_tokens} tokens of the session are cached here")
        self.cached_tokens = cached_tokens


class Busy(Exception):
    """No room for it now; another node or a later try may have some."""


@dataclass
class Session(Generic[CacheT, AnswerT]):
    """One session on this node."""

    id: str
    epoch: int
    last_used: float
    step: int = -1  # the highest worked in this epoch
    layers: tuple[int, int] | None = None
    num_tokens: int = 0  # in the cache
    reserved_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)  # at the cache's positions, where the steps brought them
    cache: CacheT | None = None
    answer: AnswerT | None = None  # of the highest step
    grammar_state: object | None = None  # where the answer is in its grammar: whoever samples keeps it here


@dataclass(frozen=True)
class StepKey:
    """The numbers of a step that decide what it means."""

    session: str
    epoch: int
    step: int
    position: int
    num_tokens: int
    layers: tuple[int, int]
    reserve_tokens: int


class Sessions(Generic[CacheT, AnswerT]):
    """Every session of one node. Used by one thread; others may read the numbers."""

    def __init__(self, max_cached_tokens: int, idle_s: float) -> None:
        self._max_cached_tokens, self._idle_s = max_cached_tokens, idle_s
        self._sessions: dict[str, Session[CacheT, AnswerT]] = {}
        self._closed: dict[str, tuple[int, float]] = {}  # session -> (epoch, until)
        self.cached_tokens = 0
        self.reserved_tokens = 0

    @property
    def num_open(self) -> int:
        """Sessions that hold room here; a record without room only remembers an epoch."""
        return sum(session.reserved_tokens > 0 for session in list(self._sessions.values()))

    def begin(self, key: StepKey, now: float) -> tuple[Session[CacheT, AnswerT], AnswerT | None]:
        """The session, and the kept answer where the step was worked already. Without one the caller crops
        the session's cache to key.position, works the step and calls `finish`. Raises Stale, Missing, Busy."""
        session = self._fenced(key, now)
        if key.step < session.step:
            raise Stale(f"step {key.step} comes after step {session.step}")
        if key.step == session.step and session.answer is not None:
            return session, session.answer
        if session.layers != key.layers:
            self._empty(session)  # another route gave this node other layers: what is cached is of no use
        if key.position > session.num_tokens:
            raise Missing(session.num_tokens)
        self._reserve(session, key)
        session.layers = key.layers
        self._set_length(session, key.position)
        return session, None

    def finish(
        self, session: Session[CacheT, AnswerT], key: StepKey, token_ids: tuple[int, ...], answer: AnswerT
    ) -> None:
        """The step is worked: its tokens are in the cache."""
        session.step, session.answer = key.step, answer
        session.token_ids += token_ids
        self._set_length(session, key.position + key.num_tokens)

    def drop_cache(self, session_id: str) -> None:
        """After a step that failed in the middle: its cache can't be trusted."""
        if session := self._sessions.get(session_id):
            self._empty(session)

    def close(self, session_id: str, epoch: int, until: float, now: float) -> bool:
        """Frees the session and refuses its epoch until then; False when there was none. Raises Stale."""
        session = self._sessions.get(session_id)
        if session and epoch < session.epoch:
            raise Stale(f"epoch {epoch} comes after epoch {session.epoch}")
        self._forget_closed(now)
        known_epoch, known_until = self._closed.get(session_id, (epoch, until))
        self._closed[session_id] = max(epoch, known_epoch), max(until, known_until)
        if session:
            self._remove(session)
        return session is not None

    def expire(self, now: float) -> list[str]:
        """Frees sessions that nobody has used for idle_s; their ids."""
        idle = [session for session in self._sessions.values() if now - session.last_used > self._idle_s]
        for session in idle:
            self._remove(session)
        self._forget_closed(now)
        return [session.id for session in idle]

    def epochs(self, most: int) -> dict[str, int]:
        """Of the sessions that are open, those first that were idle longest."""
        held = list(self._sessions.values())  # at once: it changes meanwhile
        held.sort(key=lambda session: session.last_used)
        return {session.id: session.epoch for session in held[:most]}

    def drop_caches(self) -> int:
        """Gives back all room; how many sessions had some. What was seen of their epochs and steps stays known."""
        holding = [session for session in self._sessions.values() if session.reserved_tokens]
        for session in holding:
            self._empty(session)
            self.reserved_tokens -= session.reserved_tokens
            session.reserved_tokens = 0
        return len(holding)

    def clear(self) -> None:
        for session in list(self._sessions.values()):
            self._remove(session)

    def _fenced(self, key: StepKey, now: float) -> Session[CacheT, AnswerT]:
        """The session, at the step's epoch: whoever has seen an epoch refuses everything lower."""
        closed_epoch, until = self._closed.get(key.session, (-1, 0.0))
        if key.epoch <= closed_epoch and now < until:
            raise Stale("the session is closed")
        session = self._sessions.get(key.session)
        if session is None:
            if len(self._sessions) >= MAX_SESSIONS:
                raise Busy(f"{MAX_SESSIONS} sessions are open here")
            session = self._sessions[key.session] = Session(key.session, key.epoch, now)
        if key.epoch < session.epoch:
            raise Stale(f"epoch {key.epoch} comes after epoch {session.epoch}")
        if key.epoch > session.epoch:
            session.epoch, session.step, session.answer = key.epoch, -1, None
        session.last_used = now
        return session

    def _reserve(self, session: Session[CacheT, AnswerT], key: StepKey) -> None:
        wanted = max(session.reserved_tokens, key.reserve_tokens, key.position + key.num_tokens)
        free = self._max_cached_tokens - self.reserved_tokens + session.reserved_tokens
        if wanted > self._max_cached_tokens:
            held = f"this node holds {self._max_cached_tokens} in all: ask for fewer with max_tokens"
            raise Busy(f"the session needs room for {wanted} tokens, and {held}")
        if wanted > free:
            raise Busy(f"the session needs room for {wanted} tokens; {free} are free here")
        self.reserved_tokens += wanted - session.reserved_tokens
        session.reserved_tokens = wanted

    def _set_length(self, session: Session[CacheT, AnswerT], num_tokens: int) -> None:
        self.cached_tokens += num_tokens - session.num_tokens
        session.num_tokens = num_tokens
        del session.token_ids[num_tokens:]

    def _empty(self, session: Session[CacheT, AnswerT]) -> None:
        self._set_length(session, 0)
        session.cache, session.layers, session.answer, session.grammar_state = None, None, None, None

    def _remove(self, session: Session[CacheT, AnswerT]) -> None:
        self._empty(session)
        self.reserved_tokens -= session.reserved_tokens
        del self._sessions[session.id]

    def _forget_closed(self, now: float) -> None:
        for session_id in [session_id for session_id, (_, until) in self._closed.items() if until <= now]:
            del self._closed[session_id]
        for session_id in list(islice(self._closed, max(0, len(self._closed) - MAX_CLOSED))):
            del self._closed[session_id]  # the oldest
