"""A chat whose head is lost, over nodes' sockets on the real switchboard: its answer, and the session's story."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError
from django.utils import timezone
from pytest_django import Settings

from relay import headers, wire
from relay.hub import hub
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import PeerSocket, done, said, sse
from tracker import answers, chats, epochs, failover, proxy
from tracker.breaker import State
from tracker.errors import ApiError
from tracker.failover import Losses
from tracker.listening import Loss
from tracker.models import ChatSession, Failover, Node, SessionHop
from tracker.openai import read_chat

PROMPT = [1, 2, 3, 4, 5]
WORDS = ["Hel", "lo ", "wor", "ld"]
pytestmark = pytest.mark.django_db

Script = Callable[[wire.Request], list[wire.Answer]]


def event(number: int) -> dict[str, Any]:
    """The head's `number`th event of the whole answer."""
    own = {"prompt_ids": PROMPT} if number == 0 else {}
    reason = "stop" if number == len(WORDS) - 1 else None
    return said(WORDS[number], [10 + number], reason, position=len(PROMPT) + number, **own)


def tells(request: wire.Request, *items: Any) -> list[wire.Answer]:
    answer: list[wire.Answer] = [wire.Response(request.request_id, 200, {}, stream=True)]
    return answer + [wire.Chunk(request.request_id, sse(item)) for item in items]


def from_where_it_was(request: wire.Request) -> list[wire.Answer]:
    """A head that works."""
    resume = json.loads(request.body).get("meshnet", {}).get("resume", {"ids": []})
    rest = [event(number) for number in range(len(resume["ids"]), len(WORDS))]
    report = done(prompt_tokens=len(PROMPT), completion_tokens=len(WORDS))
    return [*tells(request, *rest, report, "data: [DONE]"), wire.End(request.request_id)]


def gone(request: wire.Request) -> list[wire.Answer]:
    return [wire.error_response(request.request_id, wire.Code.PEER_GONE, "the peer has gone")]


def busy(request: wire.Request) -> list[wire.Answer]:
    return [wire.error_response(request.request_id, wire.Code.BUSY, "no room")]


def after(num_events: int, then: Script = gone) -> Script:
    return lambda request: tells(request, *map(event, range(num_events))) + then(request)


class Mesh:
    """Two heads with sockets, and a tail for both."""

    def __init__(self, make_node: MakeNode) -> None:
        self.rows = {name: make_node(name, 0, 6) for name in ("one", "two")}
        self.tail, self.spare = make_node("tail", 6, 12), make_node("spare", 6, 12)
        self.asked: list[tuple[str, wire.Request]] = []
        self.scripts: dict[str, list[Script]] = {"one": [], "two": []}
        self.online = ["one", "two"]
        self.before_asking: Callable[[], object] = lambda: None

    @async_to_sync
    async def chat(self, is_streamed: bool = True, **fields: Any) -> Any:
        """What the client gets. The heads are asked as they come, each by its script; the last of it is kept."""
        sockets = {name: PeerSocket(self.rows[name].peer_id, "tiny") for name in self.online}
        tail = PeerSocket(self.tail.peer_id, "tiny")
        for name, socket in sockets.items():
            socket.reply = self._replies(name)
        try:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": is_streamed} | fields
            asked = read_chat(json.dumps(body).encode())
            begun = await sync_to_async(chats.begin)(asked, answers.CHAT, None, timezone.now())
            await sync_to_async(self.before_asking)()
            completion, events = begun[0].answer.completion, proxy.proxy_chats(begun)
            if not is_streamed:
                return await proxy.whole(completion, events)
            await anext(events)
            text = b"".join([part async for part in proxy.streamed(completion, events)]).decode()
        finally:
            for socket in [*sockets.values(), tail]:
                socket.leave()
        parts = text.removesuffix("\n\n").split("\n\n")
        return [json.loads(one[6:]) if one.startswith("data: {") else one for one in parts]

    def _replies(self, name: str) -> Script:
        def reply(request: wire.Request) -> list[wire.Answer]:
            self.asked.append((name, request))
            scripts = self.scripts[name]
            return (scripts.pop(0) if len(scripts) > 1 else scripts[0])(request)

        return reply

    def first_is(self, script: Script, then: Script = from_where_it_was) -> None:
        """Whichever of the two is asked first does this; the other does that."""

        def by_order(request: wire.Request) -> list[wire.Answer]:
            return script(request) if len(self.asked) == 1 else then(request)

        self.scripts = {"one": [by_order], "two": [by_order]}


