from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import torch

from nodes import activations
from nodes.answers import step_answer
from nodes.deadline import Deadline, DeadlineOver
from nodes.downstream import DownstreamHop, HopFailed, HopRefused
from nodes.engine import Engine, EngineError
from nodes.events import Cancelled
from nodes.generation import MAX_REPLAYS, Generation
from nodes.hops import Dialler, HopAnswer, HopError
from nodes.pipeline import MAX_CHUNK_TOKENS, Pipeline, Session, chunk_size
from nodes.sampling import GREEDY, Sampling
from nodes.sessions import Missing, Stale
from nodes.steps import Layers, StepHeaders
from relay import headers as names
from relay import wire
from relay.headers import Hop
from tests.nodes.engines import VOCAB, WIDTH, FakeEngine

SESSION = "5e" * 16
NUM_LAYERS = 6


class NodePath:
    """Answers steps with an engine of its own, as a node does, with nothing in between."""

    name = "relay"

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.asked: list[dict[str, str]] = []
        self.closed: list[str] = []
        self.spoil: Callable[[HopAnswer], HopAnswer] = lambda answer: answer

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> HopAnswer:
        if method == "DELETE":
            self.closed.append(target)
            return HopAnswer(200, {}, b"{}")
        self.asked.append(dict(headers))
        layers = Layers(0, NUM_LAYERS, NUM_LAYERS, WIDTH, VOCAB, 4096)
        step = StepHeaders.read(headers).for_engine(body, layers)
        try:
            result = self.engine.submit(step).result(5)
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
    """A pipeline over nodes in this process."""

    def __init__(self, *cuts: int, dtype: str = "bfloat16", deadline_s: float = 20) -> None:
        borders = [0, *cuts, NUM_LAYERS]
        spans = list(itertools.pairwise(borders))
        self.engines = [FakeEngine(NUM_LAYERS) for _ in spans]
        self.paths = [NodePath(engine) for engine in self.engines[1:]]
        hops = [
            DownstreamHop(Hop(f"{number:08x}", *span, None, "ws://relay"), cast(Dialler, OneDialler(path)))
            for number, (span, path) in enumerate(zip(spans[1:], self.paths, strict=True), 2)
        ]
        session = Session(SESSION, 0, "the ticket", dtype, 99, Deadline.after(deadline_s))
        self.pipeline = Pipeline(session, cast(Engine, self.engines[0]), spans[0], "head", hops)

    def generate(
        self,
        prompt: list[int],
        count: int,
        chunk: int = 4,
        sampling: Sampling = GREEDY,
        check: Any = lambda: None,
        drafts: int = 0,
    ) -> list[int]:
        generation = Generation(self.pipeline, prompt, sampling, chunk, drafts)
        return [one.token_id for one in itertools.islice(generation.tokens(check), count)]

    def close(self) -> None:
        for engine in self.engines:
            engine.stop()


@pytest.fixture
def route() -> Any:
    made: list[Route] = []

    def make(*cuts: int, **options: Any) -> Route:
        made.append(Route(*cuts, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


Make = Callable[..., Route]
PROMPT = [10, 20, 30, 40, 50, 60, 70]


@pytest.mark.parametrize("cuts", [(), (2,), (1, 5), (1, 2, 3)])
def test_the_tokens_are_those_of_one_node(route: Make, cuts: tuple[int, ...]) -> None:
    assert route(*cuts).generate(PROMPT, 5) == [71, 72, 73, 74, 75]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9])
def test_a_prompt_goes_in_chunks_of_a_fixed_size_and_only_the_last_is_sampled(route: Make, length: int) -> None:
    made = route(3)
    made.generate(list(range(length)), 3)

    steps = made.engines[1].steps
    chunks = [min(4, length - start) for start in range(0, length, 4)]
    assert [step.hidden.shape[1] for step in steps if step.hidden is not None] == [*chunks, 1, 1]
    assert [step.position for step in steps] == [*range(0, length, 4), length, length + 1]
    assert [step.sampling is not None for step in steps] == [False] * (len(chunks) - 1) + [True] * 3


def test_every_step_has_a_number_of_its_own_and_the_same_on_every_hop(route: Make) -> None:
    made = route(2, 4)
    made.generate(PROMPT, 4)

    numbers = [[step.step for step in engine.steps] for engine in made.engines]
    assert numbers[0] == sorted(set(numbers[0]))
    assert numbers[0] == numbers[1] == numbers[2]


def test_each_hop_is_told_what_it_needs(route: Make) -> None:
    made = route(2, 4)
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=5)
    made.generate(PROMPT[:3], 1, sampling=sampling)

    middle, tail = made.paths[0].asked[0], made.paths[1].asked[0]
    assert middle[names.SESSION] == SESSION
    assert middle[names.TICKET] == "the ticket"
    assert (middle[names.EPOCH], middle[names.STEP], middle[names.POSITION]) == ("0", "1", "0")
    assert (middle[names.SHAPE], middle[names.DTYPE]) == (f"1,3,{WIDTH}", "bfloat16")
    assert (middle[names.START_LAYER], middle[names.END_LAYER]) == ("2", "4")
    assert middle[names.RESERVE] == "99"
    assert 0 < int(middle[names.DEADLINE_MS]) <= 20_000
    assert names.TOKENS not in middle
    assert names.SAMPLING not in middle
    assert (tail[names.TOKENS], tail[names.SAMPLING]) == ("10,20,30", sampling.to_json())


def test_room_is_asked_for_once(route: Make) -> None:
    made = route(3)
    made.generate(PROMPT, 3)

    assert [names.RESERVE in headers for headers in made.paths[0].asked] == [True, False, False, False]


