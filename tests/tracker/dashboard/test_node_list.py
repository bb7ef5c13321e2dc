"""The list of nodes: the state of each and why, what is filtered by the database, and how much it asks of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from relay import presence
from relay.hub import hub
from tests.tracker.conftest import MakeNode
from tests.tracker.crowd import Crowd, crowd
from tests.tracker.people import client_of
from tracker.dashboard import node_filters
from tracker.dashboard.node_rows import rows_of
from tracker.models import Contribution, Node, NodeSample

NOW = timezone.now()
Connect = Callable[[Node], None]
pytestmark = pytest.mark.django_db


def shown(client: Client | None = None, **query: str) -> str:
    response = (client or client_of("viewer")).get("/nodes", query)
    assert response.status_code == 200
    return response.content.decode()


def words(html: str) -> str:
    """As people read it."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def names(html: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="/nodes/\d+">([^<]*)</a>', html)


@pytest.fixture
def mesh() -> Iterator[Crowd]:
    """Two nodes of each kind."""
    made = crowd(40, 0, num_samples=0)
    with made.connected():
        yield made


def test_a_node_is_shown_with_all_that_is_known_of_it(make_node: MakeNode, connect: Connect) -> None:
    hardware = {"device": "cuda", "memory_bytes": 24_000_000_000, "threads": 8, "dtype": "bfloat16", "weights": "int8"}
    cache = {"max_cached_tokens": 16_384, "reserved_tokens": 4096}
    node = make_node("alpha", 0, 6, ms_per_layer=1.25, **hardware, **cache)
    connect(node)
    hub.switchboard.peers[node.peer_id].credit.rtt_s = 0.012
    for minute, hop_ms in enumerate((40.0, 20.0)):
        NodeSample.objects.create(
            node=node, at=NOW - timedelta(minutes=1 - minute), hop_ms=hop_ms, bytes_in=1_000_000, bytes_out=2_000_000
        )
    Contribution.objects.create(node=node, node_name="alpha", day=NOW.date(), model_name="tiny", token_layers=1_500_000)
    page = shown()
    assert "alpha tiny, layers 0–5 of 12 online connected to the relay cuda, 24 GB, 8 threads, bfloat16" in words(page)
    assert 'aria-label="a step: 20 ms now, 20 ms to 40 ms within the last 60 minutes"' in page
    for said in ("1.2 ms a layer", "4,096 of 16,384 tokens", "2.0 MB sent", "4.0 MB received", "1.5 million"):
        assert said in words(page)


def test_a_node_that_no_session_went_through_shows_its_round_trip(make_node: MakeNode, connect: Connect) -> None:
    connect(node := make_node("alpha"))
    NodeSample.objects.create(node=node, at=NOW, rtt_ms=7.0)
    assert 'aria-label="round trip: 7.0 ms now, 7.0 ms within the last 60 minutes"' in shown()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"status": "pending"}, "pending waits for approval"),
        ({"status": "revoked"}, "revoked its key opens nothing any more"),
        ({"banned_until": NOW + timedelta(days=1), "ban_reason": "it lies"}, "UTC: it lies"),
        ({"duty": "paused"}, "paused connected to the relay, but it is paused by the operator"),
        ({"duty": "draining"}, "draining connected to the relay, but it is being drained"),
        ({"is_moving": True}, "moving connected to the relay, but it "),
        ({"breaker_until": NOW + timedelta(hours=1), "breaker_reason": "no path works"}, "left out connected"),
        ({"lease_until": NOW - timedelta(seconds=9)}, "offline no heartbeat for"),
        ({"lease_until": NOW, "is_registered": False}, "left said that it leaves"),
    ],
)
def test_what_keeps_a_node_from_working_is_said(
    make_node: MakeNode, connect: Connect, fields: dict[str, Any], said: str
) -> None:
    connect(make_node("alpha", **fields))
    assert said in words(shown())


