"""One thread owns torch. Steps go in through a bounded queue, results come out as futures.

Whoever submits waits on the future with a deadline of its own. Steps are worked one after another in the order in
which they came; what a step means for its session is decided in sessions.py.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from nodes.sampling import Sampled, Sampling, SamplingError, TokenLogprobs, verify
from nodes.sessions import Busy, Missing, Session, Sessions, Stale, StepKey
from nodes.shard import Row, Shard, ShardCache

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_QUEUED = 256  # steps that wait
MAX_QUEUED_CLOSES = 4 * MAX_QUEUED  # what waits, beyond which even closing is refused: it takes no time and frees room
IDLE_S = 600.0  # a session that nobody uses for so long is freed
_TICK_S = 10.0  # how often idle sessions are looked for


class EngineError(Exception):
    """The engine can't work the step: its shape or layers are wrong, or the shard failed."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass through a hop's layers."""

    session: str
    epoch: int
    step: int
    position: int  # index of the first token
    start_layer: int
    end_layer: int
    token_ids: tuple[int, ...]  # at the step's positions; may be empty in the middle of a route
    hidden: torch.Tensor | None  # [1, tokens, width] before start_layer; None: embed token_ids
    sampling: Sampling | None  # at the tail: how to choose the next token; None: nothing is sampled
    reserve_tokens: int = 0  # on the first step: tokens the session may come to hold
    num_drafts: int = 0  # of the last tokens, how many are guesses that the tail accepts or replaces

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) if self.hidden is None else self.hidden.shape[1]

    def key(self) -> StepKey:
        layers = (self.start_layer, self.end_layer)
        return StepKey(self.session, self.epoch, self.step, self.position, self.num_tokens, layers, self.reserve_tokens)


@dataclass(frozen=True, slots=True)
class StepResult:
    """hidden: [1, tokens, width], None after the model's last layer; token_ids: what the tail sampled."""

    hidden: torch.Tensor | None
    token_ids: tuple[int, ...]
    queue_ms: float
    compute_ms: float
    logprobs: tuple[TokenLogprobs, ...] | None = None  # of token_ids, where the step's sampling asks for them


def step_result(hidden: torch.Tensor | None, sampled: list[Sampled], queue_ms: float, compute_ms: float) -> StepResult:
    logprobs = tuple(one.logprobs for one in sampled if one.logprobs)
    return StepResult(hidden, tuple(one.token_id for one in sampled), queue_ms, compute_ms, logprobs or None)


@dataclass(frozen=True, slots=True)
class _Work:
    """What waits in the queue. `run` is None to end the thread."""

    run: Callable[[float], object] | None
    future: Future[Any]
    queued_at: float