@pytest.fixture
def mesh(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> Mesh:
    monkeypatch.setattr(failover, "REST_S", 0.1)
    return Mesh(make_node)


def text_of(parts: list[Any], index: int = 0) -> str:
    choices = [part["choices"][0] for part in parts if isinstance(part, dict) and part.get("choices")]
    return "".join(choice["delta"]["content"] for choice in choices if choice["index"] == index)


def test_a_head_that_fell_silent_is_left_out_for_a_while(mesh: Mesh, settings: Settings) -> None:
    settings.HEAD_SILENCE_S = 0.2
    mesh.first_is(after(1, then=lambda request: []))
    assert text_of([part for part in mesh.chat() if isinstance(part, dict)]) == "Hello world"
    silent = mesh.rows[mesh.asked[0][0]]
    silent.refresh_from_db()
    assert silent.breaker.state(timezone.now()) == State.OPEN
    assert silent.breaker_reason == "it said nothing for 0.2 s"


def test_a_head_that_has_gone_is_welcome_when_it_is_back(mesh: Mesh) -> None:
    mesh.first_is(after(1))
    mesh.chat()
    assert not Node.objects.exclude(breaker_until=None).exists()


@pytest.mark.parametrize("num_events", [0, 2])
def test_a_choice_that_loses_its_head_goes_on_beside_the_others(mesh: Mesh, num_events: int) -> None:
    mesh.first_is(after(num_events))
    parts = mesh.chat(n=3, stream_options={"include_usage": True})
    assert [text_of(parts, index) for index in range(3)] == ["Hello world"] * 3
    *_, usage, end = parts
    assert usage["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    assert end == "data: [DONE]"
    assert len(mesh.asked) == 4
    assert sorted(ChatSession.objects.values_list("epoch", flat=True)) == [0, 0, 1]
    assert not ChatSession.objects.exclude(state=ChatSession.State.DONE).exists()


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("num_events", range(len(WORDS) + 1))
def test_wherever_a_head_is_lost_the_answer_is_the_same(mesh: Mesh, num_events: int, is_streamed: bool) -> None:
    mesh.first_is(after(num_events))
    got = mesh.chat(is_streamed, **({"stream_options": {"include_usage": True}} if is_streamed else {}))
    session = ChatSession.objects.get()
    assert session.state == ChatSession.State.DONE
    assert session.completion_tokens == len(WORDS)
    usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    if isinstance(got, dict):
        assert got["choices"][0]["message"]["content"] == "Hello world"
        assert (got["choices"][0]["finish_reason"], got["usage"]) == ("stop", usage)
        return
    chunks = [part for part in got if isinstance(part, dict)]
    assert text_of(chunks) == "Hello world"
    assert [chunk["usage"] for chunk in chunks if chunk.get("usage")] == [usage]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert ["role" in choice["delta"] for choice in choices] == [True] + [False] * (len(choices) - 1)
    assert got[-1] == "data: [DONE]"


def test_the_next_head_hears_what_the_client_has(mesh: Mesh) -> None:
    mesh.first_is(after(2))
    mesh.chat(temperature=0.5, max_tokens=20)
    (_, first), (_, second) = mesh.asked
    before, now = json.loads(first.body), json.loads(second.body)
    text = "".join(WORDS[:2])
    assert now.pop("meshnet") == {
        "resume": {
            "prompt_ids": PROMPT,
            "ids": [10, 11],
            "sent_chars": len(text),
            "sent_sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
    }
    before.pop("messages")  # the prompt's ids take their place
    assert now == before
    assert second.path == first.path
    assert 0 < int(second.headers[headers.DEADLINE_MS]) <= int(first.headers[headers.DEADLINE_MS])


def test_where_nothing_was_told_the_next_head_is_asked_the_same(mesh: Mesh) -> None:
    mesh.first_is(after(0))
    mesh.chat()
    (_, first), (_, second) = mesh.asked
    assert first.body == second.body


def test_the_next_head_has_a_ticket_of_the_next_epoch(mesh: Mesh) -> None:
    mesh.first_is(after(1))
    mesh.chat()
    (_, first), (name, second) = mesh.asked
    old, new = (headers.decode_ticket(asked.headers[headers.TICKET])[0] for asked in (first, second))
    assert (old.epoch, new.epoch, second.headers[headers.EPOCH]) == (0, 1, "1")
    assert new.head == mesh.rows[name].peer_id
    assert (new.session, new.seed, new.max_tokens, new.expires) == (old.session, old.seed, old.max_tokens, old.expires)


def test_the_sessions_story_names_the_head_that_was_lost(mesh: Mesh) -> None:
    mesh.first_is(after(2))
    mesh.chat()
    first, second = (name for name, _ in mesh.asked)
    session, row = ChatSession.objects.get(), Failover.objects.get()
    assert (row.session, row.epoch, session.epoch) == (session, 1, 1)
    assert (row.kind, row.node, row.node_name) == ("head", mesh.rows[first], first)
    assert (row.start_layer, row.end_layer, row.reported_by) == (0, 6, None)
    assert (row.code, row.cause, row.position) == ("peer_gone", "the peer has gone", 7)
    assert (row.kept, row.replayed_tokens) == ("tokens", 7)
    assert row.resume_ms is not None
    routes = [(hop.epoch, hop.node_name) for hop in session.hops.all()]
    assert routes == [(0, first), (0, "tail"), (1, second), (1, "tail")]


def test_what_the_replay_took_is_told_by_the_new_head(mesh: Mesh) -> None:
    replay = {"epoch": 1, "kept": "tokens", "replayed_tokens": 6, "replay_compute_ms": 12.5}

    def reports(request: wire.Request) -> list[wire.Answer]:
        last = {"meshnet": done()["meshnet"] | {"failovers": [replay]}}
        return [*tells(request, *map(event, range(1, 4)), last, "data: [DONE]"), wire.End(request.request_id)]

    mesh.first_is(after(1), reports)
    mesh.chat()
    row = Failover.objects.get()
    assert (row.replayed_tokens, row.replay_compute_ms) == (6, 12.5)
    assert row.resume_ms is not None, "the tracker's own, which the head doesn't know"


def test_what_a_head_had_done_before_it_failed_is_kept(mesh: Mesh) -> None:
    def fails(request: wire.Request) -> list[wire.Answer]:
        node = next(row for name, row in mesh.rows.items() if name == mesh.asked[-1][0])
        times = {"steps": 3, "ms_total": 30.0, "compute_ms": 20.0, "queue_ms": 1.0}
        hop = {"peer_id": node.peer_id, "start_layer": 0, "end_layer": 6, "path": "local"} | times
        error = {"error": {"code": "node_failed", "message": "layers 6–11 failed"}}
        return tells(request, event(0), done([hop]), error)

    mesh.first_is(fails)
    chunks = mesh.chat()
    session = ChatSession.objects.get()
    assert text_of(chunks) == "Hello world"
    assert [hop.steps for hop in session.hops.filter(position=0)] == [3, None]
    assert [hop.tokens for hop in session.hops.filter(epoch=0)] == [5, 5], "what the client had went through them"
    assert session.completion_tokens == len(WORDS)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("busy", 503, "head"), ("internal", 500, "head"), ("forbidden", 403, "head"), ("draining", 503, "move")],
)
@pytest.mark.parametrize("is_told_in_the_stream", [True, False])
def test_a_head_that_refuses_is_left_for_another(
    mesh: Mesh, code: str, status: int, kind: str, is_told_in_the_stream: bool
) -> None:
    error = {"error": {"code": code, "message": "not here"}}

    def refuses(request: wire.Request) -> list[wire.Answer]:
        if is_told_in_the_stream:
            return tells(request, event(0), error)
        return [wire.Response(request.request_id, status, {}, json.dumps(error).encode())]

    mesh.first_is(refuses)
    assert text_of(mesh.chat()) == "Hello world"
    assert [(one.code, one.kind) for one in Failover.objects.all()] == [(code, kind)]


@pytest.mark.parametrize(
    ("code", "level", "words"), [("draining", "INFO", " left layers "), ("busy", "WARNING", " failed: not here")]
)
def test_a_head_that_is_being_drained_is_left_without_a_warning(
    mesh: Mesh, caplog: pytest.LogCaptureFixture, code: str, level: str, words: str
) -> None:
    error = {"error": {"code": code, "message": "not here"}}
    mesh.first_is(lambda request: [wire.Response(request.request_id, 503, {}, json.dumps(error).encode())])
    with caplog.at_level("INFO", "tracker.failover"):
        mesh.chat()
    told = [record for record in caplog.records if record.name == "tracker.failover"]
    assert [record.levelname for record in told] == [level, level]
    assert words in told[0].getMessage()
    assert told[0].getMessage().endswith(", which is being drained") is (code == "draining")


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("bad_request", 400, "invalid_value"),
        ("context_length_exceeded", 400, "context_length_exceeded"),
        ("rate_limited", 429, "rate_limit_exceeded"),
        ("deadline", 504, "deadline_exceeded"),
    ],
)
@pytest.mark.parametrize("is_told_in_the_stream", [True, False])
def test_what_is_the_clients_to_mend_goes_to_no_other_head(
    mesh: Mesh, code: str, status: int, told: str, is_told_in_the_stream: bool
) -> None:
    error = {"error": {"code": code, "message": "no"}}

    def refuses(request: wire.Request) -> list[wire.Answer]:
        if is_told_in_the_stream:
            return tells(request, error)
        return [wire.Response(request.request_id, status, {}, json.dumps(error).encode())]

    mesh.first_is(refuses)
    with pytest.raises(ApiError) as refused:
        mesh.chat(is_streamed=False)
    assert (refused.value.status, refused.value.code) == (status, told)
    assert len(mesh.asked) == 1
    assert not Failover.objects.exists()


