from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import pytest

from nodes.deadline import Deadline
from nodes.downstream import REST_S, DownstreamHop, HopFailed, HopRefused
from nodes.hops import Dialler, HopAnswer, HopError
from relay import headers as names
from relay import wire
from relay.headers import Hop
from tests.nodes.clocks import Time

PEER = "ab12cd34" * 4
OK = HopAnswer(200, {names.COMPUTE_MS: "2.5", names.QUEUE_MS: "0.5"}, b"{}")


class FakePath:
    """Answers from a list; an exception in it is raised, and the last one stays."""

    def __init__(self, name: str, *answers: HopAnswer | HopError) -> None:
        self.name, self._answers = name, list(answers or (OK,))
        self.asked: list[tuple[str, str, Mapping[str, str], float]] = []
        self.num_closed = 0

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> HopAnswer:
        self.asked.append((method, target, headers, deadline.left_s()))
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        if isinstance(answer, HopError):
            raise answer
        return answer

    def close(self) -> None:
        self.num_closed += 1


class FakeDialler:
    def __init__(
        self, relay: FakePath | HopError | None, direct: FakePath | None, tunnel: FakePath | None, prefer: str
    ) -> None:
        self._relay, self._direct, self._tunnel, self.prefer = relay, direct, tunnel, prefer
        self.patience_s = 10.0

    def tunnel_hop(self, hop: Hop) -> Any:
        return self._tunnel

    def relay_hop(self, relay_addr: str) -> Any:
        if isinstance(self._relay, HopError):
            raise self._relay
        return self._relay

    def direct_hop(self, endpoint: str) -> Any:
        return self._direct


def hop_over(
    relay: FakePath | HopError | None,
    direct: FakePath | None,
    time: Time | None = None,
    tunnel: FakePath | None = None,
    prefer: str = "relay",
) -> DownstreamHop:
    hop = Hop(PEER, 12, 18, "http://direct" if direct else None, "ws://relay" if relay else None)
    return DownstreamHop(hop, cast(Dialler, FakeDialler(relay, direct, tunnel, prefer)), time or Time())


def error(code: wire.Code, message: str = "no", headers: Mapping[str, str] | None = None) -> HopAnswer:
    response = wire.error_response("", code, message, headers)
    return HopAnswer(response.status, response.headers, response.body)


def step(hop: DownstreamHop, deadline_s: float = 60) -> HopAnswer:
    return hop.step({names.STEP: "3"}, b"body", Deadline.after(deadline_s))


def test_the_relay_comes_first() -> None:
    relay, direct = FakePath("relay"), FakePath("direct")
    hop = hop_over(relay, direct)

    assert step(hop) == OK
    assert (len(relay.asked), len(direct.asked)) == (1, 0)
    assert hop.statistics.path == "relay"


def test_the_tunnel_comes_before_the_relay() -> None:
    tunnel, relay, direct = FakePath("tunnel"), FakePath("relay"), FakePath("direct")
    hop = hop_over(relay, direct, tunnel=tunnel)

    assert step(hop) == OK
    assert (len(tunnel.asked), len(relay.asked), len(direct.asked)) == (1, 0, 0)
    assert hop.statistics.path == "tunnel"


