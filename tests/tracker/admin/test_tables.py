from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from relay.auth import authenticator
from relay.throttle import Throttle
from tests.tracker.admin.conftest import OURS, contributed, url
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import PeerSocket
from tracker import audit, credentials
from tracker.models import (
    ApiKey,
    AuditEntry,
    ChatSession,
    Contribution,
    Failover,
    JoinToken,
    LanguageModel,
    Node,
    TicketKey,
    Usage,
)
from tracker.models.keys import find_by_credential

pytestmark = pytest.mark.django_db
NO_USAGE = {"usage-TOTAL_FORMS": 0, "usage-INITIAL_FORMS": 0}


@pytest.mark.parametrize("table", OURS)
def test_every_page_of_the_admin_renders(operator: Client, rows: None, table: Any) -> None:
    row = table.objects.get()
    for path in (url(table), url(table) + "?q=node", url(table, row.pk, "change"), url(table, row.pk, "history")):
        assert operator.get(path).status_code == 200, path


def test_keys_that_sign_tickets_are_not_in_the_admin() -> None:
    assert TicketKey not in OURS


def test_only_staff_see_the_admin(client: Client, django_user_model: Any) -> None:
    assert client.get("/admin/").status_code == 302
    client.force_login(django_user_model.objects.create_user("somebody"))
    assert client.get(url(Node)).status_code == 302


def test_passwords_are_tried_slowly(client: Client, django_user_model: Any) -> None:
    django_user_model.objects.create_superuser("operator", password="right")

    def log_in(password: str) -> Any:
        return client.post("/admin/login/?next=/admin/", {"username": "operator", "password": password})

    assert "Please enter the correct" in log_in("wrong").content.decode()
    for _ in range(11):
        authenticator.throttle.failed("127.0.0.1")
    for password in ("wrong", "right"):
        assert "Too many failed attempts" in log_in(password).content.decode()
    authenticator.throttle = Throttle(time.monotonic)
    assert log_in("right").status_code == 302


def test_a_node_shows_its_status_with_the_reason_its_layers_and_its_reach(operator: Client, rows: None) -> None:
    page = operator.get(url(Node)).content.decode()
    assert "offline: its socket to the relay has just closed" in page
    assert "layers 6–11" in page
    assert "relay, http://10.0.0.1:7002 (10.0.0.1 is private)" in page


def test_a_connected_node_is_online(operator: Client, make_node: MakeNode, connect: Callable[[Node], None]) -> None:
    connect(make_node("node-a"))
    assert "online: connected to the relay" in operator.get(url(Node)).content.decode()


def test_a_node_of_the_admin_has_a_name_to_change_and_nothing_else(operator: Client, rows: None) -> None:
    node = Node.objects.get()
    form = {
        "name": "renamed",
        "status": "revoked",
        "peer_id": "x" * 32,
        "shard-TOTAL_FORMS": 0,
        "shard-INITIAL_FORMS": 0,
    }
    assert operator.post(url(Node, node.pk, "change"), form).status_code == 302
    changed = Node.objects.get()
    assert (changed.name, changed.status, changed.peer_id) == ("renamed", node.status, node.peer_id)
    assert operator.get(url(Node, "add")).status_code == 403


def act(operator: Client, model: Any, action: str, **said: str) -> str:
    chosen = [str(row.pk) for row in model.objects.all()]
    form = {"action": action, "_selected_action": chosen, **said}
    page = operator.post(url(model), form, follow=True).content.decode()
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_approving_says_who_was_approved_and_who_could_not_be(operator: Client, make_node: MakeNode) -> None:
    facts = {"fingerprint": "cd" * 32, "num_layers": 12, "hidden_size": 64, "context_length": 256}
    make_node("good", status=Node.Status.PENDING)
    make_node("fake", status=Node.Status.PENDING, model_facts=facts)
    page = act(operator, Node, "approve")
    assert "Approved: good." in page
    assert "Node fake can&#x27;t be approved: its fingerprint is cdcdcdcdcdcd" in page
    assert Node.objects.get(name="fake").status == Node.Status.PENDING


