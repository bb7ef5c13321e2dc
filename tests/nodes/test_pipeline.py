from __future__ import annotations

import pytest
import torch

from nodes.deadline import DeadlineOver
from nodes.downstream import HopFailed
from nodes.engine import EngineError
from nodes.forwarding import MAX_CHUNK_TOKENS, chunk_size
from nodes.hops import HopAnswer, HopError
from nodes.sampling import Sampling
from relay import headers as names
from tests.nodes.engines import WIDTH
from tests.nodes.routes import PROMPT, SESSION, Make


@pytest.mark.parametrize("cuts", [(), (2,), (1, 5), (1, 2, 3)])
def test_the_tokens_are_those_of_one_node(route: Make, cuts: tuple[int, ...]) -> None:
    assert route(*cuts).generate(PROMPT, 5) == [71, 72, 73, 74, 75]


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
    assert [hop["tokens"] for hop in table] == [len(PROMPT) + 1] * 3, "the last token goes through no layer"
    assert made.pipeline.left_table() == []


def test_the_last_steps_tell_what_each_hop_took(route: Make) -> None:
    made = route(2, 4)
    made.generate(PROMPT, 3)

    steps = made.pipeline.last_steps()
    assert [(step["step"], step["epoch"], step["position"], step["tokens"]) for step in steps] == [
        (1, 0, 0, 4),
        (2, 0, 4, 3),
        (3, 0, 7, 1),
        (4, 0, 8, 1),
    ]
    assert [[hop[0] for hop in step["hops"]] for step in steps] == [[2.0, 0.0, 2.0]] * 4, (
        "the fake in the middle says no times"
    )
    assert steps == sorted(steps, key=lambda step: step["at_ms"])


def test_percentiles_are_of_the_steps_that_add_to_the_answer(route: Make) -> None:
    made = route(2, 4)
    made.generate(PROMPT, 1)
    assert "compute_p50_ms" not in made.pipeline.hop_table()[0], "only the prompt has been worked"
    made = route(2, 4)
    made.generate(PROMPT, 3)
    for hop, compute_ms in zip(made.pipeline.hop_table(), (2.0, 0.0, 2.0), strict=True):
        assert hop["compute_p50_ms"] == hop["compute_p95_ms"] == pytest.approx(compute_ms, rel=0.03)
        assert 0 <= hop["network_p50_ms"] <= hop["network_p95_ms"]


def test_releasing_frees_the_session_on_every_hop(route: Make) -> None:
    made = route(2, 4)
    made.pipeline.release()

    assert [path.closed for path in made.paths] == [[(f"/sessions/{SESSION}", "the ticket")]] * 2


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


@pytest.mark.parametrize(
    ("width", "grammar_bytes", "tokens"),
    [(576, 65536, 128), (8192, 65536, 60), (8192, 1, 63), (8192, 0, 64), (2**18, 65536, 1)],
)
def test_a_chunk_fits_beside_a_grammar(width: int, grammar_bytes: int, tokens: int) -> None:
    assert chunk_size(128, width, "bfloat16", grammar_bytes=grammar_bytes) == tokens


@pytest.mark.parametrize(("header_bytes", "tokens"), [(1000, 128), (6144, 128), (6700, 58), (7160, 1), (7168, 0)])
def test_the_ids_of_a_chunk_fit_beside_the_ticket_and_the_sampling(header_bytes: int, tokens: int) -> None:
    assert chunk_size(128, 576, "bfloat16", header_bytes) == tokens