def test_a_tunnel_that_fails_is_followed_by_the_relay_and_then_by_direct_http(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tunnel, relay = FakePath("tunnel", HopError("cut")), FakePath("relay", HopError("refused"))
    hop = hop_over(relay, FakePath("direct"), tunnel=tunnel)

    assert step(hop) == OK
    assert hop.statistics.path == "direct"
    assert "tunnel hop to layers 12–17 on peer ab12cd34 failed: cut; trying the relay" in caplog.text
    assert "relay hop to layers 12–17 on peer ab12cd34 failed: refused; trying direct HTTP" in caplog.text


def test_all_failing_gives_one_string_with_every_cause() -> None:
    paths = [FakePath(name, HopError(f"{name} is down")) for name in ("relay", "direct", "tunnel")]

    with pytest.raises(HopFailed, match="tunnel: tunnel is down; relay: relay is down; direct: direct is down"):
        step(hop_over(paths[0], paths[1], tunnel=paths[2]))


def test_a_node_may_prefer_direct_http() -> None:
    tunnel, relay, direct = FakePath("tunnel"), FakePath("relay"), FakePath("direct", OK, HopError("down"))
    hop = hop_over(relay, direct, tunnel=tunnel, prefer="direct")

    step(hop)
    assert (len(direct.asked), len(tunnel.asked)) == (1, 0)
    step(hop)
    assert (len(direct.asked), len(tunnel.asked), len(relay.asked)) == (2, 1, 0)


class TimedPath(FakePath):
    """Each question takes so many seconds."""

    def __init__(self, name: str, time: Time, took_s: float, *answers: HopAnswer | HopError) -> None:
        super().__init__(name, *answers)
        self._time, self._took_s = time, took_s

    def ask(self, *arguments: Any) -> HopAnswer:
        self._time.now += self._took_s
        return super().ask(*arguments)


@pytest.mark.parametrize(
    ("tunnel_s", "direct_s", "answer", "chosen"),
    [
        (0.02, 0.03, OK, "tunnel"),
        (0.03, 0.02, OK, "direct"),
        (0.03, 0.02, HopError("refused"), "tunnel"),
        (0.03, 0.02, HopAnswer(503, {}, b""), "tunnel"),
    ],
)
def test_the_fastest_of_both_ways_is_found_once_for_a_route(
    tunnel_s: float, direct_s: float, answer: HopAnswer | HopError, chosen: str
) -> None:
    time = Time()
    tunnel, direct = TimedPath("tunnel", time, tunnel_s), TimedPath("direct", time, direct_s, answer)
    hop = hop_over(FakePath("relay"), direct, time, tunnel, "fastest")

    for _ in range(3):
        step(hop)
    questions = [(method, target) for method, target, _, _ in tunnel.asked + direct.asked]
    assert 3 <= questions.count(("GET", "/health")) <= 4
    assert questions.count(("POST", "/forward")) == 3
    assert hop.statistics.path == chosen
    assert hop.statistics.num_steps == 3


def test_where_there_is_one_way_only_nothing_is_timed() -> None:
    relay = FakePath("relay")
    step(hop_over(relay, None, prefer="fastest"))

    assert [method for method, *_ in relay.asked] == ["POST"]


def test_without_a_relay_address_it_is_direct_http() -> None:
    direct = FakePath("direct")
    hop = hop_over(None, direct)

    assert step(hop) == OK
    assert hop.statistics.path == "direct"


@pytest.mark.parametrize(
    "failure",
    [
        HopError("the connection ended", is_cut=True),
        HopError("no answer through the relay in time"),
        error(wire.Code.PEER_GONE),
        error(wire.Code.NOT_FOUND),
        error(wire.Code.DRAINING),
        error(wire.Code.PEER_BUSY),
        error(wire.Code.DEADLINE),
        HopAnswer(502, {}, b"<html>a proxy's page</html>"),
    ],
)
def test_when_the_relay_fails_the_same_step_goes_by_direct_http_with_a_warning(
    failure: HopError | HopAnswer, caplog: pytest.LogCaptureFixture
) -> None:
    relay, direct = FakePath("relay", failure), FakePath("direct")
    hop = hop_over(relay, direct)

    with caplog.at_level(logging.WARNING):
        assert step(hop) == OK
    assert (len(relay.asked), len(direct.asked)) == (1, 1)
    assert direct.asked[0][2] == relay.asked[0][2]
    assert hop.statistics.path == "direct"
    assert "relay hop to layers 12–17 on peer ab12cd34 failed" in caplog.text
    assert "trying direct HTTP" in caplog.text


def test_both_failing_gives_one_string_with_both_causes() -> None:
    hop = hop_over(FakePath("relay", error(wire.Code.PEER_GONE, "peer left")), FakePath("direct", HopError("refused")))

    with pytest.raises(HopFailed) as failed:
        step(hop)
    expected = "pipeline error: layers 12–17 on peer ab12cd34: relay: peer_gone: peer left; direct: refused"
    assert str(failed.value) == expected


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (HopError("cut"), HopError("refused"), "node_failed"),
        (error(wire.Code.PEER_GONE), HopError("refused"), "node_failed"),
        (error(wire.Code.DRAINING), HopError("refused"), "draining"),
        (error(wire.Code.PEER_BUSY), error(wire.Code.RATE_LIMITED), "busy"),
        (error(wire.Code.PEER_BUSY), HopError("refused"), "node_failed"),
    ],
)
def test_one_word_says_what_it_was(first: HopError | HopAnswer, second: HopError | HopAnswer, code: str) -> None:
    hop = hop_over(FakePath("relay", first), FakePath("direct", second))

    with pytest.raises(HopFailed) as failed:
        step(hop)
    assert (failed.value.hop, failed.value.code) == (hop, code)