def test_revoking_says_who_was_revoked(operator: Client, make_node: MakeNode) -> None:
    make_node("node-a")
    assert "Revoked: node-a." in act(operator, Node, "revoke")
    assert Node.objects.get().status == Node.Status.REVOKED


@pytest.mark.parametrize(
    ("before", "action", "duty", "said"),
    [
        ("works", "pause", "paused", "Paused: node-a. New sessions go elsewhere; its own finish."),
        ("paused", "drain", "draining", "Draining: node-a. New sessions go elsewhere; its own move to nodes with the"),
        ("paused", "resume", "works", "Resumed: node-a. It gets sessions again."),
        ("paused", "pause", "paused", "Node node-a is paused already."),
        ("works", "resume", "works", "Node node-a works already."),
        ("draining", "drain", "draining", "Node node-a is being drained already."),
    ],
)
def test_a_node_is_given_its_duty(
    operator: Client, make_node: MakeNode, before: str, action: str, duty: str, said: str
) -> None:
    make_node("node-a", duty=before)
    assert said in act(operator, Node, action)
    assert Node.objects.get().duty == duty


def test_a_paused_node_is_online_and_says_why_it_gets_nothing(
    operator: Client, make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    connect(make_node("node-a", duty="paused"))
    page = operator.get(url(Node)).content.decode()
    assert "online: connected to the relay, but it is paused by the operator" in page


def test_a_node_that_was_left_out_is_used_again_when_the_operator_says_so(
    operator: Client, make_node: MakeNode
) -> None:
    until = timezone.now() + timedelta(minutes=5)
    make_node("bad", breaker_until=until, breaker_openings=6, breaker_reason="it fell silent")
    make_node("good")
    assert "Not left out any more: bad." in act(operator, Node, "use_again")
    node = Node.objects.get(name="bad")
    assert (node.breaker_until, node.breaker_openings, node.breaker_reason) == (None, 0, "")
    assert node.cleared
    assert node.cleared > until - timedelta(minutes=5)
    assert "Node bad wasn&#x27;t left out." in act(operator, Node, "use_again")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["revoke", "delete_selected"])
async def test_who_is_revoked_or_deleted_is_disconnected(
    transactional_db: None, operator: Client, lone_node: Node, how: str
) -> None:
    closed = asyncio.Event()

    class Socket(PeerSocket):
        def close(self, code: Any, message: str) -> None:
            super().close(code, message)
            closed.set()

    Socket(lone_node.peer_id, "tiny")
    form = {"action": how, "_selected_action": [str(lone_node.pk)], "post": "yes"}
    await asyncio.to_thread(operator.post, url(Node), form)
    await asyncio.wait_for(closed.wait(), 10)


@pytest.fixture
def lone_node(make_node: MakeNode) -> Node:
    return make_node("only")


@pytest.mark.parametrize(("model", "kind"), [(JoinToken, credentials.Kind.JOIN), (ApiKey, credentials.Kind.API)])
def test_a_secret_is_shown_once_when_it_is_made(operator: Client, model: Any, kind: credentials.Kind) -> None:
    response = operator.post(url(model, "add"), {"label": "for me"})
    page = response.content.decode()
    found = re.search(rf'value="({kind}_[0-9a-f]+\.[^"]+)"', page)
    assert found
    assert "no-store" in response["Cache-Control"]
    row = model.objects.get()
    assert find_by_credential(model.objects.all(), found[1]) == row
    assert row.label == "for me"
    for path in (url(model), url(model, row.pk, "change")):
        assert found[1].partition(".")[2] not in operator.get(path).content.decode()


def test_a_new_join_token_comes_with_the_line_that_uses_it(operator: Client) -> None:
    form = {"label": "", "uses_left": "2", "needs_approval": "on"}
    page = operator.post(url(JoinToken, "add"), form).content.decode()
    assert "python manage.py runnode --tracker http://127.0.0.1:8000" in page
    token = JoinToken.objects.get()
    assert (token.uses_left, token.needs_approval) == (2, True)


