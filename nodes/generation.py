"""The head's loop: the prompt in chunks, then step by step what follows it, with drafts where they pay.

A hop that has lost what it held says how much it still has, and the token ids from there on are sent again through the
whole route: every hop crops its cache to the step's position by itself. The same crops drafts that weren't right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from nodes.downstream import HopFailed, HopRefused
from nodes.drafts import Drafter
from nodes.pipeline import Pipeline
from nodes.sampling import Sampled, Sampling
from nodes.sessions import Missing
from relay.wire import Code

logger = logging.getLogger(__name__)

MAX_REPLAYS = 3  # of one session, after a hop has lost its cache


class Generation:
    """One answer as it grows. Used by one thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        prompt_ids: list[int],
        sampling: Sampling,
        chunk_tokens: int,
        max_drafts: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pipeline, self._sampling, self._chunk_tokens, self._clock = pipeline, sampling, chunk_tokens, clock
        self._ids, self._num_prompt = list(prompt_ids), len(prompt_ids)
        self._num_cached = 0  # tokens that every hop holds
        self._num_replays = 0
        self._drafter = Drafter(min(max_drafts, chunk_tokens - 1))
        self._drafter.extend(prompt_ids)

    def tokens(self, check: Callable[[], None]) -> Iterator[Sampled]:
        """Those that follow the prompt, without end. `check` is called before each step and may raise.

        Raises HopFailed, HopRefused, DeadlineOver and the engine's errors.
        """
        while True:
            check()
            self._pipeline.session.deadline.check()
            try:
                yield from self._step()
            except (Missing, HopRefused) as error:
                self._replay(error)

    def _step(self) -> list[Sampled]:
        """The tokens that one step gives; none while the prompt goes in."""
        ids = self._ids
        chunk = ids[self._num_cached : self._num_cached + self._chunk_tokens]
        end = self._num_cached + len(chunk)
        if end < len(ids):
            self._pipeline.forward(chunk, self._num_cached, None)
            self._num_cached = end
            return []
        is_next = len(chunk) == 1 and end > self._num_prompt  # no part of the prompt and no replay
        drafts = self._drafter.propose(self._pipeline.room_for_drafts(len(ids))) if is_next else []
        started = self._clock()
        sampled = self._pipeline.forward([*chunk, *drafts], self._num_cached, self._sampling, len(drafts))
        new_ids = [one.token_id for one in sampled]
        if is_next:
            self._drafter.learn(len(drafts), new_ids, self._clock() - started)
        else:
            self._drafter.extend(new_ids)
        self._num_cached = end + len(new_ids) - 1  # drafts that were right are in every cache
        ids += new_ids
        return sampled

    def _replay(self, error: Missing | HopRefused) -> None:
        """From the position where a hop wants the tokens again; `error` itself where that helps nobody."""
        if isinstance(error, HopRefused) and error.code != Code.MISSING:
            raise error
        self._num_replays += 1
        held = error.num_cached if isinstance(error, HopRefused) else error.cached_tokens
        if self._num_replays > MAX_REPLAYS or not 0 <= held < max(self._num_cached, 1):
            lost = f"a hop holds {held} tokens of {self._num_cached}, and replaying didn't help"
            raise HopFailed(f"pipeline error: {lost}") from error
        self._num_cached = held
        logger.warning("session %s: replaying from position %d", self._pipeline.session.id[:8], held)
