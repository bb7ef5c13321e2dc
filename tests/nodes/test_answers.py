from __future__ import annotations

import json
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
import torch

from nodes.answers import answer_now, answer_of, json_answer, read_sampled, step_answer
from nodes.drafts import MAX_DRAFTS
from nodes.engine import EngineError, GrammarFailed, NoGrammar, StepResult
from nodes.sampling import Sampled, TokenLogprobs
from nodes.sessions import Busy, Missing, Stale
from relay import headers as names
from relay import wire
from relay.wire import Code, Request, Response

REQUEST = Request("r1", "POST", "/forward")


def test_activations_go_out_as_bytes_with_their_shape_and_times() -> None:
    result = StepResult(torch.ones(1, 2, 4, dtype=torch.bfloat16), (), queue_ms=1.5, compute_ms=20.25)
    answer = step_answer(result, "r1", "bfloat16", is_tail=False)

    assert answer.body == b"\x80\x3f" * 8
    assert answer.headers == {
        "content-type": "application/octet-stream",
        names.SHAPE: "1,2,4",
        names.DTYPE: "bfloat16",
        names.QUEUE_MS: "1.500",
        names.COMPUTE_MS: "20.250",
    }


@pytest.mark.parametrize("ids", [(), (7,), (7, 8)])
def test_the_tail_answers_ids_as_json(ids: tuple[int, ...]) -> None:
    answer = step_answer(StepResult(None, ids, 0, 0), "r1", "bfloat16", is_tail=True)

    assert json.loads(answer.body) == {"token_ids": list(ids)}
    assert answer.headers["content-type"] == "application/json"


def test_what_a_tail_answers_is_read_again() -> None:
    for logprobs in (None, (TokenLogprobs(-0.5, ((3, -0.25), (4, -1.5))), TokenLogprobs(-2.0))):
        answer = step_answer(StepResult(None, (7, 8), 0, 0, logprobs), "r1", "bfloat16", is_tail=True)
        expected = [Sampled(token_id, logprobs and logprobs[index]) for index, token_id in enumerate((7, 8))]
        assert read_sampled(answer.body) == expected
        assert answer.headers[names.DRAFTS] == str(MAX_DRAFTS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"token_ids":7}',
        b'{"token_ids":[7],"logprobs":null}',
        b'{"token_ids":[7],"logprobs":[]}',
        b'{"token_ids":[7],"logprobs":[[-1.0]]}',
        b'{"token_ids":[7],"logprobs":[["x",[]]]}',
        b'{"token_ids":[7],"logprobs":[[NaN,[]]]}',
        b'{"token_ids":[7],"logprobs":[[-1.0,[[-3,-1.0]]]]}',
    ],
)
def test_what_no_tail_answers_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_sampled(body)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Stale("late"), 409, Code.STALE),
        (Missing(3), 409, Code.MISSING),
        (Busy("full"), 503, Code.BUSY),
        (EngineError("layers 2–3 failed"), 500, Code.INTERNAL),
        (NoGrammar("unknown"), 409, Code.NO_GRAMMAR),
        (GrammarFailed("too complex"), 400, Code.BAD_GRAMMAR),
        (CancelledError(), 503, Code.DRAINING),
        (ZeroDivisionError("ours"), 500, Code.INTERNAL),
    ],
)
def test_an_error_of_the_engine_is_an_answer(error: BaseException, status: int, code: Code) -> None:
    work: Future[Any] = Future()
    answered = answer_of(work, REQUEST, lambda result: json_answer("r1", {}))
    work.set_exception(error)

    answer = answered.result(1)
    assert isinstance(answer, Response)
    assert (answer.request_id, answer.status) == ("r1", status)
    assert wire.error_of(answer.status, answer.body)[0] == code
    assert answer.headers.get(names.CACHED) == ("3" if code is Code.MISSING else None)
    assert b"ours" not in answer.body


def test_work_that_nobody_wants_is_cancelled() -> None:
    work: Future[Any] = Future()
    answered = answer_of(work, REQUEST, lambda result: json_answer("r1", {}))

    assert answered.cancel()
    assert work.cancelled()


def test_an_answer_may_be_there_at_once() -> None:
    assert answer_now(json_answer("r1", {"a": 1})).result(0) == Response(
        "r1", 200, {"content-type": "application/json"}, b'{"a": 1}'
    )