def test_a_form_that_is_sent_again_makes_no_second_secret(operator: Client) -> None:
    page = operator.get(url(JoinToken, "add")).content.decode()
    found = re.search('name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert found
    form = {"label": "for Ada", "csrfmiddlewaretoken": found[1]}
    assert "join_" in operator.post(url(JoinToken, "add"), form).content.decode()
    again = operator.post(url(JoinToken, "add"), form, follow=True)
    assert again.redirect_chain == [(url(JoinToken), 302)]
    assert "Nothing was made now." in again.content.decode()
    assert JoinToken.objects.count() == 1


def test_what_is_typed_into_a_field_is_one_line(operator: Client, lone_node: Node) -> None:
    operator.post(url(JoinToken, "add"), {"label": "for\r\nAda\x1b[31m"})
    assert JoinToken.objects.get().label == "for Ada [31m"
    act(operator, Node, "ban", reason="it answers\nnonsense", lasts="1h")
    assert Node.objects.get().ban_reason == "it answers nonsense"


def test_editing_a_key_keeps_its_secret(operator: Client, api_key: credentials.Credential) -> None:
    row = ApiKey.objects.get()
    operator.post(url(ApiKey, row.pk, "change"), {"label": "renamed", **NO_USAGE})
    assert find_by_credential(ApiKey.objects.all(), api_key.text).label == "renamed"  # type: ignore[union-attr]


def test_keys_are_revoked_by_an_action_that_says_how_many(operator: Client, api_key: credentials.Credential) -> None:
    assert "Revoked: test (" in act(operator, ApiKey, "revoke")
    assert ApiKey.objects.get().revoked


def test_the_form_of_a_join_token_begins_with_ten_nodes_and_a_day(operator: Client) -> None:
    page = operator.get(url(JoinToken, "add")).content.decode()
    tomorrow = timezone.now() + timedelta(days=1)
    assert re.search('name="uses_left" value="10"', page)
    days = {f"{tomorrow - timedelta(minutes=1):%Y-%m-%d}", f"{tomorrow:%Y-%m-%d}"}  # it may be midnight
    assert set(re.findall('name="expires_0" value="([^"]*)"', page)) <= days
    assert 'name="expires_0" value="' in page


def test_a_join_token_shows_why_it_is_no_good(operator: Client, join_token: Any) -> None:
    JoinToken.objects.update(expires=timezone.now() - timedelta(days=1))
    assert "this join token expired" in operator.get(url(JoinToken)).content.decode()


def test_sessions_are_read_only_with_their_hops(operator: Client, rows: None) -> None:
    session = ChatSession.objects.get()
    page = operator.get(url(ChatSession, session.pk, "change")).content.decode()
    assert "layers 6–11" in page
    assert "node-a" in page
    assert session.session_id not in page
    assert "01234567" in page
    assert operator.get(url(ChatSession, "add")).status_code == 403
    assert operator.post(url(ChatSession, session.pk, "change"), {}).status_code == 403


@pytest.mark.parametrize("words", ["ann@example.org", "req_1", "42", "ICKET", "Zoë", "chatcmpl-1"])
def test_sessions_are_found_by_what_clients_say_of_them(operator: Client, rows: None, words: str) -> None:
    session = ChatSession.objects.get()
    session.user, session.request_id, session.metadata = "ann@example.org", "req_1", {"ticket": "no 42 of Zoë"}
    session.save()
    for query, is_found in ((words, True), (f"{words}x", False)):
        listed = operator.get(url(ChatSession), {"q": query}).content.decode()
        assert (session.short_id in listed) is is_found


def test_a_session_shows_what_it_went_on_without(operator: Client, rows: None) -> None:
    session, node = ChatSession.objects.get(), Node.objects.get()
    said = {"code": "node_failed", "cause": "no path works", "at": timezone.now(), "resume_ms": 812.4}
    layers = {"start_layer": 4, "end_layer": 6}
    Failover.objects.create(session=session, epoch=1, kind="hop", node=node, node_name="node-b", **layers, **said)
    page = operator.get(url(ChatSession, session.pk, "change")).content.decode()
    for shown in ("a node after the head was lost", "node-b", "layers 4–5", "node_failed", "no path works", "812.4"):
        assert shown in page
    for query, times in (
        *(("failovers__kind=hop", 1), ("failovers__kind=head", 0), ("q=node_fail", 1), ("q=node-a", 1)),
        *(("q=node-a&failovers__kind=hop", 1), ("q=node-a&failovers__kind=head", 0), ("q=node-c", 0)),
    ):
        listed = operator.get(url(ChatSession) + f"?{query}").context["cl"].queryset
        assert [one.pk for one in listed] == [session.pk] * times, query


@pytest.mark.parametrize("table", [*OURS, User])
def test_fields_explain_themselves(operator: Client, rows: None, table: Any) -> None:
    """All that a row's page shows."""
    page = operator.get(url(table, table.objects.get().pk, "change"))
    fields = [field.field for fieldset in page.context["adminform"] for line in fieldset for field in line]
    told = {
        field["name"] if isinstance(field, dict) else field.name: field["help_text"]
        if isinstance(field, dict)
        else field.help_text
        for field in fields
    }
    assert len(told) > 1
    assert [name for name, help_text in told.items() if not help_text] == []


def test_a_model_says_whether_its_route_is_complete(operator: Client, make_node: MakeNode) -> None:
    make_node("node-a", 0, 6)
    assert "layers 0–11 have no node online" in operator.get(url(LanguageModel)).content.decode()


def test_contributions_are_summed_by_owner_and_by_node_for_the_days_that_are_shown(operator: Client) -> None:
    contributed("node-a", "Ada", 10)
    contributed("node-b", "Ada", 5)
    contributed("node-a", "Ada", 7, day=timezone.now().date() - timedelta(days=400))
    contributed("node-c", "", 1)

    def sums(query: str = "") -> dict[str, list[Any]]:
        totals = operator.get(url(Contribution) + query).context["totals"]
        return {who: [tuple(row.values()) for row in rows] for who, rows in totals.items()}

    assert sums() == {
        "owner": [("Ada", 3, 22, 13_200), ("", 1, 1, 600)],
        "node": [("node-a", 2, 17, 10_200), ("node-b", 1, 5, 3_000), ("node-c", 1, 1, 600)],
    }
    this_year = sums(f"?day__year={timezone.now().year}")
    assert this_year["node"][0] == ("node-a", 1, 10, 6_000)
    assert sums("?owner_label=Ada")["owner"] == [("Ada", 3, 22, 13_200)]
    page = operator.get(url(Contribution)).content.decode()
    assert "13200" in page
    assert "Sessions × nodes" in page, "two nodes of one owner in a session are two"
    assert "not known" in page


def test_a_key_is_given_its_limits_and_models(operator: Client, model: LanguageModel) -> None:
    form = {"label": "for me", "allowed_models": [model.pk], "requests_per_minute": "60", "max_concurrent": "2"}
    form |= {"expires_0": "2030-01-01", "expires_1": "12:00"}
    assert operator.post(url(ApiKey, "add"), form).status_code == 200
    key = ApiKey.objects.get()
    assert (key.requests_per_minute, key.max_concurrent, key.tokens_per_day) == (60, 2, None)
    assert list(key.allowed_models.all()) == [model]
    page = operator.get(url(ApiKey)).content.decode()
    assert "60 requests per minute, 2 requests at the same time" in page
    ApiKey.objects.update(expires=timezone.now() - timedelta(days=1))
    assert "this API key expired" in operator.get(url(ApiKey)).content.decode()


def test_a_reason_without_a_refusal_is_saved_with_a_warning(operator: Client, model: LanguageModel) -> None:
    page = operator.get(url(LanguageModel, model.pk, "change"))
    sent = {name: value for name, value in page.context["adminform"].form.initial.items() if value is not None}
    sent |= {"refusal_reason": "its license ended"}
    said = operator.post(url(LanguageModel, model.pk, "change"), sent, follow=True).content.decode()
    assert "Tiny isn&#x27;t refused, though a reason says why: tick Refused if it should be." in said
    said = operator.post(
        url(LanguageModel, model.pk, "change"), sent | {"is_refused": "on"}, follow=True
    ).content.decode()
    assert "isn&#x27;t refused" not in said


def test_a_limit_of_nothing_is_refused(operator: Client, db: None) -> None:
    page = operator.post(url(ApiKey, "add"), {"tokens_per_day": "0"}).content.decode()
    assert "greater than or equal to 1" in page
    assert not ApiKey.objects.exists()


def test_usage_is_listed_with_its_sums_and_beside_its_key(operator: Client, rows: None) -> None:
    key, day = ApiKey.objects.get(), timezone.now().date()
    Usage.objects.create(api_key=None, day=day, model_name="b", requests=4, failed=2, prompt_tokens=50)
    page = operator.get(url(Usage)).content.decode()
    assert "Usage: 7 requests (2 failed), 50 tokens of prompts and 0 of answers" in page
    assert "Usage: 3 requests (0 failed)" in operator.get(url(Usage) + f"?api_key__id__exact={key.pk}").content.decode()
    Usage.objects.filter(api_key=key).update(requests=12345)
    assert "12345" in operator.get(url(ApiKey, key.pk, "change")).content.decode()
    Usage.objects.filter(api_key=key).update(day=day - timedelta(days=31))
    assert "12345" not in operator.get(url(ApiKey, key.pk, "change")).content.decode()


def test_a_model_is_not_deleted_while_a_key_names_it_alone(
    operator: Client, model: LanguageModel, api_key: credentials.Credential
) -> None:
    key, other = ApiKey.objects.get(), LanguageModel.objects.create(name="other")
    key.allowed_models.add(model)
    assert "which names no other model" in operator.get(url(LanguageModel, model.pk, "delete")).content.decode()
    operator.post(url(LanguageModel, model.pk, "delete"), {"post": "yes"})
    assert LanguageModel.objects.count() == 2, "without it the key would open every model"
    key.allowed_models.add(other)
    operator.post(url(LanguageModel, model.pk, "delete"), {"post": "yes"})
    assert [model.name for model in LanguageModel.objects.for_key(key.pk)] == ["other"]


def test_lists_ask_the_database_as_often_for_many_rows_as_for_few(
    operator: Client, make_node: MakeNode, connect: Callable[[Node], None], django_user_model: Any
) -> None:
    def num_queries(table: Any) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(url(table)).status_code == 200
        return len(queries)

    def more(numbers: range) -> None:
        for number in numbers:
            connect(make_node(f"node-{number}"))
            Usage.objects.create(
                api_key=ApiKey.objects.create(key_id=f"key_{number}"), day=timezone.now().date(), model_name="tiny"
            )
            JoinToken.objects.create(key_id=f"join_{number}")
            django_user_model.objects.create_user(f"user-{number}")
            audit.record(None, "pause", Node.objects.all()[0])

    tables = (Node, ApiKey, JoinToken, Usage, AuditEntry, django_user_model)
    more(range(2))
    few = [num_queries(table) for table in tables]
    more(range(2, 20))
    assert [num_queries(table) for table in tables] == few


def test_what_a_key_has_used_today_is_counted_once_however_the_list_is_filtered(operator: Client, rows: None) -> None:
    key = ApiKey.objects.get()
    key.allowed_models.add(LanguageModel.objects.get(), LanguageModel.objects.create(name="other"))
    Usage.objects.update(prompt_tokens=40, completion_tokens=2)
    for query in ("", f"?allowed_models__id__exact={key.allowed_models.all()[0].pk}", "?revoked__exact=0"):
        page = operator.get(url(ApiKey) + query).content.decode()
        assert "3 requests, 42 tokens" in page