@pytest.mark.parametrize("broken", [b"data: {\n\n", b"data: [DONE]\n\n"], ids=["unreadable", "ended early"])
def test_a_head_whose_stream_breaks_is_left_for_another(mesh: Mesh, broken: bytes) -> None:
    mesh.first_is(after(1, lambda request: [wire.Chunk(request.request_id, broken), wire.End(request.request_id)]))
    assert text_of(mesh.chat()) == "Hello world"


def test_a_head_that_falls_silent_is_left_for_another_and_left_out_for_a_while(mesh: Mesh, settings: Settings) -> None:
    settings.HEAD_SILENCE_S = 0.05
    mesh.first_is(after(1, lambda request: []))
    assert text_of(mesh.chat()) == "Hello world"
    assert Failover.objects.get().code == "head_silent"
    silent = mesh.rows[mesh.asked[0][0]]
    silent.refresh_from_db()
    assert "said nothing for 0.05 s" in silent.breaker_reason
    assert silent.breaker_until is not None


def test_a_head_that_begins_anew_instead_of_going_on_is_not_listened_to(mesh: Mesh) -> None:
    def anew(request: wire.Request) -> list[wire.Answer]:
        return [*tells(request, *map(event, range(4)), done(), "data: [DONE]"), wire.End(request.request_id)]

    mesh.first_is(after(2), anew)
    with pytest.raises(ApiError) as error:
        mesh.chat(is_streamed=False)
    assert error.value.code == "resume_mismatch"


