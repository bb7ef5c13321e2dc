"""The head's loop: prompt in chunks, then token by token, each step through this node's layers and every hop after it.

Steps are numbered here. A hop that has lost what it held says how much it still has, and the token ids from there on
are sent again through the whole route: every hop crops its cache to the step's position by itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nodes import activations
from nodes.deadline import Deadline, DeadlineOver
from nodes.downstream import DownstreamHop, HopFailed, HopRefused, HopStatistics
from nodes.engine import Engine, Step, StepResult
from nodes.hops import HopAnswer
from nodes.sampling import Sampling
from nodes.sessions import Missing
from relay import headers as names
from relay.wire import Code

logger = logging.getLogger(__name__)

MAX_REPLAYS = 3  # of one session, after a hop has lost its cache
MAX_CHUNK_TOKENS = 512  # their ids travel in a header beside the ticket (wire.MAX_META_BYTES)


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
        self, session: Session, engine: Engine, local: tuple[int, int], peer_id: str, hops: list[DownstreamHop]
    ) -> None:
        self.session, self.hops = session, hops
        self._engine, self._local, self._peer_id = engine, local, peer_id
        self._num_steps = 0
        self.statistics = HopStatistics(path="local")

    def generate(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        chunk_tokens: int,
        check: Callable[[], None],
    ) -> Iterator[int]:
        """The tokens that follow the prompt, without end. `check` is called before each step and may raise.

        Raises HopFailed, HopRefused, DeadlineOver and the engine's errors.
        """
        ids, num_cached, num_replays = list(prompt_ids), 0, 0
        while True:
            check()
            self.session.deadline.check()
            chunk = ids[num_cached : num_cached + chunk_tokens]
            is_last = num_cached + len(chunk) == len(ids)
            try:
                sampled = self.forward(chunk, num_cached, sampling if is_last else None)
            except (Missing, HopRefused) as error:
                num_replays += 1
                num_cached = _start_of_replay(error, num_cached, num_replays)
                logger.warning("session %s: replaying from position %d", self.session.id[:8], num_cached)
                continue
            num_cached += len(chunk)
            if is_last:
                ids += sampled
                yield from sampled

    def forward(self, token_ids: list[int], position: int, sampling: Sampling | None) -> tuple[int, ...]:
        """One step through every layer; the sampled ids, none when `sampling` is None."""
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
        )
        result = self._run_local(step)
        if not self.hops:
            return result.token_ids
        if result.hidden is None:
            raise HopFailed("pipeline error: this node's own layers gave no activations")
        return self.run_downstream_pipeline(result.hidden, token_ids, position, sampling)

    def run_downstream_pipeline(
        self, hidden: Tensor, token_ids: list[int], position: int, sampling: Sampling | None
    ) -> tuple[int, ...]:
        """Sends activations from hop to hop; the tail's token ids. hidden: [1, tokens, width]."""
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
        for hop in self.hops[:-1]:
            answer = hop.step(self._with_layers(common, hop), body, self.session.deadline)
            body = _checked_body(answer, hop, shape, len(body))
        tail = self.hops[-1]
        last = self._with_layers(common, tail) | {names.TOKENS: ",".join(map(str, token_ids))}
        if sampling is not None:
            last[names.SAMPLING] = sampling.to_json()
        return _token_ids(tail.step(last, body, self.session.deadline), tail)

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
            result = future.result(started)
        except (TimeoutError, CancelledError):
            future.cancel()
            raise DeadlineOver("this node's own layers took longer than the request's time") from None
        took_s = started - self.session.deadline.left_s()
        self.statistics.add("local", took_s, result.compute_ms, result.queue_ms)
        return result

    def _with_layers(self, common: Mapping[str, str], hop: DownstreamHop) -> dict[str, str]:
        own = {names.START_LAYER: str(hop.hop.start_layer), names.END_LAYER: str(hop.hop.end_layer)}
        left_ms = max(1, int(self.session.deadline.left_s() * 1000))
        return {**common, **own, names.DEADLINE_MS: str(left_ms)}


def chunk_size(asked: int, width: int, dtype: str) -> int:
    """Tokens per prefill step: the model's number, unless their activations or ids wouldn't fit in a message."""
    return max(1, min(asked, MAX_CHUNK_TOKENS, names.most_tokens(width, dtype)))


def _start_of_replay(error: Missing | HopRefused, num_cached: int, num_replays: int) -> int:
    """The position from which a hop wants the tokens again; `error` itself where that helps nobody."""
    if isinstance(error, HopRefused) and error.code != Code.MISSING:
        raise error
    held = error.num_cached if isinstance(error, HopRefused) else error.cached_tokens
    if num_replays > MAX_REPLAYS or not 0 <= held < max(num_cached, 1):
        raise HopFailed(
            f"pipeline error: a hop holds {held} tokens of {num_cached}, and replaying didn't help"
        ) from error
    return held


def _checked_body(answer: HopAnswer, hop: DownstreamHop, shape: str, num_bytes: int) -> bytes:
    if answer.headers.get(names.SHAPE) != shape or len(answer.body) != num_bytes:
        got = f"{answer.headers.get(names.SHAPE)} in {len(answer.body)} bytes"
        raise HopFailed(f"pipeline error: {hop} answered activations of {got}; {shape} in {num_bytes} were asked for")
    return answer.body


def _token_ids(answer: HopAnswer, hop: DownstreamHop) -> tuple[int, ...]:
    try:
        ids = tuple(json.loads(answer.body)["token_ids"])
    except (ValueError, KeyError, TypeError, RecursionError):
        ids = (None,)
    if not all(type(number) is int and number >= 0 for number in ids):
        raise HopFailed(f"pipeline error: {hop} answered no list of token ids")
    return ids
