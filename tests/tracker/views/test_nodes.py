"""POST /api/nodes/*: who may join, what is checked, what a node is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from relay import presence, wire
from relay.auth import authenticator
from tests.tracker.conftest import FINGERPRINT, MakeNode
from tests.tracker.fakes import http_server, send
from tracker import credentials, endpoints
from tracker.auth import authenticate_peer
from tracker.credentials import Credential, Kind, hash_secret
from tracker.models import ApiKey, JoinToken, LanguageModel, Node
from tracker.tickets import SigningKey

pytestmark = pytest.mark.django_db

FACTS = {"name": "tiny", "fingerprint": FINGERPRINT, "num_layers": 12, "hidden_size": 64, "context_length": 256}
WANTED = {
    "name": "node-1",
    "model": FACTS,
    "start_layer": 0,
    "end_layer": 6,
    "protocol_version": 1,
    "wire_versions": [1],
    "relay": True,
    "endpoint": None,
    "memory_bytes": 2**33,
    "ms_per_layer": 1.5,
    "threads": 2,
    "dtype": "bfloat16",
    "device": "cpu",
}
Token = tuple[JoinToken, Credential]


def post(path: str, credential: Credential | None, body: Any) -> Any:
    sent = {"Authorization": f"Bearer {credential.text}"} if credential else {}
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    return Client().post(f"/api/nodes/{path}", data, content_type="application/json", headers=sent)


def beat(key: Credential, news: Mapping[str, Any] | None = None, number: int | None = None) -> Any:
    """The next heartbeat of the node's registration, or the one of that number."""
    node = Node.objects.get(key_id=key.key_id)
    numbered = {"registration": node.registration, "number": number or node.heartbeat_number + 1}
    return post("heartbeat", key, numbered | dict(news or {}))


def register(credential: Credential | None, **fields: Any) -> Any:
    return post("register", credential, WANTED | fields)


def error_of(response: Any) -> tuple[int, str, str]:
    error = json.loads(response.content)["error"]
    return response.status_code, error["code"], error["message"]


def key_in(response: Any) -> Credential:
    key_id, _, secret = json.loads(response.content)["node_key"].partition(".")
    return Credential(key_id, secret)


def test_the_nodes_of_a_model_are_sent_to_one_of_several_relays(join_token: Token, settings: Settings) -> None:
    settings.RELAY_URLS = ["wss://a.example.org", "wss://b.example.org"]
    answers = [register(join_token[1], name=name).json() for name in ("one", "two", "three")]
    assert len({answer["relay_url"] for answer in answers}) == 1
    for answer in answers:
        assert answer["relay_addr"] == answer["relay_url"].removesuffix("/ws") + "/rpc/" + answer["peer_id"]


def test_a_node_that_joins_gets_all_it_needs(join_token: Token, ticket_key: SigningKey, settings: Settings) -> None:
    settings.RELAY_URLS = ["wss://relay.example.org"]
    response = register(join_token[1])
    answer = response.json()
    node = Node.objects.get()
    assert response.status_code == 200
    assert answer["peer_id"] == node.peer_id
    assert (answer["status"], answer["start_layer"], answer["end_layer"]) == ("approved", 0, 6)
    assert answer["relay_url"] == "wss://relay.example.org/ws"
    assert answer["relay_addr"] == f"wss://relay.example.org/rpc/{node.peer_id}"
    assert list(answer["ticket_keys"]) == [ticket_key.kid]
    assert answer["wire_versions"] == list(wire.WIRE_VERSIONS)
    assert answer["heartbeat_s"] == 5
    assert abs(answer["now"] - timezone.now().timestamp()) < 5
    assert answer["model"] == {"name": "tiny", "prefill_chunk_tokens": 128, "wire_dtype": "bfloat16"}
    assert (node.memory_bytes, node.ms_per_layer, node.threads, node.device) == (2**33, 1.5, 2, "cpu")


