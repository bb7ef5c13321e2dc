from __future__ import annotations

import hashlib
import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from nodes import storage
from nodes.memory import DoesNotFit
from nodes.node import Node
from nodes.options import NodeOptions, UsageError
from nodes.sleep import since_boot
from nodes.state import StateInUse
from nodes.weights import ModelError
from relay import envelope, wire
from relay import headers as names
from relay.headers import Hop, encode_route
from tests.nodes.ggufs import make_gguf
from tests.nodes.meshes import parts
from tests.nodes.relays import key_of
from tests.nodes.sites import Site, node_options


class Running:
    """A node on a thread of its own."""

    def __init__(self, options: NodeOptions, elapsed: Callable[[], float] = since_boot) -> None:
        self.stopping, self.error = threading.Event(), None
        self.node = Node(options, self.stopping, elapsed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.node.run()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def options(site: Site, tiny_path: Path, tmp_path: Path) -> NodeOptions:
    return node_options(tiny_path, tracker_url=site.tracker.url, state_folder=tmp_path / "1")


Start = Callable[..., Running]


@pytest.fixture
def start(options: NodeOptions, tmp_path: Path) -> Iterator[Start]:
    running: list[Running] = []

    def begin(name: str = "1", **changes: Any) -> Running:
        running.append(Running(replace(options, name=name, state_folder=tmp_path / name, **changes)))
        return running[-1]

    yield begin
    for one in running:
        one.stop()


def wait_for_text(caplog: pytest.LogCaptureFixture, text: str, count: int = 1, deadline_s: float = 30) -> None:
    until = time.monotonic() + deadline_s
    while caplog.text.count(text) < count:
        assert time.monotonic() < until, caplog.text
        time.sleep(0.01)


def wait_until(is_so: Callable[[], object], deadline_s: float = 30) -> None:
    until = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_two_nodes_answer_a_chat_through_the_relay_with_real_layers(
    start: Start, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start("1")
    start("2", start_layer=3, end_layer=6)
    wait_for_text(caplog, "Ready: layers", 2)

    told = ask(site)

    assert told[-1] == b"data: [DONE]"
    summary = json.loads(told[-2].removeprefix(b"data: "))["meshnet"]
    assert [hop["path"] for hop in summary["hops"]] == ["local", "tunnel"]
    assert summary["usage"]["completion_tokens"] == 4
    assert "Ready: layers 0–2 of " in caplog.text
    assert "Ready: layers 3–5 of " in caplog.text


PLAIN = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
SCHEMA = {"type": "array", "items": {"enum": ["the quick brown fox"]}, "minItems": 2, "maxItems": 2}
HELD = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 60,
    "response_format": {"type": "json_schema", "json_schema": {"name": "foxes", "schema": SCHEMA}},
}


def ask(site: Site, fields: dict[str, Any] = PLAIN) -> list[bytes]:
    """A chat through the relay, as the tracker asks it."""
    first, second = site.peer_id(1), site.peer_id(2)
    fingerprint = site.tracker.asked[0][2]["model"]["fingerprint"]
    ticket, text = site.signer.sign([(first, 0, 3), (second, 3, 6)], fingerprint=fingerprint, dtype="float32")
    headers = {
        names.SESSION: ticket.session,
        names.EPOCH: "0",
        names.TICKET: text,
        names.ROUTE: encode_route([Hop(second, 3, 6, None, site.relay.address(second), (1, 2))]),
        names.DEADLINE_MS: "20000",
    }
    caller = Caller()
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    request = wire.Request("c1", "POST", path, headers, json.dumps(fields).encode(), sender=wire.TRACKER)
    site.relay.ask(first, request, caller)  # type: ignore[arg-type]
    assert caller.ended.wait(20)
    return list(parts(b"".join(chunk.data for chunk in caller.answers if isinstance(chunk, wire.Chunk))))


def test_two_nodes_serve_a_gguf_file_each_reading_its_layers(
    start: Start, site: Site, gguf_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start("1", model=str(gguf_path))
    start("2", model=str(gguf_path), start_layer=3, end_layer=6)
    wait_for_text(caplog, "Ready: layers", 2)

    facts = site.tracker.asked[0][2]["model"]
    assert facts["name"] == "tiny"
    assert facts["fingerprint"] == hashlib.sha256(gguf_path.read_bytes()).hexdigest()
    assert ask(site)[-1] == b"data: [DONE]"

    told = [json.loads(event.removeprefix(b"data: ")) for event in ask(site, HELD)[:-1] if event.startswith(b"data: ")]
    deltas = [choice["delta"].get("content") or "" for event in told for choice in event.get("choices", ())]
    assert json.loads("".join(deltas)) == ["the quick brown fox"] * 2, "the tail has the file's tokenizer, too"


def test_a_tokenizer_that_isnt_known_is_refused_before_anything_is_converted_unless_one_is_given(
    start: Start, site: Site, options: NodeOptions, tiny_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = make_gguf(tiny_path, tmp_path / "x.gguf", pre="viking")
    with pytest.raises(ModelError, match=r"'viking', isn't known; .* --tokenizer"):
        Node(replace(options, model=str(path)), threading.Event()).run()
    assert not list(storage.cache_dir().rglob("*.safetensors"))
    start("1", model=str(path), tokenizer=tiny_path)
    start("2", model=str(path), start_layer=3, end_layer=6)
    wait_for_text(caplog, "Ready: layers", 2)

    assert ask(site)[-1] == b"data: [DONE]"
    assert caplog.text.count("Without a tokenizer this node ends no chat whose answer is of a given form") == 1
    ask(site, HELD)
    assert "this node has no tokenizer, so it holds no answer to a form; --tokenizer names one" in caplog.text


@pytest.fixture
def gguf_path(tiny_path: Path, tmp_path: Path) -> Path:
    return make_gguf(tiny_path, tmp_path / "tiny.gguf")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, settings: Settings) -> None:
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")


class Caller:
    """Where the small relay sends the answers."""

    subprotocol = ""

    def __init__(self) -> None:
        self.answers: list[wire.Answer] = []
        self.ended = threading.Event()

    def send(self, text: str) -> None:
        self.answers.append(envelope.decode_answer(text))
        if wire.is_last(self.answers[-1]):
            self.ended.set()


def test_it_says_how_fast_it_is_and_how_full(start: Start, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    start(max_kv_tokens=500)
    wait_for_text(caplog, "Ready: layers")
    site.tracker.wait_for("heartbeat", site.tracker.verbs.count("heartbeat") + 2)

    assert site.tracker.asked[0][2]["max_cached_tokens"] == 500
    news = site.tracker.asked[-1][2]
    assert news["ms_per_layer"] > 0
    assert {name: news[name] for name in ("max_cached_tokens", "reserved_tokens", "sessions")} == {
        "max_cached_tokens": 500,
        "reserved_tokens": 0,
        "sessions": 0,
    }
    assert "Threads that compute: 1; " in caplog.text
    assert "Caches: up to 500 tokens" in caplog.text


def test_told_to_stop_it_leaves(start: Start, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = start()
    wait_for_text(caplog, "Ready: layers")
    node.stop()

    assert site.tracker.verbs[-1] == "unregister"
    wait_until(lambda: not site.relay.peers)  # its thread sees the end of the socket
    assert (node.node._options.state_folder / "node_key").read_text().strip() == key_of(site.peer_id(1))


def test_a_node_without_the_relay_answers_over_http_and_is_ready_when_its_endpoint_is_proved(
    start: Start, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start(listen=("127.0.0.1", 0), uses_relay=False)
    wait_for_text(caplog, "Ready: layers")

    endpoint = site.tracker.asked[0][2]["endpoint"]
    assert site.tracker.asked[0][2]["relay"] is False
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=5)
    connection.request("GET", "/health")
    assert json.loads(connection.getresponse().read())["state"] == "ok"
    connection.close()
    assert not site.relay.peers


def test_the_address_that_its_owner_names_is_the_one_it_registers(
    start: Start, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start(listen=("127.0.0.1", 0), public_url="http://203.0.113.7:7002")
    wait_for_text(caplog, "Ready: layers")

    assert site.tracker.asked[0][2]["endpoint"] == "http://203.0.113.7:7002"
    assert "Others reach it at http://203.0.113.7:7002" in caplog.text


def test_until_it_is_approved_it_stays_off_the_relay(
    start: Start, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site.is_approved = False
    start()
    wait_for_text(caplog, "Waiting for approval")
    site.tracker.wait_for("heartbeat", 2)
    assert not site.relay.peers

    site.is_approved = True
    wait_for_text(caplog, "Ready: layers")


def test_a_second_node_with_the_same_state_is_refused(
    start: Start, options: NodeOptions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start()
    wait_for_text(caplog, "Registered")
    with pytest.raises(StateInUse):
        Node(options, threading.Event()).run()


def test_layers_that_the_model_hasnt_are_refused_before_anyone_is_asked(options: NodeOptions, site: Site) -> None:
    with pytest.raises(UsageError, match=r"--layers 3:7: .* has layers 0:6"):
        Node(replace(options, start_layer=3, end_layer=7), threading.Event()).run()
    assert not site.tracker.asked


def test_layers_that_dont_fit_in_memory_are_refused_before_anyone_is_asked(
    options: NodeOptions, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.memory.available_bytes", lambda: 1_000_000)
    with pytest.raises(DoesNotFit, match=r"layers 0–2 of .* need .* take fewer layers"):
        Node(options, threading.Event()).run()
    assert not site.tracker.asked


def test_a_port_that_is_taken_is_refused(start: Start, options: NodeOptions, site: Site) -> None:
    port = int(site.tracker.url.rpartition(":")[2])
    with pytest.raises(UsageError, match=f"--listen 127.0.0.1:{port}"):
        Node(replace(options, listen=("127.0.0.1", port)), threading.Event()).run()


def test_an_authority_that_cant_be_read_is_refused(options: NodeOptions) -> None:
    with pytest.raises(UsageError, match="--ca-file /nowhere"):
        Node(replace(options, ca_file="/nowhere"), threading.Event()).run()
