"""The head's loop: the prompt in chunks, then step by step what follows it, with drafts where they pay.

A hop that has lost what it held says how much it still has, and one that was lost itself is replaced (failover.py).
What a hop lacks it is given alone from what was kept of it (boundaries.py). Where that isn't enough, the token ids from
there are sent again through the whole route: every hop crops its cache to the step's position by itself. The same crops
drafts that weren't right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from nodes.downstream import HopFailed, HopRefused
from nodes.drafts import Drafter
from nodes.failover import Failover
from nodes.pipeline import Pipeline
from nodes.sampling import Sampled, Sampling
from nodes.sessions import Missing
from relay.wire import Code

logger = logging.getLogger(__name__)

MAX_REPLAYS = 3  # of one hop, after it has lost its cache


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
        failover: Failover | None = None,
    ) -> None:
        self._pipeline, self._failover = pipeline, failover or Failover(pipeline)
        self._sampling, self._chunk_tokens, self._clock = sampling, chunk_tokens, clock
        self._ids, self._num_prompt = list(prompt_ids), len(prompt_ids)
        self._num_cached = 0  # tokens that every hop holds
        self._num_worked = 0  # tokens that have been through every hop once: below it, steps are done again
        self._num_own_replays = 0
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
                self._catch_up(check)
                sampled = self._step()
            except Missing as error:
                self._go_back(error)
            except (HopFailed, HopRefused) as error:
                self._recover(error)
            else:
                self._failover.worked(bool(sampled))
                yield from sampled

    def _catch_up(self, check: Callable[[], None]) -> None:
        """So that every hop holds the tokens so far; back to where one doesn't and can't be given them alone."""
        pipeline, position = self._pipeline, self._num_cached
        held = pipeline.num_held(position)
        if held == position:
            return
        session, before_ms = pipeline.session.id[:8], pipeline.compute_ms
        pipeline.catch_up(self._ids[:position], self._chunk_tokens, check)
        self._num_cached = pipeline.num_held(position)
        if self._num_cached > held:
            logger.info("session %s: a hop was given %d tokens from what was kept", session, self._num_cached - held)
            self._failover.replayed("activations", self._num_cached - held, pipeline.compute_ms - before_ms)
        if self._num_cached < position:
            logger.warning("session %s: replaying from position %d", session, self._num_cached)

    def _step(self) -> list[Sampled]:
        """The tokens that one step gives; none while the prompt goes in."""
        ids = self._ids
        chunk = ids[self._num_cached : self._num_cached + self._chunk_tokens]
        end = self._num_cached + len(chunk)
        if end < len(ids):
            self._forward(chunk, None)
            self._num_cached = end
            return []
        is_next = len(chunk) == 1 and end > self._num_prompt  # no part of the prompt and no replay
        drafts = self._drafter.propose(self._pipeline.room_for_drafts(len(ids))) if is_next else []
        started = self._clock()
        sampled = self._forward([*chunk, *drafts], self._sampling, len(drafts))
        new_ids = [one.token_id for one in sampled]
        if is_next:
            self._drafter.learn(len(drafts), new_ids, self._clock() - started)
        else:
            self._drafter.extend(new_ids)
        self._num_cached = end + len(new_ids) - 1  # drafts that were right are in every cache
        ids += new_ids
        return sampled

    def _forward(self, token_ids: list[int], sampling: Sampling | None, num_drafts: int = 0) -> list[Sampled]:
        pipeline, position = self._pipeline, self._num_cached
        before_ms, num_again = pipeline.compute_ms, min(self._num_worked - position, len(token_ids))
        sampled = pipeline.forward(token_ids, position, sampling, num_drafts)
        if num_again > 0:
            self._failover.replayed("tokens", num_again, pipeline.compute_ms - before_ms)
        self._num_worked = max(self._num_worked, position + len(token_ids) - num_drafts)
        return sampled

    def _recover(self, error: HopFailed | HopRefused) -> None:
        """What a hop has lost goes in again; a hop that is lost itself is left."""
        hop = error.hop
        if isinstance(error, HopRefused) and error.code == Code.MISSING and hop:
            hop.num_replays += 1
            if hop.num_replays <= MAX_REPLAYS and 0 <= error.num_cached < max(hop.num_held, 1):
                hop.num_held = error.num_cached
                return
            held = f"{hop} holds {error.num_cached} tokens of {self._num_cached}, and replaying didn't help"
            error = HopFailed(f"pipeline error: {held}", hop, Code.MISSING)
        self._failover.lost(error, len(self._ids))

    def _go_back(self, error: Missing) -> None:
        """To where this node's own layers want the tokens again."""
        self._num_own_replays += 1
        held = error.cached_tokens
        if self._num_own_replays > MAX_REPLAYS or not 0 <= held < max(self._num_cached, 1):
            lost = f"this node holds {held} tokens of {self._num_cached}, and replaying didn't help"
            raise HopFailed(f"pipeline error: {lost}") from error
        logger.warning("session %s: replaying from position %d", self._pipeline.session.id[:8], held)
        self._num_cached = held
