"""One session's way through the model: each step through this node's layers and every hop after it, numbered here.

The route may change between two steps, and in the middle of one: `switch`. Hops that stay keep what they hold, what has
been worked of the step in hand stays worked, and `catch_up` gives new hops what they lack, where that was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from nodes import activations
from nodes.boundaries import Boundaries, Budget
from nodes.deadline import Cancelled, Deadline, DeadlineOver
from nodes.downstream import DownstreamHop, HopFailed, HopStatistics
from nodes.drafts import MAX_DRAFTS
from nodes.engine import Engine, Step, StepResult
from nodes.forwarding import Session, StepInHand
from nodes.grammar import Grammar
from nodes.route import Route
from nodes.sampling import Sampled, Sampling, TokenLogprobs
from nodes.timings import StepLog
from relay.wire import Code


class Pipeline:
    """One session's way through the model. Used by one thread."""

    def __init__(
        self,
        session: Session,
        engine: Engine,
        local: tuple[int, int],
        peer_id: str,
        hops: list[DownstreamHop],
        kept: Boundaries | None = None,
        grammar: Grammar | None = None,
        log: StepLog | None = None,
    ) -> None:
        self._log = log or StepLog()
        self._route = Route(session, local, hops)
        self._kept = kept or Boundaries(Budget(0))
        self._engine, self._peer_id, self._grammar = engine, peer_id, grammar
        self._num_steps = 0
        self._in_hand: StepInHand | None = None
        self._drafts_taken = 0 if hops else MAX_DRAFTS  # by the tail, as far as is known
        self.statistics = HopStatistics(path="local")

    @property
    def session(self) -> Session:
        return self._route.session

    @property
    def hops(self) -> list[DownstreamHop]:
        return self._route.hops

    def forward(
        self, token_ids: Sequence[int], position: int, sampling: Sampling | None, num_drafts: int = 0
    ) -> list[Sampled]:
        """One step through every layer. The sampled tokens: the drafts that are right and one more, none when
        `sampling` is None. When it has raised HopFailed or HopRefused, the same step again goes on where it was."""
        grammar = self._grammar if sampling is not None and sampling.grammar else None
        new = StepInHand(self._num_steps + 1, tuple(token_ids), position, sampling, num_drafts, grammar)
        step, started = self._taken_up(new), self._log.clock()
        if step.boundary:
            sampled = self.run_downstream_pipeline(step)
        else:
            result = self._run_local(step)
            sampled = self.run_downstream_pipeline(step) if self.hops else _sampled(result)
        self._in_hand = None
        if sampling is not None:
            self._count(step, sampled)
        self._note(step, started)
        return sampled

    def run_downstream_pipeline(self, step: StepInHand) -> list[Sampled]:
        """The step from hop to hop, from the boundary on that it has reached; what the tail sampled."""
        sampled: list[Sampled] = []
        for hop in self.hops:
            if hop.hop.start_layer >= step.boundary:
                self._kept.keep(step.boundary, step.position, len(step.token_ids), step.body)
                sampled = self._ask(hop, step)
        return sampled

    def _ask(self, hop: DownstreamHop, step: StepInHand) -> list[Sampled]:
        """What it sampled, if it is the tail."""
        if hop is not self.hops[-1]:
            step.through(hop, self.session, self._usual_s(hop))
            return []
        sampled, self._drafts_taken = step.to_tail(hop, self.session, self._usual_s(hop))
        return sampled

    def switch(self, session: Session, local: tuple[int, int], hops: list[DownstreamHop]) -> None:
        """The route of another epoch."""
        tail = self.hops[-1:]
        self._route.switch(session, local, hops)
        if self.hops[-1:] != tail:
            self._drafts_taken = 0 if self.hops else MAX_DRAFTS
        self._kept.only([hop.hop.start_layer for hop in self.hops])

    def num_held(self, position: int) -> int:
        """Of the tokens before `position`, how many every hop holds: from there they must go through the route."""
        return self._route.num_held(position)

    def catch_up(self, token_ids: Sequence[int], chunk_tokens: int, check: Callable[[], None]) -> None:
        """Gives each hop what it lacks of these tokens, the session's first, where the activations before it were
        kept. `check` is called before each step and may raise; else it raises as `forward` does."""
        for hop in self.hops:
            while hop.num_held < len(token_ids) and self._kept.has(hop.hop.start_layer, len(token_ids)):
                check()
                self.session.deadline.check()
                self._fill(hop, token_ids[hop.num_held : len(token_ids)][:chunk_tokens])

    def _fill(self, hop: DownstreamHop, token_ids: Sequence[int]) -> None:
        self._num_steps += 1
        step = StepInHand(self._num_steps, tuple(token_ids), hop.num_held, None)
        body = self._kept.get(hop.hop.start_layer, step.position, step.end)
        step.arrive(hop.hop.start_layer, body, self.session.dtype)
        self._ask(hop, step)
        if hop is not self.hops[-1] and not self._kept.has(step.boundary, step.end):
            self._kept.keep(step.boundary, step.position, len(step.token_ids), step.body)

    def release(self) -> None:
        """Frees the session on every hop."""
        self._kept.only(())
        self._route.release()

    def close(self) -> None:
        """Closes the connections to the hops and leaves what they hold to whoever owns the session now."""
        self._kept.only(())
        self._route.close()

    def hop_table(self) -> list[dict[str, Any]]:
        own = self.statistics.as_dict(self._peer_id, self._route.local)
        return [own, *(hop.statistics.as_dict(hop.hop.peer_id, hop.layers) for hop in self.hops)]

    def left_table(self) -> list[dict[str, Any]]:
        """Of hops that the session has gone on without, each with the last epoch of its route."""
        left = self._route.left()
        return [hop.statistics.as_dict(hop.hop.peer_id, hop.layers) | {"epoch": epoch} for hop, epoch in left]

    def is_due(self) -> bool:
        """Those who look on while it runs are to be told how it goes: the last time is a while ago."""
        return self._log.is_due()

    def last_steps(self) -> list[dict[str, Any]]:
        return self._log.as_list()

    @property
    def compute_ms(self) -> float:
        """Of all steps, on every hop of now."""
        return self.statistics.compute_ms + sum(hop.statistics.compute_ms for hop in self.hops)

    def room_for_drafts(self, num_tokens: int) -> int:
        """Of a step that has one token more: none may be sampled that the session has no room for."""
        return min(self.session.reserve_tokens - num_tokens - 1, self._drafts_taken)

    def _taken_up(self, step: StepInHand) -> StepInHand:
        """The step in hand if it is this one and can go on from its boundary, under a number that is still the
        highest; else this one from the beginning."""
        in_hand = self._in_hand
        borders = [self._route.local[1], *(hop.hop.end_layer for hop in self.hops)]
        if in_hand and in_hand.is_same(step) and in_hand.boundary in borders[:-1]:
            before = self.hops[: borders.index(in_hand.boundary)]
            if all(hop.num_held == step.end for hop in before):
                if in_hand.number != self._num_steps:  # others came in between
                    in_hand.number = self._num_steps = step.number
                return in_hand
        self._num_steps, self._in_hand = step.number, step
        return step

    def _run_local(self, step: StepInHand) -> StepResult:
        result = self._work_local(
            Step(
                session=self.session.id,
                epoch=self.session.epoch,
                step=step.number,
                position=step.position,
                start_layer=self._route.local[0],
                end_layer=self._route.local[1],
                token_ids=step.token_ids,
                hidden=None,
                sampling=None if self.hops else step.sampling,
                reserve_tokens=self.session.reserve_tokens if step.position == 0 else 0,
                num_drafts=step.num_drafts,
                grammar=None if self.hops else step.grammar,
            )
        )
        if self.hops:
            if result.hidden is None:
                raise HopFailed("pipeline error: this node's own layers gave no activations")
            body = activations.encode(result.hidden, self.session.dtype)
            step.arrive(self._route.local[1], body, self.session.dtype)
        return result

    def _work_local(self, step: Step) -> StepResult:
        started = self.session.deadline.left_s()
        future = self._engine.submit(step)
        try:
            result = _awaited(future, self.session.deadline)
        except (TimeoutError, CancelledError):
            future.cancel()
            if self.session.deadline.is_cancelled:
                raise Cancelled from None
            raise DeadlineOver("this node's own layers took longer than the request's time") from None
        took_s = started - self.session.deadline.left_s()
        self.statistics.add("local", took_s, result.compute_ms, result.queue_ms)
        self.statistics.reach(step.position + len(step.token_ids) - step.num_drafts)
        return result

    def _usual_s(self, hop: DownstreamHop) -> float:
        """What this node's own slowest step would have taken for so many layers."""
        start, end = self._route.local
        return self.statistics.slowest_s * (hop.hop.end_layer - hop.hop.start_layer) / (end - start)

    def _count(self, step: StepInHand, sampled: list[Sampled]) -> None:
        drafts = list(step.token_ids[len(step.token_ids) - step.num_drafts :])
        accepted = [one.token_id for one in sampled[:-1]]
        tail = self.hops[-1] if self.hops else None
        if not 1 <= len(sampled) <= step.num_drafts + 1 or accepted != drafts[: len(accepted)]:
            told = f"{len(sampled)} tokens where {step.num_drafts} drafts were to be checked"
            raise HopFailed(f"pipeline error: {tail or 'this node'} answered {told}", tail, Code.INTERNAL)
        statistics = tail.statistics if tail else self.statistics
        statistics.drafted += step.num_drafts
        statistics.accepted += len(accepted)
        for one in self._all_statistics():
            one.reach(step.sure_end + len(accepted))

    def _note(self, step: StepInHand, started: float) -> None:
        """What it took at each hop; in the percentiles are those that only add to the answer."""
        of_hops, num_tokens = self._all_statistics(), len(step.token_ids)
        if step.sampling is not None and num_tokens == 1 + step.num_drafts:
            for one in of_hops:
                one.decoding.add(one.last)
        times = tuple([one.last for one in of_hops])
        self._log.add(step.number, self.session.epoch, step.position, num_tokens, started, times)

    def _all_statistics(self) -> list[HopStatistics]:
        return [self.statistics, *[hop.statistics for hop in self.hops]]


def _awaited(future: Future[StepResult], deadline: Deadline) -> StepResult:
    """Raises TimeoutError when the deadline is over, and what the future does."""
    while True:
        try:
            return future.result(deadline.turn_s())
        except TimeoutError:
            if deadline.is_over:
                raise


def _sampled(result: StepResult) -> list[Sampled]:
    logprobs: Sequence[TokenLogprobs | None] = result.logprobs or [None] * len(result.token_ids)
    return [Sampled(token_id, one) for token_id, one in zip(result.token_ids, logprobs, strict=True)]
