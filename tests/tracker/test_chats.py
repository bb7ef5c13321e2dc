"""What a chat's head is asked: route, ticket, headers, body; and what is refused before any node hears of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from relay import headers, wire
from tests.tracker.conftest import FINGERPRINT, MakeNode
from tests.tracker.sessions import begin_chat as begin
from tests.tracker.sessions import begin_chats
from tracker import answers, chats, endings
from tracker.candidates import loaded
from tracker.chats import Chat
from tracker.endings import Outcome
from tracker.errors import ApiError
from tracker.models import ChatSession, LanguageModel, Node
from tracker.openai import read_completion
from tracker.tickets import SigningKey

pytestmark = pytest.mark.django_db
Connect = Callable[[Node], None]


def ticket_of(chat: Chat) -> headers.Ticket:
    return headers.decode_ticket(chat.request.headers[headers.TICKET])[0]


def asked(chat: Chat) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(chat.request.body)
    return fields


@pytest.fixture
def pair(make_node: MakeNode, connect: Connect) -> tuple[Node, Node]:
    head, tail = make_node("head", 0, 6), make_node("tail", 4, 12)
    connect(head)
    connect(tail)
    return head, tail


def test_the_head_gets_the_downstream_hops_as_the_record_writes_them(
    pair: tuple[Node, Node], settings: Settings
) -> None:
    settings.RELAY_URLS = ["wss://relay.example.org"]
    chat, tail = begin(), pair[1]
    assert json.loads(chat.request.headers[headers.ROUTE]) == [
        {
            "endpoint": None,
            "start_layer": 6,
            "end_layer": 12,
            "peer_id": tail.peer_id,
            "relay_addr": f"wss://relay.example.org/rpc/{tail.peer_id}",
        }
    ]


def test_the_head_hears_which_wire_versions_a_hop_speaks(pair: tuple[Node, Node]) -> None:
    tail = pair[1]
    tail.wire_versions = [1, 2]
    tail.save()
    (hop,) = headers.decode_route(begin().request.headers[headers.ROUTE])
    assert hop.wire == (1, 2)


def test_the_ticket_allows_exactly_the_route(pair: tuple[Node, Node], ticket_key: SigningKey) -> None:
    chat, (head, tail) = begin(seed=7, max_tokens=9), pair
    ticket = ticket_of(chat)
    session = ChatSession.objects.get()
    assert ticket.hops == ((head.peer_id, 0, 6), (tail.peer_id, 6, 12))
    assert (ticket.head, ticket.kid, ticket.epoch) == (head.peer_id, ticket_key.kid, 0)
    assert (ticket.fingerprint, ticket.dtype, ticket.seed, ticket.max_tokens) == (FINGERPRINT, "bfloat16", 7, 9)
    assert ticket.session == session.session_id == chat.request.headers[headers.SESSION]


def test_a_ticket_outlives_the_deadline_a_little(pair: tuple[Node, Node], settings: Settings) -> None:
    settings.REQUEST_DEADLINE_S, settings.FAILOVER_WAIT_S = 50, 3.0
    chat = begin()
    left_s = ticket_of(chat).expires - timezone.now().timestamp()
    assert 100 < left_s <= 110
    assert chat.request.deadline_ms == 50_000
    assert chat.request.headers[headers.DEADLINE_MS] == "50000"
    assert chat.request.headers[headers.FAILOVER_WAIT_MS] == "3000"


def test_the_relays_own_limit_bounds_the_deadline(pair: tuple[Node, Node], settings: Settings) -> None:
    settings.REQUEST_DEADLINE_S = 100_000
    assert begin().deadline_s == wire.MAX_DEADLINE_S


def test_a_request_may_ask_for_less_time(pair: tuple[Node, Node]) -> None:
    chat = begin(meshnet={"deadline_s": 2.5})
    assert (chat.deadline_s, chat.request.deadline_ms, chat.request.headers[headers.DEADLINE_MS]) == (2.5, 2500, "2500")
    session = ChatSession.objects.get()
    assert session.deadline - session.started == timedelta(seconds=2.5)


def test_a_request_for_more_time_than_the_operator_gives_is_refused(
    pair: tuple[Node, Node], settings: Settings
) -> None:
    settings.REQUEST_DEADLINE_S, settings.FAILOVER_WAIT_S = 50, 3.0
    with pytest.raises(ApiError, match="is 51; at most 50 seconds are given here") as error:
        begin(meshnet={"deadline_s": 51})
    assert (error.value.status, error.value.param) == (400, "meshnet.deadline_s")


def test_the_body_is_made_regular(pair: tuple[Node, Node]) -> None:
    chat = begin(temperature=0, stop="x", max_completion_tokens=3, user="me", n=1, stream=True)
    assert asked(chat) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0,
        "top_p": 1,
        "stop": ["x"],
        "seed": ticket_of(chat).seed,
        "max_tokens": 3,
    }


def test_a_drawn_seed_is_in_the_ticket_in_the_body_and_in_the_row(pair: tuple[Node, Node]) -> None:
    first, second = begin(), begin()
    assert ticket_of(first).seed == asked(first)["seed"] == ChatSession.objects.get(pk=first.session_pk).seed
    assert ticket_of(first).seed != ticket_of(second).seed


def test_each_choice_is_a_session_of_its_own_with_the_next_seed(pair: tuple[Node, Node]) -> None:
    begun = begin_chats(n=3, seed=7)
    sessions = list(ChatSession.objects.order_by("choice"))
    assert [(session.choice, session.seed) for session in sessions] == [(0, 7), (1, 8), (2, 9)]
    assert [(ticket_of(chat).seed, asked(chat)["seed"]) for chat in begun] == [(7, 7), (8, 8), (9, 9)]
    assert [ticket_of(chat).session for chat in begun] == [session.session_id for session in sessions]
    assert [chat.answer.index for chat in begun] == [0, 1, 2]
    assert len({session.session_id for session in sessions}) == 3
    assert {session.completion_id for session in sessions} == {begun[0].answer.completion.completion_id}
    assert all(session.hops.count() == 2 for session in sessions)


def test_the_seed_after_the_last_is_the_first() -> None:
    assert chats.seeds_of(2**63 - 2, 3) == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert chats.seeds_of(-(2**63), 1) == [-(2**63)]


def test_choices_spread_over_nodes(make_node: MakeNode, connect: Connect) -> None:
    for name in ("a", "b"):
        connect(make_node(name))
    begin_chats(n=4)
    assert sorted(session.hops.get().node_name for session in ChatSession.objects.all()) == ["a", "a", "b", "b"]


def test_choices_take_room_from_each_other(make_node: MakeNode, connect: Connect) -> None:
    before = timezone.now() - timedelta(seconds=1)
    connect(make_node("small", max_cached_tokens=150, last_seen=before))
    connect(make_node("large", max_cached_tokens=900, last_seen=before))
    begin_chats(n=4, max_tokens=60)
    names = [session.hops.get().node_name for session in ChatSession.objects.all()]
    assert sorted(names) == ["large", "large", "large", "small"]


def test_of_a_further_choice_only_the_ticket_costs_a_query(
    pair: tuple[Node, Node], django_assert_max_num_queries: Callable[..., Any]
) -> None:
    with CaptureQueriesContext(connection) as of_one:
        begin()
    with django_assert_max_num_queries(len(of_one) + 3):
        begin_chats(n=4)


def test_rows_keep_what_the_client_wrote_beside_its_request(pair: tuple[Node, Node]) -> None:
    begin_chats(n=2, user="ann", metadata={"ticket": "7"})
    for session in ChatSession.objects.all():
        assert (session.user, session.metadata) == ("ann", {"ticket": "7"})


@pytest.mark.parametrize(
    ("wanted", "in_body", "in_ticket"), [(None, None, 256), (5, 5, 5), (10_000, 256, 256), (10**8, 256, 256)]
)
def test_limits_are_clamped_to_the_context(
    pair: tuple[Node, Node], wanted: int | None, in_body: int | None, in_ticket: int
) -> None:
    chat = begin(max_tokens=wanted)
    assert (asked(chat)["max_tokens"], ticket_of(chat).max_tokens) == (in_body, in_ticket)


def test_a_completion_goes_to_its_own_path_with_its_prompt(pair: tuple[Node, Node]) -> None:
    wanted = read_completion(b'{"model": "tiny", "prompt": "Once"}')
    [chat] = chats.begin(wanted, answers.COMPLETION, None, timezone.now())
    assert chat.request.path == "/v1/completions"
    assert (asked(chat)["prompt"], asked(chat)["max_tokens"]) == ("Once", 16)
    assert chat.answer.completion.completion_id.startswith("cmpl-")


def test_rows_name_the_route_from_the_first_moment(pair: tuple[Node, Node]) -> None:
    begin()
    session = ChatSession.objects.get()
    assert session.state == ChatSession.State.RUNNING
    assert [str(hop) for hop in session.hops.all()] == ["head, layers 0–5", "tail, layers 6–11"]


def test_a_proved_endpoint_is_given_by_its_checked_address(make_node: MakeNode, connect: Connect) -> None:
    until = timezone.now() + timedelta(seconds=5)
    proved = {"endpoint": "http://node.example.org:7002", "endpoint_address": "203.0.113.7"}
    connect(make_node("head", 0, 6))
    make_node("tail", 6, 12, uses_relay=False, endpoint_proved_until=until, **proved)
    [hop] = headers.decode_route(begin().request.headers[headers.ROUTE])
    assert (hop.endpoint, hop.relay_addr) == ("http://203.0.113.7:7002", None)


def test_an_endpoint_that_proved_nothing_is_not_given(make_node: MakeNode, connect: Connect) -> None:
    claimed = {"endpoint": "http://node.example.org:7002", "endpoint_address": "203.0.113.7"}
    connect(make_node("head", 0, 6))
    connect(make_node("tail", 6, 12, endpoint_proved_until=timezone.now(), **claimed))
    [hop] = headers.decode_route(begin().request.headers[headers.ROUTE])
    assert hop.endpoint is None
    assert hop.relay_addr


def test_a_missing_layer_is_named_with_a_time_to_come_back(make_node: MakeNode, connect: Connect) -> None:
    connect(make_node("head", 0, 6))
    make_node("tail", 6, 12)  # its socket is closed
    with pytest.raises(ApiError) as error:
        begin()
    assert (error.value.status, error.value.code) == (503, "no_route")
    assert "layers 6–11 have no node online" in error.value.message
    assert int(error.value.headers["Retry-After"]) > 0
    assert not ChatSession.objects.exists()


def test_a_model_whose_first_node_has_yet_to_come_has_no_route(db: None) -> None:
    LanguageModel.objects.create(name="tiny")
    with pytest.raises(ApiError) as error:
        begin()
    assert (error.value.status, error.value.code) == (503, "no_route")


@pytest.mark.parametrize("name", ["nobody", "tiny\0", "' OR 1=1", "x" * 200])
def test_an_unknown_model_is_not_found(pair: tuple[Node, Node], name: str) -> None:
    with pytest.raises(ApiError) as error:
        begin(model=name)
    assert (error.value.status, error.value.code, error.value.param) == (404, "model_not_found", "model")


def test_a_prompt_that_no_envelope_holds_is_refused(pair: tuple[Node, Node]) -> None:
    with pytest.raises(ApiError) as error:
        begin(messages=[{"role": "user", "content": "\n" * 1024 * 1024}])
    assert (error.value.status, error.value.param) == (400, "messages")
    assert not ChatSession.objects.exists()


def test_nodes_of_another_model_are_not_on_the_route(pair: tuple[Node, Node], make_node: MakeNode) -> None:
    other = LanguageModel.objects.create(name="other", fingerprint="cd" * 32, num_layers=12)
    Node.objects.filter(pk=pair[1].pk).update(model=other)
    with pytest.raises(ApiError, match="layers 6–11"):
        begin()


def test_the_node_with_fewer_sessions_is_taken(make_node: MakeNode, connect: Connect) -> None:
    for name in ("a", "b", "c"):
        connect(make_node(name))
    routes = []
    for _ in range(6):
        begin()
        routes.append(ChatSession.objects.order_by("-pk")[0].hops.get().node_name)
    assert sorted(routes[:3]) == sorted(routes[3:]) == ["a", "b", "c"]


def test_a_node_without_room_for_a_session_is_passed_by(make_node: MakeNode, connect: Connect) -> None:
    before = timezone.now() - timedelta(seconds=1)
    connect(make_node("full", max_cached_tokens=300, reserved_tokens=200, last_seen=before))
    connect(make_node("roomy", max_cached_tokens=300, last_seen=before))
    for _ in range(4):
        begin(max_tokens=60)
    routes = [session.hops.get().node_name for session in ChatSession.objects.order_by("pk")]
    assert sorted(routes) == ["full", "roomy", "roomy", "roomy"]


def test_room_that_a_heartbeat_tells_is_told_with_what_was_given_before(make_node: MakeNode) -> None:
    node = make_node("a", max_cached_tokens=300, reserved_tokens=120, last_seen=timezone.now() + timedelta(seconds=9))
    [node] = loaded([node], timezone.now())
    assert node.room_tokens == 180


@pytest.mark.parametrize(("duty", "words"), [(Node.Duty.PAUSED, "paused"), (Node.Duty.DRAINING, "being drained")])
def test_a_node_off_duty_gets_no_session_and_is_named(
    make_node: MakeNode, connect: Connect, duty: str, words: str
) -> None:
    connect(make_node("idle", duty=duty))
    why = rf"layers 0–11 have no node that takes sessions \(node idle is {words} by the operator\)"
    with pytest.raises(ApiError, match=why):
        begin()


def test_nodes_that_take_no_sessions_are_named_in_order(make_node: MakeNode, connect: Connect) -> None:
    for name in ("c", "a", "b"):
        connect(make_node(name, 0, 6, duty=Node.Duty.PAUSED))
    connect(make_node("d", 0, 6))
    with pytest.raises(
        ApiError, match=r"layers 6–11 have no node online \(node a is .*; node b is .*; node c is "
    ) as why:
        begin()
    assert "takes sessions" not in why.value.message, "they hold other layers"


def test_a_node_that_is_left_out_gets_no_session_and_is_named(make_node: MakeNode, connect: Connect) -> None:
    until = timezone.now() + timedelta(seconds=9)
    connect(make_node("bad", breaker_until=until, breaker_openings=1, breaker_reason="it said nothing for 5 s"))
    with pytest.raises(ApiError, match=f"node bad is left out until {until:%H:%M:%S} UTC: it said nothing for 5 s"):
        begin()


def test_sessions_that_were_lost_weigh_nothing(make_node: MakeNode, connect: Connect) -> None:
    idle, lost = make_node("idle"), make_node("lost")
    connect(lost)
    for _ in range(3):
        begin()
    an_hour_ago = timezone.now() - timedelta(hours=1)
    ChatSession.objects.update(started=an_hour_ago, last_news=an_hour_ago)
    connect(idle)
    begin()
    begin()
    recent = ChatSession.objects.filter(started__gt=timezone.now() - timedelta(minutes=1))
    assert sorted(session.hops.get().node_name for session in recent) == ["idle", "lost"]


def test_an_end_that_nobody_explained_is_a_failure(pair: tuple[Node, Node]) -> None:
    endings.finish(begin(), Outcome(), timezone.now())
    session = ChatSession.objects.get()
    assert (session.state, session.error_code) == (ChatSession.State.FAILED, "internal_error")
