"""One thread owns torch. Steps go in through a bounded queue, results come out as futures.

Whoever submits waits on the future with a deadline of its own. Each turn of the thread takes in what has come, asks
schedule.py what runs next, and works that in one forward (runner.py); what a step means for its session is decided in
sessions.py. Errands, such as closing a session, are done between two forwards, whatever waits.
"""

from __future__ import annotations

import logging
import queue
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from nodes.pace import LayerPace
from nodes.runner import EngineSessions, Runner, Task
from nodes.schedule import Schedule
from nodes.sessions import Busy, Sessions
from nodes.shard import Row, Shard
from nodes.work import EngineError as EngineError  # what whoever uses the engine knows it by
from nodes.work import GrammarFailed as GrammarFailed
from nodes.work import NoGrammar as NoGrammar
from nodes.work import NotNumbers as NotNumbers
from nodes.work import OutOfMemory as OutOfMemory
from nodes.work import Step as Step
from nodes.work import StepResult as StepResult
from nodes.work import Work
from nodes.work import step_result as step_result

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_QUEUED = 256  # steps that wait
MAX_QUEUED_CLOSES = 4 * MAX_QUEUED  # what waits, beyond which even closing is refused: it takes no time and frees room
IDLE_S = 600.0  # a session that nobody uses for so long is freed
_TICK_S = 10.0  # how often idle sessions are looked for
_PACE_STEPS = 3  # of one token, measured after one that warms up
_NEWEST_SHARE = 0.1  # of the newest batch in the mean


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a node is. `batch`: sessions in a forward of decode steps, on average, lately."""

    sessions: int
    cached_tokens: int
    reserved_tokens: int
    max_cached_tokens: int
    batch: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return {
            "sessions": self.sessions,
            "cached_tokens": self.cached_tokens,
            "reserved_tokens": self.reserved_tokens,
            "max_cached_tokens": self.max_cached_tokens,
            "batch": round(self.batch, 2),
        }


@dataclass(frozen=True, slots=True)
class _Errand:
    """What is done between two forwards. `run` is None to end the thread."""

    run: Callable[[], object] | None
    future: Future[Any]


class Engine:
    """Works the steps of many sessions on one shard, in one thread. `node`: what errors call it."""

    def __init__(
        self,
        shard: Shard,
        max_cached_tokens: int,
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = IDLE_S,
        node: str = "here",
    ) -> None:
        self.shard, self.max_cached_tokens = shard, max_cached_tokens
        self._clock = clock
        self._sessions: EngineSessions = Sessions(max_cached_tokens, idle_s)
        self._schedule: Schedule[Work] = Schedule()
        self._runner = Runner(shard, self._sessions, max_cached_tokens, clock, node)
        self._inbox: queue.SimpleQueue[Work | _Errand] = queue.SimpleQueue()
        self._mean_batch = 0.0
        self._pace = LayerPace()
        self._thread = threading.Thread(target=self._work_until_told, name="engine", daemon=True)
        self._stopping = threading.Event()

    @property
    def cached_tokens(self) -> int:
        return self._sessions.cached_tokens

    @property
    def num_sessions(self) -> int:
        return self._sessions.num_open

    def occupancy(self) -> Occupancy:
        sessions = self._sessions
        counts = sessions.num_open, sessions.cached_tokens, sessions.reserved_tokens, self.max_cached_tokens
        return Occupancy(*counts, self._mean_batch)

    def start(self) -> None:
        """torch.set_num_threads comes before: a thread keeps the number it started with."""
        self._thread.start()

    def stop(self, deadline_s: float) -> bool:
        """Finishes the forward in hand and fails what waits; False when the deadline passed first."""
        self._stopping.set()
        if not self._thread.is_alive():
            return True
        self._inbox.put(_Errand(None, Future()))  # wakes it
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def submit(self, step: Step) -> Future[StepResult]:
        """The result, or in its place Stale, Missing, Busy or EngineError."""
        work = Work(step, self._clock())
        if refusal := self._refusal(MAX_QUEUED):
            work.future.set_exception(refusal)
        else:
            self._inbox.put(work)
        return work.future

    def close_session(self, session: str, epoch: int, until: float) -> Future[bool]:
        """Frees a session and refuses its epoch from now on, until `until` by the engine's clock (time.monotonic)."""

        def close() -> bool:
            self._schedule.forget(session)
            return self._sessions.close(session, epoch, until, self._clock())

        return self._send(close)

    def session_epochs(self, most: int) -> dict[str, int]:
        """Of the sessions that are open here, those first that were idle longest."""
        return self._sessions.epochs(most)

    def drop_caches(self) -> Future[int]:
        """Frees what every session holds, but remembers their epochs and steps; how many held something."""
        return self._send(self._sessions.drop_caches)

    def measure_pace(self) -> Future[float]:
        """Milliseconds of one token through one layer, measured now: also warms up what the first step would find
        cold."""
        return self._send(self._measure_pace)

    @property
    def ms_per_layer(self) -> float | None:
        """Of one token, as it was lately."""
        return self._pace.ms

    def look_at_pace(self) -> None:
        """Measures anew where nobody works here and nothing was learnt for a while. Doesn't wait."""
        num_layers = self.shard.end_layer - self.shard.start_layer
        costs_s = (self._pace.ms or 0.0) * num_layers * (1 + _PACE_STEPS) / 1000
        if not self.num_sessions and self._pace.takes_look(self._clock(), costs_s):
            self.measure_pace()

    def _send(self, run: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        if refusal := self._refusal(MAX_QUEUED_CLOSES):
            future.set_exception(refusal)
        else:
            self._inbox.put(_Errand(run, future))
        return future

    def _refusal(self, most_queued: int) -> Busy | None:
        if self._stopping.is_set():
            return Busy("this node is stopping")
        if self._inbox.qsize() + len(self._schedule) >= most_queued:
            return Busy(f"{most_queued} steps wait here already")
        return None

    def _work_until_told(self) -> None:
        next_look = self._clock() + _TICK_S
        with torch.inference_mode():
            while not self._stopping.is_set():
                self.turn(_TICK_S)
                if self._clock() >= next_look:
                    self._expire()
                    next_look = self._clock() + _TICK_S
        self._fail_what_waits()
        self._sessions.clear()

    def turn(self, wait_s: float = 0.0) -> int:
        """Takes in what has come, waiting for it if there is nothing to do; then one forward. How many steps it had."""
        self._take_in(0.0 if len(self._schedule) else wait_s)
        started = self._gather()
        works = self._schedule.next()
        if not works:
            return 0
        runner, tasks = self._runner, self._runner.begin(works)
        outputs = runner.forward(tasks) if tasks else []
        ended = self._clock()
        self._schedule.ran(works, ended, ended - started)
        if tasks and works[0].is_decode:
            self._mean_batch += (len(tasks) - self._mean_batch) * (_NEWEST_SHARE if self._mean_batch else 1)
            if not any(isinstance(output, Exception) for output in outputs):  # which may have come at once
                self._keep_pace(tasks, ended, ended - started)
        for task, output in zip(tasks, outputs, strict=True):  # last: who is told wants to go on at once
            runner.finish(task, output)
        return len(tasks)

    def _gather(self) -> float:
        """Waits for steps that belong into the next forward and are on their way; the time when that is over."""
        now = self._clock()
        while (patience_s := self._schedule.patience_s(now)) > 0 and self._take_in(patience_s):
            now = self._clock()
        return now

    def _take_in(self, wait_s: float) -> bool:
        """Puts the steps that have come in line, and does the errands; whether there was anything."""
        inbox = self._inbox
        try:
            self._accept(inbox.get(wait_s > 0, wait_s))
            while inbox.qsize():
                self._accept(inbox.get_nowait())
        except queue.Empty:
            return False
        return True

    def _accept(self, what: Work | _Errand) -> None:
        if isinstance(what, Work):
            self._schedule.add(what, self._clock())
        elif what.run and what.future.set_running_or_notify_cancel():
            try:
                what.future.set_result(what.run())
            except Exception as error:
                what.future.set_exception(error)

    def _measure_pace(self) -> float:
        shard, layers = self.shard, (self.shard.start_layer, self.shard.end_layer)
        cache, took_s = shard.new_cache(*layers, room_tokens=1 + _PACE_STEPS), []
        inputs = [0] if shard.is_head else torch.zeros(1, shard.width)
        for position in range(1 + _PACE_STEPS):
            started = self._clock()
            [output] = shard.forward([Row(cache, position, inputs, num_logits=1 if shard.is_tail else 0)], *layers)
            if not output.isfinite().all():
                raise NotNumbers(f"layers {layers[0]}–{layers[1] - 1} give what isn't numbers (NaN or infinity)")
            took_s.append(self._clock() - started)
        ms = statistics.median(took_s[1:]) * 1000 / (layers[1] - layers[0])
        self._pace.measured(ms, self._clock())
        return ms

    def _keep_pace(self, tasks: list[Task], now: float, took_s: float) -> None:
        """`tasks`: decode steps that were one forward."""
        start, end = tasks[0].work.hop
        is_alone = len(tasks) == tasks[0].work.num_tokens == 1
        self._pace.worked(took_s * 1000 / (end - start), now, is_alone=is_alone)

    def _expire(self) -> None:
        for session in self._sessions.expire(self._clock()):
            logger.info("session %s was idle and is freed", session[:8])

    def _fail_what_waits(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._fail(self._inbox.get_nowait())
        for work in self._schedule.drain():
            self._fail(work)

    def _fail(self, what: Work | _Errand) -> None:
        if what.future.set_running_or_notify_cancel():
            what.future.set_exception(Busy("this node is stopping"))