def test_a_head_that_cant_read_how_to_go_on_isnt_the_clients_fault(mesh: Mesh) -> None:
    body = json.dumps({"error": {"code": "bad_request", "message": "messages must be a list"}}).encode()
    mesh.first_is(after(2), lambda request: [wire.Response(request.request_id, 400, {}, body)])
    with pytest.raises(ApiError) as error:
        mesh.chat(is_streamed=False)
    assert error.value.status == 502


def test_all_heads_may_fail_once(mesh: Mesh, settings: Settings) -> None:
    settings.FAILOVER_WAIT_S = 30
    scripts = [after(1), lambda request: tells(request, event(1)) + gone(request), from_where_it_was]

    def next_one(request: wire.Request) -> list[wire.Answer]:
        return scripts[len(mesh.asked) - 1](request)

    mesh.scripts = {"one": [next_one], "two": [next_one]}
    assert text_of(mesh.chat()) == "Hello world"
    names = [name for name, _ in mesh.asked]
    assert names[0] != names[1]
    assert names[2] in names[:2], "it is back, and nobody else is there"
    assert [one.epoch for one in Failover.objects.all()] == [1, 2]


def test_while_nobody_can_go_on_the_client_hears_that_it_isnt_forgotten(mesh: Mesh, settings: Settings) -> None:
    settings.FAILOVER_WAIT_S = 30
    mesh.online = ["one"]
    mesh.scripts["one"] = [after(1), from_where_it_was]
    parts = mesh.chat()
    assert text_of(parts) == "Hello world"
    assert ": keepalive" in parts


