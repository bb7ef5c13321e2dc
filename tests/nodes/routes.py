"""Pipelines over nodes in this process: each hop has an engine of its own, and steps cross as they would a wire."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from nodes import activations
from nodes.answers import step_answer
from nodes.deadline import Deadline
from nodes.downstream import DownstreamHop
from nodes.engine import Engine
from nodes.generation import Generation
from nodes.hops import Dialler, HopAnswer
from nodes.pipeline import Pipeline, Session
from nodes.sampling import GREEDY, Sampling
from nodes.sessions import Missing, Stale
from nodes.shard import Shard
from nodes.steps import Layers, StepHeaders
from relay import headers as names
from relay import wire
from relay.headers import Hop
from tests.nodes.engines import VOCAB, WIDTH, FakeEngine

SESSION = "5e" * 16
NUM_LAYERS = 6
STEP_DEADLINE_S = 60.0
PROMPT = [10, 20, 30, 40, 50, 60, 70]


class NodePath:
    """Answers steps with an engine of its own, as a node does, with nothing in between."""

    name = "relay"

    def __init__(self, engine: Any, layers: Layers) -> None:
        self.engine, self.layers = engine, layers
        self.asked: list[dict[str, str]] = []
        self.closed: list[str] = []
        self.spoil: Callable[[HopAnswer], HopAnswer] = lambda answer: answer

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> HopAnswer:
        if method == "DELETE":
            self.closed.append(target)
            return HopAnswer(200, {}, b"{}")
        self.asked.append(dict(headers))
        step = StepHeaders.read(headers).for_engine(body, self.layers)
        try:
            result = self.engine.submit(step).result(STEP_DEADLINE_S)
        except Missing as error:
            return refusal(wire.Code.MISSING, {names.CACHED: str(error.cached_tokens)})
        except Stale:
            return refusal(wire.Code.STALE)
        if result.hidden is None:
            answer = step_answer(result, "", headers[names.DTYPE], is_tail=True)
            return self.spoil(HopAnswer(200, answer.headers, answer.body))
        shape = {names.SHAPE: activations.format_shape(result.hidden.shape)}
        return self.spoil(HopAnswer(200, shape, activations.encode(result.hidden, headers[names.DTYPE])))

    def close(self) -> None:
        pass


def refusal(code: wire.Code, headers: Mapping[str, str] | None = None) -> HopAnswer:
    response = wire.error_response("", code, "no", headers)
    return HopAnswer(response.status, response.headers, response.body)


class OneDialler:
    prefer = "relay"

    def __init__(self, path: NodePath) -> None:
        self._path = path

    def tunnel_hop(self, hop: Hop) -> None:
        return None

    def relay_hop(self, relay_addr: str) -> Any:
        return self._path


class Route:
    """A pipeline over engines that are made for it, or over `engines` that hold a real model's layers."""

    def __init__(
        self,
        *cuts: int,
        dtype: str = "bfloat16",
        deadline_s: float = 20,
        engines: Sequence[Engine] = (),
        reserve_tokens: int = 99,
        session: str = SESSION,
    ) -> None:
        shape = _shape(engines[0].shard) if engines else Layers(0, NUM_LAYERS, NUM_LAYERS, WIDTH, VOCAB, 4096)
        spans = list(itertools.pairwise([0, *cuts, shape.num_layers]))
        self._made = [] if engines else [FakeEngine(NUM_LAYERS) for _ in spans]
        self.engines: Sequence[Any] = engines or self._made
        self.paths = [NodePath(engine, shape) for engine in self.engines[1:]]
        hops = [
            DownstreamHop(Hop(f"{number:08x}", *span, None, "ws://relay"), cast(Dialler, OneDialler(path)))
            for number, (span, path) in enumerate(zip(spans[1:], self.paths, strict=True), 2)
        ]
        allowed = Session(session, 0, "the ticket", dtype, reserve_tokens, Deadline.after(deadline_s))
        self.pipeline = Pipeline(allowed, cast(Engine, self.engines[0]), spans[0], "head", hops)

    def generate(
        self,
        prompt: list[int],
        count: int,
        chunk: int = 4,
        sampling: Sampling = GREEDY,
        check: Any = lambda: None,
        drafts: int = 0,
    ) -> list[int]:
        generation = Generation(self.pipeline, prompt, sampling, chunk, drafts, clock=lambda: 0.0)  # drafts always pay
        return [one.token_id for one in itertools.islice(generation.tokens(check), count)]

    @property
    def accepted(self) -> int:
        """Drafts that were right, as the hop table tells."""
        return int(self.pipeline.hop_table()[-1]["accepted"])

    def close(self) -> None:
        for engine in self._made:
            engine.stop()


def _shape(shard: Shard) -> Layers:
    """Of a node that holds every layer: what each may be asked is the pipeline's matter."""
    return Layers(0, shard.num_layers, shard.num_layers, shard.width, shard.vocab_size, shard.context_length)


Make = Callable[..., Route]
