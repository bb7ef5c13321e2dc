"""`manage.py serve` as its operator meets it: starting, refusing to, stopping."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import requests
import websocket

from relay import envelope, wire
from tests.lab.processes import Process, environment, free_port, manage_py
from tests.relay.conftest import Relay
from tests.relay.ends import end, hear, take, told
from tests.relay.tunnels import Tunnel

HEALTH = envelope.encode(wire.Request("1", "GET", "/health"))
STEP = envelope.encode(wire.Request("3", "POST", "/forward"))


def open_call(relay: Relay) -> tuple[websocket.WebSocket, websocket.WebSocket, wire.Request]:
    """A request in flight: the peer, the caller, the peer's request."""
    peer, caller = relay.register("aa11"), relay.connect("/rpc/aa11", relay.credential("cc33"))
    caller.send(HEALTH)
    return peer, caller, take(peer)


def test_stopping_finishes_what_is_in_flight_refuses_what_is_new_and_tells_everyone(own_relay: Relay) -> None:
    peer, caller, asked = open_call(own_relay)
    late = own_relay.connect("/ws", own_relay.credential("bb22"))
    own_relay.process.send(signal.SIGTERM)
    own_relay.process.wait_for("Stopping: 1 requests in flight")
    caller.send(HEALTH.replace('"1"', '"2"'))
    refused = hear(caller)
    assert (refused.request_id, refused.status) == ("2", 503)
    late.send('{"type": "register", "peer_id": "bb22"}')
    assert end(late) == (503, wire.CLOSE_DRAINING)
    with pytest.raises(OSError):
        own_relay.connect("/rpc/aa11", own_relay.credential("cc33"))
    caller.send(STEP)
    peer.send(envelope.encode(wire.Response(take(peer).request_id, 200, {}, b"the next token")))
    assert (answer := hear(caller)).request_id == "3"
    assert answer.body == b"the next token"
    peer.send(envelope.encode(wire.Response(asked.request_id, 200)))
    assert hear(caller).status == 200
    assert end(peer) == end(caller) == (503, wire.CLOSE_DRAINING)
    assert own_relay.process.wait(10) == 0


def test_stopping_keeps_peers_of_version_2_while_anything_is_in_flight_then_tells_them_to_move(
    own_relay: Relay,
) -> None:
    a, b = Tunnel.register(own_relay, "aa11"), Tunnel.register(own_relay, "bb22")
    a.ask("1", to="bb22")
    asked = b.take()
    own_relay.process.send(signal.SIGTERM)
    own_relay.process.wait_for("Stopping: 1 requests in flight")
    a.say(wire.Request("chat", "POST", "/v1/chat/completions"), to="bb22")
    assert a.hear().code is wire.Code.DRAINING
    a.ask("2", to="bb22", body=b"the next token")
    b.say(wire.Response(b.take().request_id, 200))
    assert a.hear() == wire.Response("2", 200)
    b.say(wire.Response(asked.request_id, 200))
    assert a.hear() == wire.Response("1", 200)
    for tunnel in (a, b):
        drain = tunnel.hear()
        assert isinstance(drain, wire.Drain)
        assert 0 < drain.reconnect_in_ms <= drain.spread_ms
        error, code = tunnel.end()
        assert (error.code, code) == (wire.Code.DRAINING, wire.CLOSE_DRAINING)
    assert own_relay.process.wait(10) == 0


def test_stopping_waits_for_a_streamed_http_answer(own_relay: Relay) -> None:
    peer = own_relay.register("aa11")
    texts: list[str] = []
    reading = threading.Thread(target=lambda: texts.append(own_relay.get("/call/aa11").text))
    reading.start()
    asked = take(peer)
    peer.send(envelope.encode(wire.Response(asked.request_id, 200, stream=True)))
    own_relay.process.send(signal.SIGTERM)
    own_relay.process.wait_for("Stopping")
    peer.send(envelope.encode(wire.Chunk(asked.request_id, b"last words")))
    peer.send(envelope.encode(wire.End(asked.request_id)))
    reading.join(10)
    assert "last words" in texts[0]
    assert "End(" in texts[0]
    assert own_relay.process.wait(10) == 0


def test_what_is_not_finished_by_the_grace_ends_with_503(own_relay: Relay) -> None:
    peer, caller, asked = open_call(own_relay)
    started = time.monotonic()
    own_relay.process.send(signal.SIGINT)
    answer = hear(caller)
    assert 4 < time.monotonic() - started < 8
    assert (answer.request_id, answer.status) == ("1", 503)
    assert told(peer) == wire.Cancel(asked.request_id)
    assert own_relay.process.wait(10) == 0


def test_a_second_signal_ends_the_grace(own_relay: Relay) -> None:
    _, caller, _ = open_call(own_relay)
    own_relay.process.send(signal.SIGTERM)
    own_relay.process.wait_for("Stopping")
    started = time.monotonic()
    own_relay.process.send(signal.SIGTERM)
    assert hear(caller).status == 503
    assert own_relay.process.wait(10) == 0
    assert time.monotonic() - started < 4


def test_an_idle_relay_stops_at_once_also_with_sockets_open(own_relay: Relay) -> None:
    peer = own_relay.register("aa11")
    requests.get(own_relay.http_url + "/figures", timeout=5)
    started = time.monotonic()
    own_relay.process.send(signal.SIGTERM)
    assert end(peer) == (503, wire.CLOSE_DRAINING)
    assert own_relay.process.wait(10) == 0
    assert time.monotonic() - started < 4


def serve(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
    changes = {"DJANGO_SETTINGS_MODULE": "tests.relay.settings", **env}
    arguments = [*manage_py(), "serve", *options]
    return subprocess.run(arguments, env=environment(**changes), capture_output=True, text=True, timeout=30)


def test_a_port_in_use_is_one_clear_line(relay: Relay) -> None:
    port = relay.http_url.rsplit(":", 1)[1]
    run = serve("--port", port)
    assert run.returncode == 1
    assert "can't listen on 127.0.0.1" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("options", [("--port", "70000"), ("--port", "x"), ("--port", "0", "--grace", "-1")])
def test_a_wrong_argument_exits_2(options: tuple[str, ...]) -> None:
    run = serve(*options)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr


def test_it_does_not_start_on_half_a_schema(tmp_path: Path) -> None:
    run = serve(
        "--port", "0", DJANGO_SETTINGS_MODULE="tests.relay.settings_with_database", DATABASE=str(tmp_path / "db")
    )
    assert run.returncode == 1
    assert run.stderr.strip().endswith("run: python manage.py migrate")


def test_it_starts_with_a_whole_schema(tmp_path: Path) -> None:
    env = environment(DJANGO_SETTINGS_MODULE="tests.relay.settings_with_database", DATABASE=str(tmp_path / "db"))
    subprocess.run([*manage_py(), "migrate", "--verbosity", "0"], env=env, check=True, timeout=60)
    port = free_port()
    process = Process([*manage_py(), "serve", "--port", str(port)], env)
    try:
        process.wait_for(rf"Listening on http://127\.0\.0\.1:{port}\n")
    finally:
        assert process.stop() == 0
