"""Pipelines over nodes in this process: each hop has an engine of its own, and steps cross as they would a wire."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from nodes import activations
from nodes.answers import engine_error, step_answer
from nodes.boundaries import Boundaries, Budget
from nodes.compiling import Compiler
from nodes.deadline import Deadline
from nodes.downstream import DownstreamHop
from nodes.engine import Engine, GrammarFailed, NoGrammar
from nodes.failover import Failover
from nodes.forwarding import Session
from nodes.generation import Generation
from nodes.grammar import Grammar, Grammars
from nodes.hops import Dialler, HopAnswer, HopError
from nodes.pipeline import Pipeline
from nodes.reroute import Loss, NextRoute
from nodes.sampling import GREEDY, Sampling
from nodes.sessions import Missing, Stale
from nodes.shard import Shard
from nodes.steps import Layers, StepHeaders
from relay import headers as names
from relay import wire
from relay.headers import Hop, Ticket
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
        self.grammars: Grammars | None = None  # without: a node that has no tokenizer
        self.asked: list[dict[str, str]] = []
        self.closed: list[tuple[str, str]] = []  # sessions, and the tickets under which they were freed
        self.dies_at = -1  # asked so often, it is gone: without an answer, for ever
        self.is_dead = False
        self.spoil: Callable[[HopAnswer], HopAnswer] = lambda answer: answer

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> HopAnswer:
        if self.is_dead:
            raise HopError("no such peer")
        if method == "DELETE":
            self.closed.append((target, headers[names.TICKET]))
            return HopAnswer(200, {}, b"{}")
        self.asked.append(dict(headers))
        if len(self.asked) == self.dies_at:
            self.is_dead = True
            raise HopError("cut")
        told = StepHeaders.read(headers)
        step, text = told.for_engine(body, self.layers), told.grammar_text(body)
        try:
            result = Compiler(self.grammars, self.engine.submit).submit(step, text).result(STEP_DEADLINE_S)
        except Missing as error:
            return refusal(wire.Code.MISSING, {names.CACHED: str(error.cached_tokens)})
        except Stale:
            return refusal(wire.Code.STALE)
        except (NoGrammar, GrammarFailed) as error:
            refused = engine_error("", error)
            return HopAnswer(refused.status, refused.headers, refused.body)
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
    patience_s = 10.0

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
        kept_bytes: int = 0,
        grammar: Grammar | None = None,
    ) -> None:
        self.shape = shape = (
            _shape(engines[0].shard) if engines else Layers(0, NUM_LAYERS, NUM_LAYERS, WIDTH, VOCAB, 4096)
        )
        spans = list(itertools.pairwise([0, *cuts, shape.num_layers]))
        self._made = [] if engines else [FakeEngine(NUM_LAYERS) for _ in spans]
        self.engines: Sequence[Any] = engines or self._made
        self.paths = [NodePath(engine, shape) for engine in self.engines[1:]]
        self.ways = {peer_id(number): path for number, path in enumerate(self.paths, 2)}
        hops = [
            self.new_hop(Hop(peer_id(number), *span, None, "ws://relay")) for number, span in enumerate(spans[1:], 2)
        ]
        allowed = Session(session, 0, "the ticket", dtype, reserve_tokens, Deadline.after(deadline_s))
        self.keeping = Budget(kept_bytes)
        kept = Boundaries(self.keeping)
        self.pipeline = Pipeline(allowed, cast(Engine, self.engines[0]), spans[0], "head", hops, kept, grammar)
        self.tracker = FakeRerouter(session, peer_id(1), dtype)
        self.pauses_s: list[float] = []
        self.while_waiting: Callable[[], object] = lambda: None
        self.failover = Failover(self.pipeline, None, self.tracker.allow, self.new_hop, wait=self._pause)

    def new_hop(self, hop: Hop) -> DownstreamHop:
        return DownstreamHop(hop, cast(Dialler, OneDialler(self.ways[hop.peer_id])))

    def add(self, number: int, engine: Any = None) -> NodePath:
        """A node that may take over; from now on the head asks its tracker when a hop is lost."""
        made = engine or FakeEngine(NUM_LAYERS)
        if engine is None:
            self._made.append(made)
        self.ways[peer_id(number)] = NodePath(made, self.shape)
        self.failover.rerouter = self.tracker
        return self.ways[peer_id(number)]

    def _pause(self, deadline: Deadline, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.while_waiting()

    def generate(
        self,
        prompt: list[int],
        count: int,
        chunk: int = 4,
        sampling: Sampling = GREEDY,
        check: Any = lambda: None,
        drafts: int = 0,
    ) -> list[int]:
        def clock() -> float:  # drafts always pay
            return 0.0

        generation = Generation(self.pipeline, prompt, sampling, chunk, drafts, clock, self.failover)
        return [one.token_id for one in itertools.islice(generation.tokens(check), count)]

    @property
    def accepted(self) -> int:
        """Drafts that were right, as the hop table tells."""
        return int(self.pipeline.hop_table()[-1]["accepted"])

    def close(self) -> None:
        for engine in self._made:
            engine.stop()


class FakeRerouter:
    """A tracker that answers from a list: a route as (peer number, start, end) of the hops after the head, or an
    error; the last stays."""

    def __init__(self, session: str, head: str, dtype: str) -> None:
        self._session, self._head, self._dtype = session, head, dtype
        self.answers: list[Sequence[tuple[int, int, int]] | Exception] = []
        self.asked: list[tuple[int, Loss, int, list[str]]] = []
        self.deadlines_s: list[float] = []

    def ask(
        self, session: str, epoch: int, loss: Loss, position: int, failed: Sequence[str], deadline: Deadline
    ) -> NextRoute:
        assert session == self._session
        self.asked.append((epoch, loss, position, list(failed)))
        self.deadlines_s.append(deadline.left_s())
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        hops = tuple(Hop(peer_id(number), start, end, None, "ws://relay") for number, start, end in answer)
        return NextRoute(epoch + 1, f"ticket {epoch + 1}", hops)

    def allow(self, ticket_text: str, epoch: int, hops: list[Hop]) -> Ticket:
        assert ticket_text == f"ticket {epoch}"
        signed = [(hop.peer_id, hop.start_layer, hop.end_layer) for hop in hops]
        route = ((self._head, 0, signed[0][1]), *signed)
        return Ticket("k", self._session, epoch, "f" * 64, self._head, route, self._dtype, 50, 7, 0)


def peer_id(number: int) -> str:
    return f"{number:08x}"


def _shape(shard: Shard) -> Layers:
    """Of a node that holds every layer: what each may be asked is the pipeline's matter."""
    return Layers(0, shard.num_layers, shard.num_layers, shard.width, shard.vocab_size, shard.context_length)


Make = Callable[..., Route]
