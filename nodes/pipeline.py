"""One session's way through the model: each step through this node's layers and every hop after it, numbered here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nodes import activations
from nodes.answers import read_sampled
from nodes.deadline import Cancelled, Deadline, DeadlineOver
from nodes.downstream import DownstreamHop, HopFailed, HopStatistics
from nodes.drafts import MAX_DRAFTS
from nodes.engine import Engine, Step, StepResult
from nodes.hops import HopAnswer
from nodes.sampling import Sampled, Sampling, TokenLogprobs
from relay import headers as names
from relay.wire import MAX_META_BYTES

MAX_CHUNK_TOKENS = 512
_ID_BYTES = 8  # of a token id and its comma
_OTHER_HEADERS_BYTES = 1024  # of a step: all but its ids, its sampling and its ticket


@dataclass(frozen=True)
class Session:
    """What the tracker allowed: who asks, until when, and what goes with every request to a hop."""

    id: str
    epoch: int
    ticket: str
    dtype: str  # of activations on the wire
    reserve_tokens: int  # prompt and answer together
    deadline: Deadline

    def headers(self) -> dict[str, str]:
        return {names.SESSION: self.id, names.EPOCH: str(self.epoch), names.TICKET: self.ticket}


class Pipeline:
    """One session's way through the model. Used by one thread."""

    def __init__(
        self,
        session: Session,
        engine: Engine,
        local: tuple[int, int],
        peer_id: str,
        hops: list[DownstreamHop],
    ) -> None:
        self.session, self.hops = session, hops
        self._engine, self._local, self._peer_id = engine, local, peer_id
        self._num_steps = 0
        self._drafts_taken = 0 if hops else MAX_DRAFTS  # by the tail, as far as is known
        self.statistics = HopStatistics(path="local")

    def forward(
        self, token_ids: list[int], position: int, sampling: Sampling | None, num_drafts: int = 0
    ) -> list[Sampled]:
        """One step through every layer. The sampled tokens: the drafts that are right and one more, none when
        `sampling` is None."""
        self._num_steps += 1
        step = Step(
            session=self.session.id,
            epoch=self.session.epoch,
            step=self._num_steps,
            position=position,
            start_layer=self._local[0],
            end_layer=self._local[1],
            token_ids=tuple(token_ids),
            hidden=None,
            sampling=None if self.hops else sampling,
            reserve_tokens=self.session.reserve_tokens if position == 0 else 0,
            num_drafts=num_drafts,
        )
        result = self._run_local(step)
        if self.hops:
            if result.hidden is None:
                raise HopFailed("pipeline error: this node's own layers gave no activations")
            sampled = self.run_downstream_pipeline(result.hidden, token_ids, position, sampling, num_drafts)
        else:
            sampled = _sampled(result)
        if sampling is not None:
            self._count(token_ids, sampled, num_drafts)
        return sampled

    def run_downstream_pipeline(
        self, hidden: Tensor, token_ids: list[int], position: int, sampling: Sampling | None, num_drafts: int = 0
    ) -> list[Sampled]:
        """Sends activations from hop to hop; what the tail sampled. hidden: [1, tokens, width]."""
        body = activations.encode(hidden, self.session.dtype)
        shape = activations.format_shape(hidden.shape)
        common = self.session.headers() | {
            names.STEP: str(self._num_steps),
            names.POSITION: str(position),
            names.SHAPE: shape,
            names.DTYPE: self.session.dtype,
            "content-type": "application/octet-stream",
        }
        if position == 0:
            common[names.RESERVE] = str(self.session.reserve_tokens)
        if num_drafts:
            common[names.DRAFTS] = str(num_drafts)
        for hop in self.hops[:-1]:
            answer = hop.step(self._with_layers(common, hop), body, self.session.deadline)
            body = _checked_body(answer, hop, shape, len(body))
        tail = self.hops[-1]
        last = self._with_layers(common, tail) | {names.TOKENS: ",".join(map(str, token_ids))}
        if sampling is not None:
            last[names.SAMPLING] = sampling.to_json()
        answer = tail.step(last, body, self.session.deadline)
        self._drafts_taken = _drafts_taken(answer)
        try:
            return read_sampled(answer.body)
        except ValueError as error:
            raise HopFailed(f"pipeline error: {tail} answered no list of token ids: {error}") from None

    def release(self) -> None:
        """Frees the session on every hop."""
        for hop in self.hops:
            hop.release(self.session.id, self.session.headers())

    def close(self) -> None:
        """Closes the connections to the hops and leaves what they hold to whoever owns the session now."""
        for hop in self.hops:
            hop.close()

    def hop_table(self) -> list[dict[str, Any]]:
        own = self.statistics.as_dict(self._peer_id, self._local)
        return [own, *(hop.statistics.as_dict(hop.hop.peer_id, hop.layers) for hop in self.hops)]

    def _run_local(self, step: Step) -> StepResult:
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
        return result

    def room_for_drafts(self, num_tokens: int) -> int:
        """Of a step that has one token more: none may be sampled that the session has no room for."""
        return min(self.session.reserve_tokens - num_tokens - 1, self._drafts_taken)

    def _count(self, token_ids: list[int], sampled: list[Sampled], num_drafts: int) -> None:
        drafts, accepted = token_ids[len(token_ids) - num_drafts :], [one.token_id for one in sampled[:-1]]
        if not 1 <= len(sampled) <= num_drafts + 1 or accepted != drafts[: len(accepted)]:
            told = f"{len(sampled)} tokens where {num_drafts} drafts were to be checked"
            raise HopFailed(f"pipeline error: {self.hops[-1] if self.hops else 'this node'} answered {told}")
        statistics = self.hops[-1].statistics if self.hops else self.statistics
        statistics.drafted += num_drafts
        statistics.accepted += len(accepted)

    def _with_layers(self, common: Mapping[str, str], hop: DownstreamHop) -> dict[str, str]:
        own = {names.START_LAYER: str(hop.hop.start_layer), names.END_LAYER: str(hop.hop.end_layer)}
        left_ms = max(1, int(self.session.deadline.left_s() * 1000))
        return {**common, **own, names.DEADLINE_MS: str(left_ms)}


