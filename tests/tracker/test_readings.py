"""What is written down of each node once a minute, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from relay import report
from relay.hub import hub
from relay.report import Figures, Row
from tests.tracker.conftest import MakeNode
from tracker.models import ChatSession, LanguageModel, Lease, Node, NodeSample, SessionHop
from tracker.readings import KEPT, LEASE, PERIOD, Readings, Traffic, hop_times

NOW = timezone.now()
Connect = Callable[[Node], None]


def row(bytes_in: int, bytes_out: int = 0, *, since: float = 100.0, peer_id: str = "a") -> Row:
    return Row(peer_id, "tiny", "wss://a", "", 2, since, Figures(0, bytes_in, bytes_out, None, 0))


def untold(since: float = 100.0) -> Row:
    return Row("a", "tiny", "wss://b", "", 2, since, None)


def carried(traffic: Traffic, now: float, *rows: Row) -> tuple[int, int] | None:
    return traffic.since_last(rows, now).get("a")


def test_traffic_is_what_the_counters_gained() -> None:
    traffic = Traffic(begun=90.0)
    assert carried(traffic, 160.0, row(500, 50)) == (500, 50)
    assert carried(traffic, 220.0, row(700, 50)) == (200, 0)
    assert carried(traffic, 280.0) is None


def test_a_connection_that_began_anew_counts_from_its_beginning() -> None:
    traffic = Traffic(begun=90.0)
    carried(traffic, 160.0, row(500, 50))
    assert carried(traffic, 220.0, row(30, 3, since=200.0)) == (30, 3)


def test_a_process_that_came_later_doesnt_count_what_was_before() -> None:
    traffic = Traffic(begun=1000.0)
    assert carried(traffic, 1060.0, row(500, 50)) == (0, 0)
    assert carried(traffic, 1120.0, row(600, 50)) == (100, 0)


def test_figures_that_another_process_didnt_tell_in_time_are_told_with_the_next() -> None:
    traffic = Traffic(begun=90.0)
    assert carried(traffic, 160.0, untold()) is None
    carried(traffic, 220.0, row(500))
    assert carried(traffic, 280.0, untold()) is None
    assert carried(traffic, 340.0, row(800)) == (300, 0)


@pytest.mark.django_db
def test_a_minute_of_a_node_is_written_down(make_node: MakeNode, connect: Connect) -> None:
    node = make_node("a", sessions=2, cached_tokens=77, lease_until=NOW + PERIOD)
    connect(node)
    link = hub.switchboard.peers[node.peer_id]
    link.credit.rtt_s, link.bytes_in, link.bytes_out = 0.0125, 900, 60
    assert Readings("one", begun=link.since - 1).take(NOW)
    [sample] = NodeSample.objects.all()
    assert (sample.node, sample.at, sample.rtt_ms, sample.hop_ms) == (node, NOW, 12.5, None)
    assert (sample.bytes_in, sample.bytes_out, sample.sessions, sample.cached_tokens) == (900, 60, 2, 77)
    node.refresh_from_db()
    assert node.rtt_ms == 12.5


@pytest.mark.django_db
def test_nodes_that_nobody_hears_of_leave_a_gap(make_node: MakeNode) -> None:
    make_node("gone", lease_until=NOW - PERIOD)
    listens = make_node("listens", uses_relay=False, lease_until=NOW + PERIOD, rtt_ms=3.0)
    Readings("one", 0.0).take(NOW)
    assert [sample.node for sample in NodeSample.objects.all()] == [listens]
    listens.refresh_from_db()
    assert listens.rtt_ms == 3.0, "what was measured once isn't forgotten"


@pytest.mark.django_db
def test_of_several_processes_one_writes_and_another_goes_on_when_it_dies(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("a", lease_until=NOW + 10 * PERIOD)
    one, other = Readings("one", 90.0), Readings("other", 90.0)

    def both(minutes: int, bytes_in: int) -> list[bool]:
        monkeypatch.setattr(report, "rows", lambda: [row(bytes_in, peer_id=node.peer_id)])
        processes = (one, other) if minutes < 2 else (other,)
        return [process.take(NOW + minutes * PERIOD) for process in processes]

    assert [both(0, 500), both(1, 600), both(2, 750), both(3, 900)] == [[True, False], [True, False], [False], [True]]
    assert list(NodeSample.objects.values_list("bytes_in", flat=True)) == [500, 100, 150]
    assert Lease.objects.get(name="readings").until == NOW + 3 * PERIOD + LEASE


@pytest.mark.django_db
def test_samples_are_kept_for_two_hours(make_node: MakeNode) -> None:
    node = make_node("a", lease_until=NOW - PERIOD)
    for age in (KEPT, KEPT + timedelta(seconds=1)):
        NodeSample.objects.create(node=node, at=NOW - age)
    Readings("one", 0.0).take(NOW)
    assert [sample.at for sample in NodeSample.objects.all()] == [NOW - KEPT]


@pytest.fixture
def walk(model: LanguageModel) -> Callable[..., None]:
    """A session with one hop through a node."""

    def make(node: Node, steps: int | None, ms_total: float | None, **fields: Any) -> None:
        number = ChatSession.objects.count()
        session = {"session_id": f"{number:032x}", "completion_id": f"chatcmpl-{number}", "model": model, "seed": 1}
        hop = {name: fields.pop(name) for name in list(fields) if name.endswith("_ms")}
        session |= {"started": NOW - PERIOD, "last_news": NOW} | fields
        layers = {"position": 0, "node_name": node.name, "start_layer": 0, "end_layer": 12}
        made = ChatSession.objects.create(**session)
        SessionHop.objects.create(session=made, node=node, steps=steps, ms_total=ms_total, **layers, **hop)

    return make


@pytest.mark.django_db
def test_a_step_through_a_node_takes_what_heads_saw_within_the_minute(
    make_node: MakeNode, walk: Callable[..., None]
) -> None:
    a, b = make_node("a"), make_node("b")
    done = {"state": ChatSession.State.DONE}
    walk(a, 10, 100.0, ended=NOW, **done)
    walk(a, 30, 100.0, compute_p50_ms=15.0, network_p50_ms=4.0, queue_p50_ms=1.0)  # runs, and its head told as much
    walk(a, 5, 5000.0, ended=NOW - PERIOD, **done)
    walk(a, None, None)
    walk(b, 5, 5000.0, last_news=NOW - timedelta(minutes=9))
    assert hop_times(NOW) == {a.pk: pytest.approx(17.5)}


@pytest.mark.django_db
def test_many_nodes_take_as_many_queries_as_one(make_node: MakeNode, django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(8):
        Readings("one", 0.0).take(NOW)
    for number in range(12):
        make_node(f"node-{number}", lease_until=NOW + PERIOD)
    with django_assert_max_num_queries(8):
        Readings("one", 0.0).take(NOW)
    assert NodeSample.objects.count() == 12