class Engine:
    """Works the steps of many sessions on one shard, in one thread."""

    def __init__(
        self,
        shard: Shard,
        max_cached_tokens: int,
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = IDLE_S,
    ) -> None:
        self.shard, self.max_cached_tokens = shard, max_cached_tokens
        self._clock = clock
        self._sessions: Sessions[ShardCache, StepResult] = Sessions(max_cached_tokens, idle_s)
        self._queue: queue.Queue[_Work] = queue.Queue(MAX_QUEUED_CLOSES + 1)
        self._thread = threading.Thread(target=self._work_until_told, name="engine", daemon=True)
        self._stopping = threading.Event()

    @property
    def cached_tokens(self) -> int:
        return self._sessions.cached_tokens

    @property
    def num_sessions(self) -> int:
        return self._sessions.num_open

    def start(self) -> None:
        """torch.set_num_threads comes before: a thread keeps the number it started with."""
        self._thread.start()

    def stop(self, deadline_s: float) -> bool:
        """Finishes the step in hand and fails those that wait; False when the deadline passed first."""
        self._stopping.set()
        if not self._thread.is_alive():
            return True
        with suppress(queue.Full):  # the thread is awake
            self._queue.put_nowait(_Work(None, Future(), self._clock()))  # wakes it
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def submit(self, step: Step) -> Future[StepResult]:
        """The result, or in its place Stale, Missing, Busy or EngineError."""
        return self._enqueue(lambda queued_at: self._step(step, queued_at), MAX_QUEUED)

    def close_session(self, session: str, epoch: int, until: float) -> Future[bool]:
        """Frees a session and refuses its epoch from now on, until `until` by the engine's clock (time.monotonic)."""
        close = self._sessions.close
        return self._enqueue(lambda _: close(session, epoch, until, self._clock()), MAX_QUEUED_CLOSES)

    def _enqueue(self, run: Callable[[float], Result], most_queued: int) -> Future[Result]:
        future: Future[Result] = Future()
        if self._stopping.is_set():
            future.set_exception(Busy("this node is stopping"))
            return future
        try:
            if self._queue.qsize() >= most_queued:
                raise queue.Full
            self._queue.put_nowait(_Work(run, future, self._clock()))
        except queue.Full:
            future.set_exception(Busy(f"{most_queued} steps wait here already"))
        return future

    def _work_until_told(self) -> None:
        next_look = self._clock() + _TICK_S
        with torch.inference_mode():
            while not self._stopping.is_set():
                try:
                    work = self._queue.get(timeout=_TICK_S)
                except queue.Empty:
                    work = None
                if work and work.run:
                    self._run(work)
                    del work  # holds activations
                if self._clock() >= next_look:
                    self._expire()
                    next_look = self._clock() + _TICK_S
        self._fail_what_waits()
        self._sessions.clear()

    def _run(self, work: _Work) -> None:
        if work.run is None or not work.future.set_running_or_notify_cancel():
            return
        try:
            work.future.set_result(work.run(work.queued_at))
        except (Stale, Missing, Busy, EngineError) as error:
            work.future.set_exception(error)
        except Exception as error:
            logger.exception("a step failed")
            work.future.set_exception(EngineError(f"the shard failed: {type(error).__name__}: {error}"))

    def _step(self, step: Step, queued_at: float) -> StepResult:
        started = self._clock()
        self._check(step)
        key = step.key()
        session, kept = self._sessions.begin(key, started)
        if kept is not None:
            return kept
        try:
            hidden, sampled = self._forward(step, session)
        except BaseException:
            self._sessions.drop_cache(step.session)  # some layers have the step's tokens, some haven't
            raise
        queue_ms, compute_ms = (started - queued_at) * 1000, (self._clock() - started) * 1000
        result = step_result(hidden, sampled, queue_ms, compute_ms)
        self._sessions.finish(session, key, step.token_ids, result)
        return result

    def _forward(
        self, step: Step, session: Session[ShardCache, StepResult]
    ) -> tuple[torch.Tensor | None, list[Sampled]]:
        layers = (step.start_layer, step.end_layer)
        if session.cache is None:
            session.cache = self.shard.new_cache(*layers, room_tokens=session.reserved_tokens)
        session.cache.crop_to(step.position)
        inputs = step.token_ids if step.hidden is None else step.hidden[0]
        num_logits = 0 if step.sampling is None else 1 + step.num_drafts
        [output] = self.shard.forward([Row(session.cache, step.position, inputs, num_logits)], *layers)
        if step.end_layer < self.shard.num_layers:
            return output.unsqueeze(0), []
        return None, self._sample(output, step, session.token_ids)

    def _sample(self, logits: torch.Tensor, step: Step, token_ids: list[int]) -> list[Sampled]:
        """logits: [1 + drafts, vocab_size]; token_ids: the session's before the step."""
        if step.sampling is None:
            return []
        drafts = step.token_ids[step.num_tokens - step.num_drafts :]
        first = step.position + step.num_tokens - step.num_drafts
        try:
            return verify(logits, step.sampling, first, [*token_ids, *step.token_ids], drafts)
        except SamplingError as error:
            raise EngineError(str(error)) from error

    def _check(self, step: Step) -> None:
        shard, num_tokens = self.shard, step.num_tokens
        if not shard.start_layer <= step.start_layer < step.end_layer <= shard.end_layer:
            held = f"{shard.start_layer}:{shard.end_layer}"
            raise EngineError(f"layers {step.start_layer}:{step.end_layer} aren't in this node's {held}")
        if num_tokens < 1 or step.position < 0 or step.position + num_tokens > shard.context_length:
            end = step.position + num_tokens
            raise EngineError(f"positions {step.position}:{end} aren't in the context of {shard.context_length}")
        if step.hidden is None:
            if step.start_layer > 0:
                raise EngineError("a step that starts after layer 0 brings activations")
            if not all(0 <= token_id < shard.vocab_size for token_id in step.token_ids):
                raise EngineError(f"token ids must be from 0 to {shard.vocab_size - 1}")
        elif step.hidden.dim() != 3 or (step.hidden.shape[0], step.hidden.shape[2]) != (1, shard.width):
            raise EngineError(f"activations must have the shape 1,tokens,{shard.width}")
        elif step.token_ids and len(step.token_ids) != num_tokens:
            raise EngineError(f"{len(step.token_ids)} token ids come with activations of {num_tokens} tokens")

    def _expire(self) -> None:
        for session in self._sessions.expire(self._clock()):
            logger.info("session %s was idle and is freed", session[:8])

    def _fail_what_waits(self) -> None:
        while True:
            try:
                work = self._queue.get_nowait()
            except queue.Empty:
                return
            if work.run and work.future.set_running_or_notify_cancel():
                work.future.set_exception(Busy("this node is stopping"))