def test_of_the_node_key_only_a_hash_is_kept(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    node = Node.objects.get()
    assert (node.key_id, node.secret_hash) == (key.key_id, hash_secret(key.secret))


def test_the_first_approved_node_fixes_the_model(join_token: Token) -> None:
    register(join_token[1])
    model = LanguageModel.objects.get()
    assert (model.fingerprint, model.num_layers, model.hidden_size) == (FINGERPRINT, 12, 64)
    assert model.context_length == 256


def test_what_the_operator_set_stays(join_token: Token) -> None:
    LanguageModel.objects.create(name="tiny", context_length=100, wire_dtype="float32", prefill_chunk_tokens=7)
    answer = register(join_token[1]).json()
    assert LanguageModel.objects.get().context_length == 100
    assert answer["model"] == {"name": "tiny", "prefill_chunk_tokens": 7, "wire_dtype": "float32"}


def test_a_chunk_of_the_prompt_fits_through_the_relay(join_token: Token) -> None:
    answer = register(join_token[1], model=FACTS | {"hidden_size": 8192}).json()
    assert answer["model"]["prefill_chunk_tokens"] == 64


@pytest.mark.parametrize("differs", [{"fingerprint": "cd" * 32}, {"num_layers": 13}, {"hidden_size": 65}])
def test_another_copy_of_the_model_is_refused(join_token: Token, model: LanguageModel, differs: dict[str, Any]) -> None:
    status, code, message = error_of(register(join_token[1], model=FACTS | differs))
    assert (status, code) == (409, "fingerprint_mismatch")
    assert next(iter(differs)) in message
    assert not Node.objects.exists()


def test_a_refused_node_costs_no_use_of_the_token(join_token: Token, model: LanguageModel) -> None:
    JoinToken.objects.update(uses_left=1)
    register(join_token[1], model=FACTS | {"fingerprint": "cd" * 32})
    register(join_token[1], protocol_version=2)
    register(join_token[1], name="")
    assert JoinToken.objects.get().uses_left == 1
    assert register(join_token[1]).status_code == 200
    assert JoinToken.objects.get().uses_left == 0


def test_a_used_up_token_enrols_nobody(join_token: Token) -> None:
    JoinToken.objects.update(uses_left=1)
    register(join_token[1])
    status, code, message = error_of(register(join_token[1], name="node-2"))
    assert (status, code) == (401, "unauthorized")
    assert "used up" in message


def test_an_expired_token_enrols_nobody(join_token: Token) -> None:
    JoinToken.objects.update(expires=timezone.now())
    status, _, message = error_of(register(join_token[1]))
    assert status == 401
    assert "expired" in message


def test_a_revoked_token_enrols_nobody(join_token: Token) -> None:
    JoinToken.objects.update(revoked=True)
    assert error_of(register(join_token[1]))[:2] == (401, "revoked")


@pytest.mark.parametrize("path", ["register", "heartbeat", "unregister"])
@pytest.mark.parametrize(
    "credential", [None, Credential("node_000000000000", "x" * 43), Credential("a b", "c"), Credential("x" * 9999, "y")]
)
def test_strangers_are_refused(path: str, credential: Credential | None) -> None:
    status, code, _ = error_of(post(path, credential, WANTED))
    assert (status, code) == (401, "unauthorized")


def test_a_node_key_that_nobody_here_has_is_told_as_such(db: None) -> None:
    message = error_of(post("heartbeat", credentials.mint(Kind.NODE), {}))[2]
    assert message.startswith("no node here has this key")


def test_an_address_that_brings_many_bad_keys_is_slowed_and_good_nodes_behind_it_are_not(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    assert post("heartbeat", credentials.mint(Kind.NODE), {}).status_code == 401
    for _ in range(12):
        authenticator.throttle.failed("127.0.0.1")
    refused = post("heartbeat", credentials.mint(Kind.NODE), {})
    assert error_of(refused)[:2] == (429, "rate_limited")
    assert refused["Retry-After"] == "3"
    assert beat(key).status_code == 200


def test_an_api_key_enrols_nobody_and_is_told_apart(api_key: Credential) -> None:
    assert "it looks like an API key" in error_of(register(api_key))[2]
    assert ApiKey.objects.count() == 1


def test_a_join_token_that_nobody_knows_is_called_so() -> None:
    assert "no join token here is this one" in error_of(register(credentials.mint(Kind.JOIN)))[2]


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"protocol_version": 2}, "upgrade this site"),
        ({"protocol_version": 0}, "upgrade the node"),
        ({"protocol_version": -1}, "upgrade the node"),
        ({"protocol_version": None}, "upgrade the node"),
        ({"protocol_version": "1"}, "upgrade the node"),
        ({"protocol_version": True}, "upgrade the node"),
        ({"wire_versions": []}, "upgrade the node"),
        ({"wire_versions": [99, "1", []]}, "upgrade the node"),
        ({"wire_versions": None}, "upgrade the node"),
    ],
)
def test_another_version_is_told_to_upgrade(join_token: Token, fields: dict[str, Any], advice: str) -> None:
    status, code, message = error_of(register(join_token[1], **fields))
    assert (status, code) == (426, "upgrade")
    assert advice in message