def test_a_node_that_fetches_its_weights_shows_how_far_it_is(make_node: MakeNode) -> None:
    make_node("alpha", state="loading", done_bytes=500_000_000, total_bytes=2_000_000_000)
    page = shown()
    assert "loading fetches its weights: 25 % of 2,000 MB" in words(page)
    assert 'style="--share: 25"' in page


STATES_OF = {  # the words that a row may show where the list is filtered so
    "online": {"online", "paused", "draining", "moving", "left out"},
    "closed": {"paused", "draining", "moving", "left out"},
    "offline": {"offline", "left", "loading"},
    "loading": {"loading"},
    "pending": {"pending"},
    "banned": {"banned"},
    "revoked": {"revoked"},
}


@pytest.mark.parametrize("state", node_filters.STATES)
def test_filters_and_rows_agree_on_what_a_state_is(mesh: Crowd, state: str) -> None:
    rows = {row.name: row.state for row in rows_of(Node.objects.select_related("model", "shard"), timezone.now())}
    expected = {name for name, word in rows.items() if word in STATES_OF[state]}
    page = shown(state=state)
    assert set(names(page)) == expected
    assert f'href="?state={state}">{len(expected)}</a>' in page or state in ("revoked", "loading")


def test_every_node_is_in_exactly_one_of_the_states_that_leave_none_out(mesh: Crowd) -> None:
    counts = node_filters.counts(timezone.now(), presence.present())
    apart = ("online", "offline", "pending", "banned", "revoked")
    assert sum(counts[state] for state in apart) == counts["all"] == 40


def test_the_list_can_be_searched_in_words_of_any_kind(mesh: Crowd) -> None:
    assert names(shown(q="node-007")) == ["node-007"]
    assert set(names(shown(q="MIDDLE cuda"))) == set(
        Node.objects.filter(model__name="middle", device="cuda").values_list("name", flat=True)
    )
    assert names(shown(q="owner 1"))
    assert "No node is like that." in shown(q="nothing like this")


def test_the_list_can_be_narrowed_to_a_model_and_put_in_an_order(mesh: Crowd) -> None:
    assert set(names(shown(model="gap"))) == set(Node.objects.filter(model__name="gap").values_list("name", flat=True))
    slowest = Node.objects.order_by("-ms_per_layer", "name").values_list("name", flat=True)
    assert names(shown(order="slow")) == list(slowest)


@pytest.mark.parametrize("query", [{"state": "<b>"}, {"order": "x"}, {"page": "-3"}, {"q": "\0 \ud800"}])
def test_what_nobody_offers_filters_nothing(mesh: Crowd, query: dict[str, str]) -> None:
    response = client_of("viewer").get("/nodes?" + "&".join(f"{name}=%00%3Cb%3E" for name in query))
    assert response.status_code == 200
    assert "<b>" not in response.content.decode()


def test_fifty_are_shown_at_a_time(make_node: MakeNode) -> None:
    for number in range(51):
        make_node(f"node-{number:02}")
    first, second = shown(), shown(page="2")
    assert (len(names(first)), names(second)) == (50, ["node-50"])
    assert "?page=2" in first


def test_before_anybody_has_joined_it_says_what_to_do() -> None:
    assert "runnode --tracker" in shown(client_of("operator"))
    assert "An operator of this site makes a join token" in shown()


def test_operators_approve_from_the_list(mesh: Crowd) -> None:
    [waiting, _] = Node.objects.filter(status=Node.Status.PENDING)
    assert f'hx-post="/nodes/{waiting.pk}/approve"' in shown(client_of("operator"), state="pending")
    assert "hx-post" not in shown(client_of("viewer"), state="pending")


def test_names_with_markup_are_escaped() -> None:
    crowd(20, 20, num_samples=1, spice="<i>")
    assert "<i>" not in shown(client_of("operator"))


def test_many_nodes_take_as_many_queries_as_few(mesh: Crowd, django_assert_max_num_queries: Any) -> None:
    client = client_of("viewer")
    with django_assert_max_num_queries(12):
        shown(client)