def test_a_node_that_nobody_can_dial_is_said_to_have_no_endpoint() -> None:
    hop = hop_over(FakePath("relay", HopError("refused")), None)

    with pytest.raises(HopFailed, match="relay: refused; direct: no direct endpoint"):
        step(hop)


def test_a_relay_that_isnt_ours_is_a_cause_too() -> None:
    hop = hop_over(HopError("its relay isn't the one this node registered with"), FakePath("direct", HopError("down")))

    with pytest.raises(HopFailed, match="registered with; direct: down"):
        step(hop)


def test_a_node_without_any_path_names_both() -> None:
    with pytest.raises(HopFailed, match="relay: no relay address; direct: no direct endpoint"):
        step(hop_over(None, None))


def test_a_cut_relay_without_another_path_is_asked_once_more() -> None:
    relay = FakePath("relay", HopError("the connection ended", is_cut=True), OK)

    assert step(hop_over(relay, None)) == OK
    assert len(relay.asked) == 2


def test_after_a_failure_the_working_path_comes_first_for_a_while() -> None:
    time = Time()
    relay, direct = FakePath("relay", HopError("dead"), OK), FakePath("direct")
    hop = hop_over(relay, direct, time)
    step(hop)

    step(hop)
    assert (len(relay.asked), len(direct.asked)) == (1, 2)

    time.now += REST_S
    step(hop)
    assert (len(relay.asked), len(direct.asked)) == (2, 2)
    assert hop.statistics.path == "relay"


def test_while_the_relay_rests_it_is_still_the_second_choice() -> None:
    relay = FakePath("relay", HopError("dead"), OK)
    direct = FakePath("direct", OK, HopError("gone"))
    hop = hop_over(relay, direct)
    step(hop)

    assert step(hop) == OK
    assert len(relay.asked) == 2


@pytest.mark.parametrize(
    "code",
    [
        *(wire.Code.STALE, wire.Code.BUSY, wire.Code.BAD_REQUEST, wire.Code.INTERNAL),
        *(wire.Code.NO_GRAMMAR, wire.Code.BAD_GRAMMAR),
    ],
)
def test_what_the_node_itself_refuses_isnt_asked_again(code: wire.Code) -> None:
    relay, direct = FakePath("relay", error(code, "no, thank you")), FakePath("direct")

    with pytest.raises(HopRefused, match="no, thank you") as refused:
        step(hop_over(relay, direct))
    assert refused.value.code == code
    assert not direct.asked


def test_a_hop_that_misses_tokens_says_how_many_it_holds() -> None:
    relay = FakePath("relay", error(wire.Code.MISSING, headers={names.CACHED: "17"}))

    with pytest.raises(HopRefused) as refused:
        step(hop_over(relay, None))
    assert refused.value.num_cached == 17


def test_an_attempt_gets_the_nodes_patience_and_at_most_half_of_what_is_left() -> None:
    relay, direct = FakePath("relay", HopError("dead")), FakePath("direct")
    step(hop_over(relay, direct), deadline_s=100)
    step(hop_over(relay, direct), deadline_s=10)

    assert [round(asked[3]) for asked in relay.asked] == [10, 5]
    assert [round(asked[3]) for asked in direct.asked] == [10, 5]


@pytest.mark.parametrize(("deadline_s", "code"), [(1000, "node_failed"), (15, "deadline")])
def test_a_node_that_is_late_has_failed_only_where_it_had_its_time(deadline_s: float, code: str) -> None:
    late = HopError("no answer in time", is_late=True)
    answered_late = error(wire.Code.DEADLINE)
    with pytest.raises(HopFailed) as failed:
        step(hop_over(FakePath("relay", answered_late), FakePath("direct", late)), deadline_s=deadline_s)
    assert failed.value.code == code


