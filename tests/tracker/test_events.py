from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.fakes import HELLO, done, said, sse
from tracker.calls import Markup
from tracker.events import (
    BadStream,
    Delta,
    Done,
    Event,
    EventReader,
    Failure,
    Keepalive,
)
from tracker.hopreports import FailoverReport, HopReport, Report
from tracker.logprobs import Spelled, TokenLogprobs

HOP = {
    "peer_id": "aa" * 16,
    "start_layer": 0,
    "end_layer": 6,
    "path": "local",
    "steps": 3,
    "ms_total": 12.5,
    "compute_ms": 10,
    "queue_ms": 0.5,
}


LOGPROBS = {"token": "a", "bytes": [97], "logprob": -0.5, "offset": 3, "top": []}

MARKUP = {"begin": "<call>", "end": "</call>", "separator": "\n", "arguments": "arguments"}


def read(data: bytes) -> list[Event]:
    return list(EventReader().feed(data))


def test_a_whole_stream_is_read() -> None:
    assert read(HELLO) == [
        Delta("Hel", ids=(11,), position=0, prompt_ids=(1, 2, 3, 4, 5)),
        Delta("lo", finish_reason="stop", ids=(12,), position=0),
        Report(5, 2),
        Done(),
    ]


@given(st.lists(st.integers(1, len(HELLO) - 1), max_size=10))
def test_events_are_the_same_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(HELLO)]
    reader = EventReader()
    pieces = [HELLO[start:end] for start, end in itertools.pairwise(bounds)]
    assert [event for piece in pieces for event in reader.feed(piece)] == read(HELLO)


def test_comments_are_keepalives() -> None:
    assert read(b": keepalive\n\n: \n\n") == [Keepalive(), Keepalive()]


def test_lines_may_end_in_carriage_returns() -> None:
    assert read(b"data: [DONE]\r\n\r\n") == [Done()]


def test_a_completions_text_is_read() -> None:
    assert read(sse({"choices": [{"text": "a", "finish_reason": None}]})) == [Delta("a")]


def test_the_report_names_each_hop() -> None:
    [report] = read(sse(done([HOP])))
    assert isinstance(report, Report)
    assert report.hops == (HopReport("aa" * 16, 0, 6, "local", 3, 12.5, 10, 0.5),)


def test_a_head_that_drafts_says_how_many_were_right() -> None:
    [report] = read(sse(done([HOP | {"drafted": 9, "accepted": 6}])))
    assert isinstance(report, Report)
    assert (report.hops[0].drafted, report.hops[0].accepted) == (9, 6)


def test_hops_that_were_left_come_with_their_epoch_and_count_with_the_others() -> None:
    told = done([HOP | {"tokens": 9}])["meshnet"] | {"left": [HOP | {"tokens": 4, "epoch": 1}]}
    [report] = read(sse({"meshnet": told}))
    assert isinstance(report, Report)
    assert [(hop.tokens, hop.epoch) for hop in report.all_hops] == [(9, None), (4, 1)]


STEP = {"step": 3, "epoch": 0, "position": 9, "tokens": 1, "at_ms": 12.5, "hops": [[1.5, 0, 0.25]]}


def test_now_and_then_a_head_tells_how_it_goes() -> None:
    times = {"compute_p50_ms": 1.5, "network_p95_ms": -2, "unknown_p50_ms": 3.0}
    [delta] = read(sse(said("a", [97], progress={"hops": [HOP | times], "steps": [STEP]})))
    assert isinstance(delta, Delta)
    assert delta.progress
    assert delta.progress.hops[0].percentiles == {"compute_p50_ms": 1.5, "network_p95_ms": 0.0}
    assert delta.progress.steps == (STEP,)
    [report] = read(sse(done([HOP]) | {"meshnet": done([HOP])["meshnet"] | {"steps": [STEP | {"more": 1}]}}))
    assert isinstance(report, Report)
    assert report.steps == (STEP,)


def test_log_probabilities_come_with_the_tokens_they_are_of() -> None:
    [delta] = read(sse(said("a", [97], logprobs=[LOGPROBS | {"top": [LOGPROBS]}])))
    assert isinstance(delta, Delta)
    spelled = Spelled("a", (97,), -0.5)
    assert delta.logprobs == (TokenLogprobs(spelled, 3, (spelled,)),)


def test_the_first_event_of_a_chat_with_tools_says_how_calls_are_written() -> None:
    [delta] = read(sse(said("a", [97], calls=MARKUP)))
    assert isinstance(delta, Delta)
    assert delta.calls == Markup("<call>", "</call>", "\n", "arguments")
    assert read(sse(said("a", [97], calls=None))) == [Delta("a", ids=(97,), position=0)]