def chunk_size(asked: int, width: int, dtype: str, header_bytes: int = 0) -> int:
    """Tokens per prefill step: the model's number, unless their activations or ids wouldn't fit in a message.

    header_bytes: of the ticket and the sampling, beside which the ids travel. 0 where not even one id fits.
    """
    room = (MAX_META_BYTES - _OTHER_HEADERS_BYTES - header_bytes) // _ID_BYTES
    return max(0, min(max(1, min(asked, MAX_CHUNK_TOKENS, names.most_tokens(width, dtype))), room))


def _awaited(future: Future[StepResult], deadline: Deadline) -> StepResult:
    """Raises TimeoutError when the deadline is over, and what the future does."""
    while True:
        try:
            return future.result(deadline.turn_s())
        except TimeoutError:
            if deadline.is_over:
                raise


def _checked_body(answer: HopAnswer, hop: DownstreamHop, shape: str, num_bytes: int) -> bytes:
    if answer.headers.get(names.SHAPE) != shape or len(answer.body) != num_bytes:
        got = f"{answer.headers.get(names.SHAPE)} in {len(answer.body)} bytes"
        raise HopFailed(f"pipeline error: {hop} answered activations of {got}; {shape} in {num_bytes} were asked for")
    return answer.body


def _sampled(result: StepResult) -> list[Sampled]:
    logprobs: Sequence[TokenLogprobs | None] = result.logprobs or [None] * len(result.token_ids)
    return [Sampled(token_id, one) for token_id, one in zip(result.token_ids, logprobs, strict=True)]


def _drafts_taken(answer: HopAnswer) -> int:
    """Of one step, by a tail that says so: another would take drafts for the text itself."""
    told = answer.headers.get(names.DRAFTS, "")
    return min(int(told), MAX_DRAFTS) if told.isascii() and told.isdigit() and len(told) < 4 else 0