def test_without_another_head_there_is_one_error_that_says_so(mesh: Mesh, settings: Settings) -> None:
    settings.FAILOVER_WAIT_S = 0.3
    mesh.online = ["one"]
    mesh.scripts["one"] = [after(1), gone]
    *_, error, end = mesh.chat()
    assert error["error"]["code"] == "node_failed"
    said = error["error"]["message"]
    assert said.startswith("The chat lost layers 0–5: node one isn't connected any more, and no other node online has")
    assert end == "data: [DONE]"
    session = ChatSession.objects.get()
    assert (session.error_code, session.error_message) == ("node_failed", said)
    details = session.error_details
    assert "layers 0–5 on node one, is lost: the peer has gone" in details
    assert "no other node can go on: tiny can't answer now: layers 0–5 have no node online" in details


def test_the_deadline_ends_the_wait_for_a_head(mesh: Mesh, settings: Settings) -> None:
    settings.FAILOVER_WAIT_S, settings.REQUEST_DEADLINE_S = 60, 1
    mesh.online = ["one"]
    mesh.scripts["one"] = [after(1), gone]
    *_, error, _ = mesh.chat()
    assert error["error"]["code"] == "node_failed"


def test_a_busy_head_without_another_is_told_at_once(mesh: Mesh, settings: Settings) -> None:
    settings.FAILOVER_WAIT_S = 60
    mesh.online = ["one"]
    mesh.scripts["one"] = [busy]
    with pytest.raises(ApiError) as error:
        mesh.chat(is_streamed=False)
    assert (error.value.status, error.value.code) == (503, "busy")


