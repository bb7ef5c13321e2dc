"""An engine for tests of nodes: the real bookkeeping of sessions, and arithmetic that a test can follow.

Activations are zeros but for the token id in the first two places; the tail answers what `next_token` says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from nodes.engine import EngineError, Occupancy, Step, StepResult
from nodes.sampling import TokenLogprobs
from nodes.sessions import Sessions

WIDTH = 8
VOCAB = 512


def count_up(position: int, last_id: int) -> int:
    return (last_id + 1) % VOCAB


class FakeEngine:
    def __init__(
        self,
        num_layers: int = 4,
        next_token: Callable[[int, int], int] = count_up,
        max_cached_tokens: int = 10_000,
    ) -> None:
        self.num_layers, self.next_token = num_layers, next_token
        self.sessions: Sessions[Any, StepResult] = Sessions(max_cached_tokens, idle_s=600)
        self.steps: list[Step] = []
        self.closed: list[tuple[str, int]] = []  # (session, epoch), whatever came of it
        self.fail_with: Exception | None = None
        self.may_work = threading.Event()  # cleared: steps wait for it
        self.may_work.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fake-engine")

    @property
    def cached_tokens(self) -> int:
        return self.sessions.cached_tokens

    @property
    def num_sessions(self) -> int:
        return self.sessions.num_open

    def occupancy(self) -> Occupancy:
        held = self.sessions
        return Occupancy(held.num_open, held.cached_tokens, held.reserved_tokens, held._max_cached_tokens)

    def submit(self, step: Step) -> Future[StepResult]:
        return self._thread.submit(self._work, step)

    def close_session(self, session: str, epoch: int, until: float) -> Future[bool]:
        self.closed.append((session, epoch))
        return self._thread.submit(self.sessions.close, session, epoch, until, time.monotonic())

    def session_epochs(self, most: int) -> dict[str, int]:
        return self.sessions.epochs(most)

    def drop_caches(self) -> Future[int]:
        return self._thread.submit(self.sessions.drop_caches)

    def stop(self, deadline_s: float = 1) -> bool:
        self.may_work.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        return True

    def _work(self, step: Step) -> StepResult:
        assert self.may_work.wait(30)
        if self.fail_with:
            raise self.fail_with
        session, kept = self.sessions.begin(step.key(), time.monotonic())
        if kept is not None:
            return kept
        self.steps.append(step)
        hidden = step.hidden if step.hidden is not None else _embed(step.token_ids)
        is_tail = step.end_layer == self.num_layers
        if is_tail and not torch.equal(hidden, _embed(step.token_ids).to(hidden.dtype)):
            raise EngineError("the activations aren't those of the ids")
        sampled = tuple(self._sampled(step)) if step.sampling else ()
        result = StepResult(None if is_tail else hidden, sampled, 0.5, 2.0, self._logprobs(step, sampled))
        self.sessions.finish(session, step.key(), step.token_ids, result)
        return result

    def _sampled(self, step: Step) -> Iterator[int]:
        """What follows each of the last tokens, up to the first that isn't the draft."""
        for number in range(step.num_tokens - step.num_drafts - 1, step.num_tokens):
            token_id = self.next_token(step.position + number + 1, step.token_ids[number])
            yield token_id
            if [token_id] != list(step.token_ids[number + 1 : number + 2]):
                return

    def _logprobs(self, step: Step, sampled: tuple[int, ...]) -> tuple[TokenLogprobs, ...] | None:
        """Each token half as probable as its id says."""
        if step.sampling is None or step.sampling.top_logprobs is None:
            return None
        top = [(rank, -1.5 - rank) for rank in range(step.sampling.top_logprobs)]
        return tuple(TokenLogprobs(-token_id / 2, tuple(top)) for token_id in sampled)


def _embed(token_ids: tuple[int, ...]) -> torch.Tensor:
    hidden = torch.zeros(1, len(token_ids), WIDTH, dtype=torch.bfloat16)
    ids = torch.tensor(token_ids)
    hidden[0, :, 0], hidden[0, :, 1] = ids // 2, ids % 2  # whole numbers are exact in bfloat16 up to 256
    return hidden