def test_a_newer_node_may_say_more_than_we_know(join_token: Token) -> None:
    assert register(join_token[1], wire_versions=[99, 1, "3", 1], colour="blue").status_code == 200
    assert Node.objects.get().wire_versions == [1]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "\ud83d"}, "name"),
        ({"name": "<script>"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"model": None}, "model"),
        ({"model": FACTS | {"fingerprint": "AB" * 32}}, "model.fingerprint"),
        ({"model": FACTS | {"fingerprint": "ab"}}, "model.fingerprint"),
        ({"model": FACTS | {"num_layers": 0}}, "model.num_layers"),
        ({"model": FACTS | {"num_layers": 10**9}}, "model.num_layers"),
        ({"model": FACTS | {"num_layers": "12"}}, "model.num_layers"),
        ({"model": FACTS | {"context_length": True}}, "model.context_length"),
        ({"model": FACTS | {"name": "a b"}}, "model.name"),
        ({"start_layer": -1}, "start_layer"),
        ({"start_layer": 6, "end_layer": 6}, "layers 6:6"),
        ({"end_layer": 13}, "layers 0:13"),
        ({"endpoint": "https://x:1"}, "endpoint"),
        ({"endpoint": 7}, "endpoint"),
        ({"relay": "yes"}, "relay"),
        ({"relay": False}, "needs an endpoint"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory_bytes": 2**63}, "memory_bytes"),
        ({"ms_per_layer": -1}, "ms_per_layer"),
        ({"threads": 0}, "threads"),
        ({"dtype": "int3"}, "dtype"),
        ({"weights": "int4 and some"}, "weights"),
        ({"device": "\0"}, "device"),
        ({"layers": "auto"}, "layers: auto needs budget_bytes"),
        ({"layers": "some"}, "layers: Input should be 'auto'"),
        ({"start_layer": None}, "start_layer and end_layer must be named"),
    ],
)
def test_a_wrong_field_is_named(join_token: Token, fields: dict[str, Any], named: str) -> None:
    status, code, message = error_of(register(join_token[1], **fields))
    assert (status, code) == (400, "bad_request")
    assert named in message
    assert not Node.objects.exists()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 60_000, b'{"protocol_version": 1e999}'])
def test_a_body_that_is_no_message_is_refused(join_token: Token, body: bytes) -> None:
    assert post("register", join_token[1], body).status_code in (400, 426)


def test_numbers_that_are_none_are_refused(join_token: Token) -> None:
    body = json.dumps(WANTED).replace("1.5", "NaN")
    assert error_of(post("register", join_token[1], body))[0] == 400


def test_a_huge_body_is_refused(join_token: Token) -> None:
    assert error_of(post("register", join_token[1], b" " * 65_537))[:2] == (413, "too_large")


def test_only_post_is_answered() -> None:
    assert Client().get("/api/nodes/register").status_code == 405


def test_a_name_belongs_to_the_first_who_took_it(join_token: Token) -> None:
    register(join_token[1])
    status, code, message = error_of(register(join_token[1]))
    assert (status, code) == (409, "name_taken")
    assert "--name" in message
    assert Node.objects.count() == 1


def test_the_name_of_a_node_that_was_revoked_stays_with_it_and_the_refusal_says_so(join_token: Token) -> None:
    register(join_token[1])
    Node.objects.update(status=Node.Status.REVOKED)
    status, code, message = error_of(register(join_token[1]))
    assert (status, code) == (409, "name_taken")
    assert "was revoked and keeps its name: choose another --name" in message