def test_a_clock_that_jumped_gives_no_negative_time() -> None:
    [report] = read(sse(done([HOP | {"ms_total": -3_600_000.0}])))
    assert isinstance(report, Report)
    assert report.hops[0].ms_total == 0


def test_a_failure_may_come_with_its_report() -> None:
    events = read(sse(done([HOP]) | {"error": {"code": "node_failed", "message": "gone"}}))
    assert events[1] == Failure("node_failed", "gone")
    blamed = {"code": "bad_request", "message": "too complex", "param": "response_format"}
    assert read(sse({"error": blamed})) == [Failure("bad_request", "too complex", "response_format")]


def test_other_fields_and_empty_events_are_passed_over() -> None:
    assert read(b"event: x\nid: 7\n\n\n\nretry: 5\n\n" + sse({}, {"choices": []}, {"meshnet": {}})) == []


@pytest.mark.parametrize(
    "event",
    [
        "data: {",
        "data: 7",
        "data: []",
        "data: " + "[" * 100_000,
        {"choices": 7},
        {"choices": [7]},
        {"choices": [{}]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 7}}]},
        {"choices": [{"delta": {"content": "a", "role": "user"}}]},
        said("a", [1], "because"),
        said("a", ["1"]),  # type: ignore[list-item]
        said("a", [-1]),
        said("a", [True]),
        said("a", [1], position=-1),
        said("\ud83d", [1]),
        {"meshnet": 7, "choices": []},
        {"error": {"code": "x"}},
        {"error": {"code": 1, "message": "x"}},
        {"error": {"code": "x", "message": "x", "param": 1}},
        {"error": "x"},
        said("a", [1], logprobs=7),
        said("a", [1], logprobs=[LOGPROBS | {"logprob": "x"}]),
        said("a", [1], logprobs=[LOGPROBS | {"bytes": [256]}]),
        said("a", [1], logprobs=[LOGPROBS | {"token": "\ud83d"}]),
        said("a", [1], logprobs=[LOGPROBS | {"offset": -1}]),
        said("a", [1], logprobs=[LOGPROBS | {"top": [{}]}]),
        said("a", [1], logprobs=[LOGPROBS | {"top": [LOGPROBS] * 21}]),
        said("a", [1], calls={}),
        said("a", [1], calls=[]),
        said("a", [1], calls=MARKUP | {"begin": None}),
        said("a", [1], progress=7),
        said("a", [1], progress={"hops": [{}]}),
        said("a", [1], progress={"hops": [HOP | {"queue_p95_ms": "1"}]}),
        said("a", [1], progress={"steps": [STEP] * 33}),
        said("a", [1], progress={"steps": [STEP | {"hops": [[1, 2]]}]}),
        said("a", [1], progress={"steps": [STEP | {"hops": [[1, 2, 3]] * 65}]}),
        said("a", [1], progress={"steps": [STEP | {"tokens": 1.5}]}),
        said("a", [1], progress={"steps": [{}]}),
        done([HOP | {"drafted": -1}]),
        done([HOP | {"ms_total": "1"}]),
        done([{"peer_id": "x"}]),
        done([HOP] * 65),
        done(prompt_tokens=-1),
    ],
)
def test_what_is_no_event_is_refused(event: Any) -> None:
    with pytest.raises(BadStream):
        read(sse(event))


def test_times_that_are_no_numbers_are_refused() -> None:
    for word in ("NaN", "Infinity"):
        data = json.dumps(done([HOP])).replace("12.5", word)
        with pytest.raises(BadStream):
            read(f"data: {data}\n\n".encode())


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader()
    for _ in range(4):
        assert list(reader.feed(b"x" * 1024 * 1024)) == []
    with pytest.raises(BadStream, match="over"):
        list(reader.feed(b"x"))


def test_what_a_head_has_gone_on_without_stands_in_its_report() -> None:
    told = {"epoch": 2, "kept": "activations", "replayed_tokens": 9, "resume_ms": 40.5, "replay_compute_ms": -1}
    own = {"done": True, "failovers": [told, {"epoch": 3}]}
    (report,) = read(sse({"meshnet": own}))
    assert isinstance(report, Report)
    assert report.failovers == (
        FailoverReport(2, "activations", 9, 40.5, 0.0),
        FailoverReport(3, "", None, None, None),
    )


@pytest.mark.parametrize("failover", [{}, {"epoch": -1}, {"epoch": 1, "kept": 7}, {"epoch": 1, "resume_ms": "1"}, 7])
def test_a_failover_that_breaks_a_rule_is_refused(failover: Any) -> None:
    with pytest.raises(BadStream):
        read(sse({"meshnet": {"done": True, "failovers": [failover]}}))