@pytest.mark.parametrize("is_streamed", [True, False])
def test_while_the_site_shuts_down_a_chat_that_loses_its_head_ends_at_once(
    mesh: Mesh, settings: Settings, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    settings.FAILOVER_WAIT_S = 60

    def stops(request: wire.Request) -> list[wire.Answer]:
        monkeypatch.setattr(hub, "stops_at", time.monotonic() + 30)
        return after(1)(request)

    mesh.first_is(stops)
    if is_streamed:
        *_, error, end = mesh.chat()
        assert (error["error"]["code"], end) == ("draining", "data: [DONE]")
    else:
        with pytest.raises(ApiError) as refused:
            mesh.chat(is_streamed=False)
        assert (refused.value.status, refused.value.code) == (503, "draining")
    session = ChatSession.objects.get()
    assert (session.state, session.error_code) == (ChatSession.State.FAILED, "draining")
    assert len(mesh.asked) == 1


def test_while_the_site_shuts_down_a_chat_that_waits_for_a_head_waits_no_longer(
    mesh: Mesh, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FAILOVER_WAIT_S = 60
    mesh.online, mesh.scripts["one"] = ["one"], [after(1)]
    given = epochs.route_of

    def route_of(model: Any, now: Any, *lost: Any, **needs: Any) -> Any:
        if lost:
            monkeypatch.setattr(hub, "stops_at", time.monotonic() + 30)
        return given(model, now, *lost, **needs)

    monkeypatch.setattr(epochs, "route_of", route_of)
    *_, error, _ = mesh.chat()
    assert error["error"]["code"] == "draining"


def test_what_finishes_while_the_site_shuts_down_is_finished(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "stops_at", time.monotonic() + 30)
    mesh.first_is(from_where_it_was)
    assert text_of(mesh.chat()) == "Hello world"


@pytest.mark.parametrize("num_events", [0, 1])
def test_where_the_only_other_head_is_busy_the_error_names_the_one_that_was_lost(mesh: Mesh, num_events: int) -> None:
    mesh.first_is(after(num_events), busy)
    with pytest.raises(ApiError) as error:
        mesh.chat(is_streamed=False)
    first, second = (name for name, _ in mesh.asked)
    assert (error.value.status, error.value.code) == (502, "node_failed")
    assert f"lost layers 0–5: node {first} isn't connected any more" in error.value.message
    session = ChatSession.objects.get()
    assert session.error_message == error.value.message
    assert f"layers 0–5 on node {first}, is lost: the peer has gone" in session.error_details
    assert f"no other node can go on: layers 0–5 on node {second}, refuses: no room" in session.error_details


def test_a_head_that_took_over_and_refuses_later_speaks_for_itself(mesh: Mesh) -> None:
    mesh.first_is(after(1), lambda request: tells(request, event(1), {"error": {"code": "busy", "message": "no room"}}))
    with pytest.raises(ApiError) as error:
        mesh.chat(is_streamed=False)
    assert (error.value.code, error.value.message) == ("busy", "no room")


def test_an_answer_that_was_complete_needs_no_other_head(mesh: Mesh) -> None:
    mesh.first_is(after(len(WORDS)))
    mesh.chat()
    assert len(mesh.asked) == 1
    assert not Failover.objects.exists()


def test_a_session_that_was_ended_meanwhile_goes_on_nowhere(mesh: Mesh) -> None:
    mesh.first_is(after(0))
    mesh.before_asking = lambda: ChatSession.objects.update(state=ChatSession.State.FAILED)
    with pytest.raises(ApiError) as error:
        mesh.chat(is_streamed=False)
    assert "no other node could take over" in error.value.message


def test_a_database_that_is_away_for_a_moment_is_waited_for(
    mesh: Mesh, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FAILOVER_WAIT_S = 30
    given, is_away = epochs.route_of, iter([True])

    def route_of(*args: Any) -> Any:
        if next(is_away, False):
            raise OperationalError("the database is starting")
        return given(*args)

    def goes_away(request: wire.Request) -> list[wire.Answer]:
        monkeypatch.setattr(epochs, "route_of", route_of)
        return after(1)(request)

    mesh.first_is(goes_away)
    assert text_of(mesh.chat()) == "Hello world"


def test_the_trace_names_the_nodes_of_both_routes(mesh: Mesh) -> None:
    def reports(request: wire.Request) -> list[wire.Answer]:
        times = {"steps": 3, "ms_total": 30.0, "compute_ms": 20.0, "queue_ms": 1.0, "path": "tunnel"}
        hop = {"peer_id": mesh.spare.peer_id, "start_layer": 6, "end_layer": 12} | times
        return [*tells(request, *map(event, range(1, 4)), done([hop]), "data: [DONE]"), wire.End(request.request_id)]

    mesh.first_is(after(1), reports)
    parts = mesh.chat(meshnet={"trace": True})
    (hops,) = [part["meshnet"]["hops"] for part in parts if isinstance(part, dict) and "hops" in part["meshnet"]]
    assert [hop["node"] for hop in hops] == ["spare"]
    ids = [part["meshnet"] for part in parts if isinstance(part, dict) and "ids" in part["meshnet"]]
    assert [one["position"] for one in ids] == [5, 6, 7, 8]
    assert ["prompt_ids" in one for one in ids] == [True, False, False, False]


@pytest.mark.parametrize("num_digits", [8, 32])
@pytest.mark.parametrize("is_told_in_the_stream", [True, False])
def test_an_error_of_a_head_calls_other_nodes_by_their_names(
    mesh: Mesh, num_digits: int, is_told_in_the_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    peers = [node.peer_id[:num_digits] for node in (mesh.tail, mesh.spare)]
    error = {"error": {"code": "busy", "message": "peer {} has no room, nor has peer {}".format(*peers)}}

    def refuses(request: wire.Request) -> list[wire.Answer]:
        if is_told_in_the_stream:
            return tells(request, error)
        return [wire.Response(request.request_id, 503, {}, json.dumps(error).encode())]

    def both_were_on_the_route() -> None:  # one of them since the head took another, which the proxy doesn't hear of
        hops = SessionHop.objects.filter(position=1)
        hops.update(node=mesh.tail, node_name="tail")
        hop = hops.get()
        hop.pk, hop.epoch, hop.node, hop.node_name = None, 7, mesh.spare, "spare"
        hop.save()

    mesh.before_asking = both_were_on_the_route
    mesh.first_is(refuses, refuses)
    with pytest.raises(ApiError) as refused:
        mesh.chat(is_streamed=False)
    expected = "node tail has no room, nor has node spare"
    assert refused.value.message == expected
    assert ChatSession.objects.get().error_message == Failover.objects.get().cause == expected
    assert expected in caplog.text
    assert not any(peer in record.getMessage() for record in caplog.records for peer in peers)


def test_what_the_relay_says_of_a_head_calls_it_by_its_name(mesh: Mesh) -> None:
    def is_gone(request: wire.Request) -> list[wire.Answer]:
        message = f"the peer {mesh.rows[mesh.asked[-1][0]].peer_id} is gone: its connection ended"
        return [wire.error_response(request.request_id, wire.Code.PEER_GONE, message)]

    mesh.first_is(after(1, is_gone))
    mesh.chat()
    assert Failover.objects.get().cause == f"the node {mesh.asked[0][0]} is gone: its connection ended"


def test_losses_are_left_alone_longer_each_time() -> None:
    losses = Losses(wait_s=20)
    assert failover.REST_S == 1.0
    losses.add("a", Loss.GONE, 5, now=100)
    assert losses.resting(100.5) == {"a"}
    assert losses.resting(101.5) == set()
    losses.add("a", Loss.GONE, 5, now=102)
    assert losses.resting(103.5) == {"a"}
    losses.add("b", Loss.SILENT, 5, now=104)
    losses.add("c", Loss.REFUSES, 5, now=104)
    assert losses.resting(110) == {"b", "c"}
    assert losses.resting(115) == {"c"}
    assert losses.resting(120) == losses.all() == {"a", "b", "c"}, "the wait that began with the first is over"


def test_a_chat_that_has_grown_since_may_wait_anew() -> None:
    losses = Losses(wait_s=20)
    losses.add("a", Loss.GONE, 5, now=100)
    losses.add("a", Loss.GONE, 5, now=110)
    assert losses.gives_up_at == 120
    losses.add("a", Loss.GONE, 6, now=115)
    assert losses.gives_up_at == 135


def test_of_the_losses_since_a_chat_has_grown_the_first_is_remembered() -> None:
    losses = Losses(wait_s=20)
    losses.add("a", Loss.GONE, 5, 100, "a is gone")
    losses.add("b", Loss.REFUSES, 5, 101, "b refuses")
    losses.add("c", Loss.SILENT, 5, 102, "c is silent")
    assert losses.first == "a is gone"
    losses.add("d", Loss.REFUSES, 6, 103, "d refuses")
    assert losses.first == ""