def test_registering_again_brings_the_row_up_to_date(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    before = Node.objects.get()
    answer = register(key, name="renamed", start_layer=3, end_layer=12, threads=8).json()
    after = Node.objects.get()
    assert "node_key" not in answer
    assert (after.pk, after.peer_id, after.secret_hash) == (before.pk, before.peer_id, before.secret_hash)
    assert (after.name, str(after.shard), after.threads) == ("renamed", "layers 3–11", 8)
    assert before.cleared
    assert after.cleared
    assert before.cleared < after.cleared, "what was said of it is forgotten"
    assert (answer["start_layer"], answer["end_layer"]) == (3, 12)


def test_a_node_may_come_back_with_another_model(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    register(key, model=FACTS | {"name": "other", "fingerprint": "cd" * 32})
    identity = authenticate_peer(key.text)
    assert identity
    assert identity.scope == "other"


def test_a_revoked_node_is_told_so(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    Node.objects.get().revoke()
    for path in ("register", "heartbeat", "unregister"):
        assert error_of(post(path, key, WANTED))[:2] == (401, "revoked")


def test_a_node_that_needs_approval_waits_and_is_told_when_it_comes(join_token: Token) -> None:
    JoinToken.objects.update(needs_approval=True)
    response = register(join_token[1])
    key = key_in(response)
    assert response.json()["status"] == "pending"
    assert LanguageModel.objects.get().fingerprint == ""
    assert beat(key).json()["status"] == "pending"
    Node.objects.get().approve()
    assert beat(key).json()["status"] == "approved"
    assert LanguageModel.objects.get().fingerprint == FINGERPRINT


def test_a_heartbeat_renews_the_lease_and_keeps_the_news(join_token: Token, ticket_key: SigningKey) -> None:
    key = key_in(register(join_token[1]))
    Node.objects.update(lease_until=timezone.now() + timedelta(seconds=2))
    before = timezone.now()
    answer = beat(key, {"state": "ready", "cached_tokens": 7, "sessions": 2, "extra": 1}).json()
    node = Node.objects.get()
    assert node.lease_until is not None
    assert before <= node.lease_until - timedelta(seconds=20) <= timezone.now()
    assert (node.state, node.cached_tokens, node.sessions) == ("ready", 7, 2)
    assert answer["heartbeat_s"] == 5
    assert list(answer["ticket_keys"]) == [ticket_key.kid]
    assert node.ms_per_layer == 1.5  # what wasn't said stays


def test_how_full_and_how_fast_a_node_is_can_be_read(join_token: Token, admin_client: Client) -> None:
    key = key_in(register(join_token[1], version="0.1.0", max_cached_tokens=1000))
    told = {"sessions": 2, "cached_tokens": 7, "reserved_tokens": 90, "max_cached_tokens": 800, "ms_per_layer": 0.25}
    beat(key, {**told, "batch": 1.5})
    [model] = admin_client.get("/sessions.json").json()["models"]
    [node] = model["nodes"]
    assert {name: node[name] for name in told} == told
    assert node["version"] == "0.1.0"
    page = admin_client.get(f"/admin/tracker/node/{Node.objects.get().pk}/change/").content.decode()
    assert all(text in page for text in ("800", "0.25", "0.1.0"))


def test_how_a_node_keeps_its_weights_is_shown(join_token: Token, admin_client: Client) -> None:
    register(join_token[1], weights="int4")
    assert Node.objects.get().weights == "int4"
    [model] = admin_client.get("/sessions.json").json()["models"]
    assert [node["weights"] for node in model["nodes"]] == ["int4"]
    page = admin_client.get(f"/admin/tracker/node/{Node.objects.get().pk}/change/").content.decode()
    assert "int4" in page


def test_a_node_that_fetches_its_weights_says_how_far_it_is(join_token: Token, admin_client: Client) -> None:
    key = key_in(register(join_token[1]))
    beat(key, {"state": "loading", "done_bytes": 3_000_000, "total_bytes": 4_000_000})
    (model,) = admin_client.get("/sessions.json").json()["models"]
    (node,) = model["nodes"]
    assert (node["state"], node["done_bytes"], node["total_bytes"]) == ("loading", 3_000_000, 4_000_000)
    assert node["reason"] == "fetches its weights: 75 % of 4 MB"
    beat(key, {"state": "serving"})
    assert Node.objects.get().progress is None
    beat(key, {"state": "loading"})
    register(key)  # started again: what it said before is of yesterday
    assert Node.objects.get().progress is None


@pytest.mark.parametrize(
    "news",
    [
        *({"cached_tokens": -1}, {"state": "<b>"}, {"sessions": "2"}, {"ms_per_layer": "x"}),
        *({"done_bytes": -1}, {"total_bytes": 2**63}, {"done_bytes": "1"}),
    ],
)
def test_wrong_news_is_refused(join_token: Token, news: dict[str, Any]) -> None:
    key = key_in(register(join_token[1]))
    status, _, message = error_of(beat(key, news))
    assert status == 400
    assert next(iter(news)) in message


def test_a_join_token_has_no_heart(join_token: Token) -> None:
    assert error_of(post("heartbeat", join_token[1], {}))[0] == 401


def test_who_leaves_is_offline_at_once_and_a_late_heartbeat_changes_nothing(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    assert post("unregister", key, {}).status_code == 200
    assert error_of(beat(key))[:2] == (409, "not_registered")
    node = Node.objects.get()
    assert node.lease_until is not None
    assert node.lease_until <= timezone.now()
    assert register(key).status_code == 200
    assert beat(key).status_code == 200


class Listening:
    """A node's HTTP server, which proves its key once it has one."""

    def __init__(self) -> None:
        self.secret_hash = ""
        self.num_asked = 0

    def __call__(self, handler: Any) -> None:
        self.num_asked += 1
        if not self.secret_hash:
            return send(handler, 200, b"{}")
        return send(
            handler, 200, b"{}", x_meshnet_proof=endpoints.proof(self.secret_hash, handler.headers["X-Meshnet-Nonce"])
        )


def test_an_endpoint_is_used_once_it_has_proved_the_key(join_token: Token, settings: Settings) -> None:
    settings.ALLOW_PRIVATE_ENDPOINTS = True
    server = Listening()
    with http_server(server) as url:
        response = register(join_token[1], relay=False, endpoint=url)
        key, answer = key_in(response), response.json()
        assert "doesn't hold this node's key" in answer["endpoint_error"]
        assert (answer["relay_url"], answer["relay_addr"], answer["heartbeat_s"]) == (None, None, 1.5)
        assert online() == []
        server.secret_hash = hash_secret(key.secret)
        assert beat(key).json()["endpoint_error"] is None
        assert online() == ["node-1"]
        num_asked = server.num_asked
        beat(key)
        assert server.num_asked == num_asked, "a fresh proof is not asked for again"
        Node.objects.update(endpoint_proved_until=timezone.now() + timedelta(seconds=2))
        beat(key)
        assert server.num_asked == num_asked + 1
    assert Node.objects.get().dial_url == url


def online() -> list[str]:
    return [node.name for node in Node.objects.online(timezone.now(), presence.present())]


def test_an_endpoint_whose_server_is_gone_is_offline_when_its_proof_ends(join_token: Token, settings: Settings) -> None:
    settings.ALLOW_PRIVATE_ENDPOINTS = True
    server = Listening()
    with http_server(server) as url:
        key = key_in(register(join_token[1], relay=False, endpoint=url))
        server.secret_hash = hash_secret(key.secret)
        beat(key)
    Node.objects.update(endpoint_proved_until=timezone.now() - timedelta(seconds=1))
    assert "doesn't answer" in beat(key).json()["endpoint_error"]
    assert online() == []


def test_another_endpoint_has_to_prove_itself_anew(join_token: Token, settings: Settings) -> None:
    settings.ALLOW_PRIVATE_ENDPOINTS = True
    server = Listening()
    with http_server(server) as url, http_server(lambda handler: send(handler, 200, b"{}")) as another:
        key = key_in(register(join_token[1], relay=False, endpoint=url))
        server.secret_hash = hash_secret(key.secret)
        beat(key)
        assert online() == ["node-1"]
        register(key, relay=False, endpoint=another)
        assert online() == []


def test_a_private_endpoint_from_elsewhere_is_never_asked(join_token: Token, settings: Settings) -> None:
    settings.ALLOW_PRIVATE_ENDPOINTS = False
    server = Listening()
    with http_server(server) as url:
        sent = {"Authorization": f"Bearer {join_token[1].text}"}
        client = Client(REMOTE_ADDR="203.0.113.9", headers=sent)
        answer = client.post("/api/nodes/register", WANTED | {"endpoint": url}, content_type="application/json").json()
    assert "ALLOW_PRIVATE_ENDPOINTS is off" in answer["endpoint_error"]
    assert server.num_asked == 0


def test_a_node_of_the_same_machine_may_listen_on_loopback(join_token: Token, settings: Settings) -> None:
    settings.ALLOW_PRIVATE_ENDPOINTS = False
    server = Listening()
    with http_server(server) as url:
        register(join_token[1], endpoint=url)
    assert server.num_asked == 1


def test_a_node_that_only_uses_the_relay_is_never_dialled(join_token: Token, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.create_connection", lambda *args, **kwargs: pytest.fail("dialled"))
    key = key_in(register(join_token[1]))
    assert beat(key).json()["endpoint_error"] is None


def test_online_is_approved_and_alive_and_reachable(make_node: MakeNode, connect: Callable[[Node], None]) -> None:
    now = timezone.now()
    kinds: dict[str, dict[str, Any]] = {
        "good": {},
        "pending": {"status": Node.Status.PENDING},
        "revoked": {"status": Node.Status.REVOKED},
        "silent": {"lease_until": now},
        "listener": {"uses_relay": False},  # its socket counts for nothing
    }
    for name, fields in kinds.items():
        connect(make_node(name, **fields))
    make_node("no-socket")
    proved = {"endpoint": "http://x:1", "endpoint_address": "203.0.113.7"}
    make_node("proved", endpoint_proved_until=now + timedelta(seconds=1), **proved)
    make_node("was-proved", endpoint_proved_until=now, **proved)
    assert online() == ["good", "proved"]
    for node in Node.objects.all():
        standing = node.standing(now, is_present=presence.is_present(node.peer_id))
        assert standing.is_online == (node.name in ("good", "proved")), str(standing)