def test_activations_cross_in_the_tickets_dtype(route: Make) -> None:
    made = route(3, dtype="float32")
    made.generate(PROMPT, 1)

    assert made.paths[0].asked[0][names.DTYPE] == "float32"
    hidden = made.engines[1].steps[0].hidden
    assert hidden is not None
    assert hidden.dtype == torch.float32


def test_a_hop_that_lost_its_cache_is_given_the_tokens_again(route: Make) -> None:
    made = route(2, 4)

    def lose_once() -> None:
        if len(made.engines[2].steps) == 4 and not made.paths[1].closed:
            made.paths[1].closed.append("lost")
            made.engines[2].sessions.drop_cache(SESSION)

    assert made.generate(PROMPT, 5, check=lose_once) == [71, 72, 73, 74, 75]
    assert [step.position for step in made.engines[2].steps] == [0, 4, 7, 8, 0, 4, 8, 10]


def test_the_heads_own_lost_cache_is_replayed_too(route: Make) -> None:
    made = route(3)
    lost: list[int] = []

    def lose_once() -> None:
        if len(made.engines[0].steps) == 3 and not lost:
            lost.append(1)
            made.engines[0].sessions.drop_cache(SESSION)

    assert made.generate(PROMPT, 4, check=lose_once) == [71, 72, 73, 74]


def test_a_hop_that_loses_its_cache_at_every_step_is_given_up(route: Make) -> None:
    made = route(3)
    with pytest.raises(HopFailed, match="replaying didn't help"):
        made.generate(PROMPT, 20, check=lambda: made.engines[1].sessions.drop_cache(SESSION))
    positions = [int(headers[names.POSITION]) for headers in made.paths[0].asked]
    assert positions.count(0) <= MAX_REPLAYS + 1


def test_a_stale_answer_ends_it(route: Make) -> None:
    made = route(3)
    made.paths[0].spoil = lambda answer: refusal(wire.Code.STALE)
    with pytest.raises(HopRefused) as refused:
        made.generate(PROMPT, 1)
    assert refused.value.code == wire.Code.STALE


def test_a_failure_of_its_own_layers_is_an_error(route: Make) -> None:
    made = route(3)
    made.engines[0].fail_with = EngineError("broken")
    with pytest.raises(EngineError):
        made.generate(PROMPT, 1)
    assert not made.paths[0].asked


@pytest.mark.parametrize(
    "spoilt",
    [
        HopAnswer(200, {names.SHAPE: "1,1,8"}, bytes(16)),
        HopAnswer(200, {names.SHAPE: "1,3,8"}, bytes(16)),
        HopAnswer(200, {}, bytes(48)),
    ],
)
def test_activations_of_another_shape_are_refused(route: Make, spoilt: HopAnswer) -> None:
    made = route(2, 4)
    made.paths[0].spoil = lambda answer: spoilt
    with pytest.raises(HopFailed, match="1,3,8 in 48 were asked for"):
        made.generate(PROMPT[:3], 1)
    assert not made.paths[1].asked


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"token_ids":"1"}', b'{"token_ids":[-1]}', b'{"token_ids":[true]}']
)
def test_a_tail_that_answers_no_ids_is_refused(route: Make, body: bytes) -> None:
    made = route(3)
    made.paths[0].spoil = lambda answer: HopAnswer(200, {}, body)
    with pytest.raises(HopFailed, match="no list of token ids"):
        made.generate(PROMPT, 1)


def test_it_is_asked_before_each_step_whether_to_go_on(route: Make) -> None:
    made = route(3)
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 4:
            raise Cancelled

    with pytest.raises(Cancelled):
        made.generate(PROMPT, 10, check=check)
    assert len(made.engines[0].steps) == 3


def test_the_requests_deadline_ends_it(route: Make) -> None:
    made = route(3, deadline_s=0)
    with pytest.raises(DeadlineOver):
        made.generate(PROMPT, 1)


def test_its_own_layers_dont_get_more_than_the_deadline(route: Make) -> None:
    made = route(3, deadline_s=0.2)
    made.engines[0].may_work.clear()
    with pytest.raises(DeadlineOver):
        made.generate(PROMPT, 1)


def test_the_hop_table_begins_with_this_node(route: Make) -> None:
    made = route(2, 4)
    made.generate(PROMPT, 2)

    table = made.pipeline.hop_table()
    assert [(hop["start_layer"], hop["end_layer"], hop["path"]) for hop in table] == [
        (0, 2, "local"),
        (2, 4, "relay"),
        (4, 6, "relay"),
    ]
    assert [hop["steps"] for hop in table] == [3, 3, 3]


def test_releasing_frees_the_session_on_every_hop(route: Make) -> None:
    made = route(2, 4)
    made.pipeline.release()

    assert [path.closed for path in made.paths] == [[f"/sessions/{SESSION}"]] * 2


def test_a_dead_hop_is_an_error_that_names_it(route: Make) -> None:
    made = route(3)

    def dead(*arguments: object) -> HopAnswer:
        raise HopError("refused")

    made.paths[0].ask = dead  # type: ignore[method-assign, assignment]
    with pytest.raises(HopFailed, match="layers 3–5 on peer 00000002: relay: refused; direct: no direct endpoint"):
        made.generate(PROMPT, 1)


@pytest.mark.parametrize(
    ("asked", "width", "dtype", "tokens"),
    [
        (128, 576, "bfloat16", 128),
        (4096, 576, "bfloat16", MAX_CHUNK_TOKENS),
        (128, 8192, "bfloat16", 64),
        (128, 8192, "float32", 32),
        (0, 576, "bfloat16", 1),
    ],
)
def test_a_chunk_fits_in_a_message(asked: int, width: int, dtype: str, tokens: int) -> None:
    assert chunk_size(asked, width, dtype) == tokens