def test_a_node_that_is_gone_has_failed_however_little_time_there_was() -> None:
    late = HopError("no answer in time", is_late=True)
    with pytest.raises(HopFailed) as failed:
        step(hop_over(FakePath("relay", late), FakePath("direct", HopError("refused"))), deadline_s=2)
    assert failed.value.code == "node_failed"


def test_after_a_path_that_was_silent_the_next_gets_half_the_patience() -> None:
    time = Time()
    tunnel = TimedPath("tunnel", time, 10, HopError("no answer in time"))
    relay, direct = FakePath("relay", HopError("refused")), FakePath("direct")
    step(hop_over(relay, direct, time, tunnel), deadline_s=1000)

    assert [round(path.asked[0][3]) for path in (tunnel, relay, direct)] == [10, 5, 5]


def test_a_node_that_answers_after_it_was_thought_lost_is_known_to_be_slow() -> None:
    time = Time()
    relay = TimedPath("relay", time, 10, HopError("no answer in time"), OK)
    hop = hop_over(relay, None, time)
    with pytest.raises(HopFailed):
        step(hop, deadline_s=1000)
    hop.is_lost = True
    step(hop, deadline_s=1000)
    step(hop, deadline_s=1000)

    assert [round(asked[3]) for asked in relay.asked] == [10, 1, 80]


def test_a_node_of_which_nothing_is_known_gets_four_times_what_such_a_step_usually_takes() -> None:
    relay = FakePath("relay")
    hop_over(relay, None).step({}, b"", Deadline.after(1000), usual_s=20.0)

    assert round(relay.asked[0][3]) == 80


def test_a_node_that_is_thought_to_be_lost_gets_little_until_it_answers() -> None:
    relay = FakePath("relay")
    hop = hop_over(relay, None)
    hop.is_lost = True
    step(hop)
    step(hop)

    assert [round(asked[3]) for asked in relay.asked] == [1, 10]


def test_a_slow_node_gets_four_times_its_slowest_step() -> None:
    time = Time()

    class Slow(FakePath):
        def ask(self, *arguments: Any) -> HopAnswer:
            time.now += 20
            return super().ask(*arguments)

    relay = Slow("relay")
    hop = hop_over(relay, None, time)
    step(hop, deadline_s=1000)
    step(hop, deadline_s=1000)

    assert 79 < relay.asked[1][3] <= 80


def test_its_statistics_add_up() -> None:
    hop = hop_over(FakePath("relay"), None)
    step(hop)
    step(hop)

    assert hop.statistics.as_dict(PEER, (12, 18)) == {
        "peer_id": PEER,
        "start_layer": 12,
        "end_layer": 18,
        "path": "relay",
        "steps": 2,
        "tokens": 0,
        "drafted": 0,
        "accepted": 0,
        "ms_total": 0.0,
        "compute_ms": 5.0,
        "queue_ms": 1.0,
    }


def test_a_hop_whose_times_are_no_numbers_took_none() -> None:
    relay = FakePath("relay", HopAnswer(200, {names.COMPUTE_MS: "nan", names.QUEUE_MS: "inf"}, b""))
    hop = hop_over(relay, None)
    step(hop)

    assert (hop.statistics.compute_ms, hop.statistics.queue_ms) == (0.0, 0.0)
    assert hop.statistics.last == (0.0, 0.0, 0.0)


def test_releasing_deletes_the_session_and_closes_the_paths() -> None:
    relay, direct = FakePath("relay"), FakePath("direct")
    hop = hop_over(relay, direct)

    hop.release("a" * 32, {names.EPOCH: "0"})

    assert relay.asked[0][:3] == ("DELETE", "/sessions/" + "a" * 32, {names.EPOCH: "0"})
    assert (relay.num_closed, direct.num_closed) == (1, 1)


def test_a_session_that_cant_be_released_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    relay = FakePath("relay", HopError("dead"))

    hop_over(relay, None).release("deadbeef" * 4, {})

    assert "session deadbeef can't be freed at layers 12–17" in caplog.text
    assert "deadbeef" * 2 not in caplog.text
    assert relay.num_closed == 1
