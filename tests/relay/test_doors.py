"""Both doors of a served relay, from our own side: the site's calls, presence, revocation, versions, counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import websocket

from relay import envelope, wire
from relay.wire import Chunk, Code, End, Response
from tests.relay.conftest import Relay
from tests.relay.ends import die, end, hear, take, told


def answer(ws: websocket.WebSocket, *frames: Callable[[str], wire.Answer]) -> wire.Request:
    """Takes a request and answers it; gives the request."""
    asked = take(ws)
    for frame in frames:
        ws.send(envelope.encode(frame(asked.request_id)))
    return asked


def in_thread(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function(*arguments)), daemon=True)
    thread.start()

    def joined() -> Any:
        thread.join(10)
        return result[0]

    return joined


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_site_asks_a_peer_without_a_socket_and_streams_its_answer(relay: Relay) -> None:
    peer = relay.register("aa11")
    asked = in_thread(
        answer, peer, lambda it: Response(it, 200, stream=True), lambda it: Chunk(it, b"text"), lambda it: End(it)
    )
    lines = relay.get("/call/aa11").text.splitlines()
    assert lines == [
        "Response(request_id='1', status=200, headers={}, body=b'', stream=True)",
        "Chunk(request_id='1', data=b'text')",
        "End(request_id='1')",
    ]
    request = asked()
    assert (request.sender, request.body, request.headers) == ("tracker", b"ask", {"x-test": "yes"})
    assert request.deadline_ms == 20_000


@pytest.mark.parametrize(("path", "status"), [("/call/ffff", 404), ("/call/aa11?path=/admin", 403)])
def test_the_site_hears_of_failures_as_answers(relay: Relay, path: str, status: int) -> None:
    relay.register("aa11")
    assert f"status={status}" in relay.get(path).text


def test_a_peer_that_goes_while_the_site_reads_ends_the_answer(relay: Relay) -> None:
    peer = relay.register("aa11")
    response = in_thread(relay.get, "/call/aa11")
    answer(peer, lambda it: Response(it, 200, stream=True), lambda it: Chunk(it, b"text"))
    die(peer)
    assert "status=502" in response().text.splitlines()[-1]


def test_a_client_of_the_site_that_leaves_cancels_at_the_peer(relay: Relay) -> None:
    peer = relay.register("aa11")
    answering = in_thread(answer, peer, lambda it: Response(it, 200, stream=True))
    with relay.get("/call/aa11", stream=True) as response:
        next(response.iter_lines())
    assert told(peer) == wire.Cancel(answering().request_id)


def test_presence_is_there_while_the_socket_is(relay: Relay) -> None:
    before = time.time()
    peer = relay.register("aa11")
    assert before - 1 < relay.get("/figures").json()["peers"]["aa11"] < time.time() + 1
    die(peer)
    eventually(lambda: "aa11" not in relay.get("/figures").json()["peers"])


def test_outcomes_and_drops_are_counted(relay: Relay) -> None:
    before = relay.get("/figures").json()
    peer, caller = relay.register("aa11"), relay.connect("/rpc/aa11", relay.credential("cc33"))
    peer.send('{"request_id":"nobody","status":200}')
    peer.send("nonsense")
    assert hear(peer).status == 400
    caller.send(envelope.encode(wire.Request("1", "GET", "/health")))
    answer(peer, lambda it: Response(it, 200))
    caller.recv()
    after = relay.get("/figures").json()
    for table, name in (("outcomes", "answered"), ("drops", "unmatched"), ("drops", "malformed")):
        assert after[table][name] == before[table].get(name, 0) + 1


def test_a_revoked_peer_loses_its_sockets_at_once_and_is_told_why(relay: Relay) -> None:
    peer, calling = relay.register("aa11"), relay.connect("/rpc/bb22", relay.credential("aa11"))
    other = relay.register("bb22")
    calling.send(envelope.encode(wire.Request("1", "GET", "/health")))
    told(other)
    relay.get("/revoke/aa11")
    for ws in (peer, calling):
        assert end(ws) == (401, wire.CLOSE_CREDENTIAL)
    assert isinstance(told(other), wire.Cancel)


def test_a_binary_message_is_told_which_version_is_spoken_and_the_socket_lives(relay: Relay) -> None:
    peer, caller = relay.register("aa11"), relay.connect("/rpc/aa11", relay.credential("cc33"))
    caller.send_binary(b"\x02\x01\x00\x02{}")
    error = hear(caller)
    assert wire.error_of(error.status, error.body)[0] == Code.BAD_REQUEST
    caller.send(envelope.encode(wire.Request("1", "GET", "/health")))
    answer(peer, lambda it: Response(it, 200))
    assert hear(caller).status == 200


@pytest.mark.parametrize(
    "path", ["/", "/ws/", "/rpc/", "/rpc/aa11/x", "/admin/", "/rpc/%00%00", "/rpc/" + "a" * 129, "/rpc/%c3%a9"]
)
def test_any_other_path_is_404_in_a_frame(relay: Relay, path: str) -> None:
    assert end(relay.connect(path, relay.credential("aa11"))) == (404, 4404)


def test_a_directory_that_fails_is_503_not_401(relay: Relay) -> None:
    error = hear(relay.connect("/ws", relay.credential("aa11", kind="broken")))
    assert error.status == 503


def test_no_credential_reaches_the_log(relay: Relay) -> None:
    relay.connect("/ws", "secret-credential.x.bad").recv()
    relay.register("aa11")
    assert "secret-credential" not in relay.process.output
    assert relay.credential("aa11") not in relay.process.output


def test_a_hop_through_a_kept_socket_takes_milliseconds(relay: Relay) -> None:
    """Not a benchmark: a guard against a wait that crept in."""
    peer, caller = relay.register("aa11"), relay.connect("/rpc/aa11", relay.credential("cc33"))

    def serve() -> None:
        for _ in range(50):
            peer.send(envelope.encode(Response(take(peer).request_id, 200)))

    served = in_thread(serve)
    times = []
    for number in range(50):
        started = time.perf_counter()
        caller.send(envelope.encode(wire.Request(str(number), "POST", "/forward", {}, b"x" * 1200)))
        assert hear(caller).status == 200
        times.append(time.perf_counter() - started)
    assert sorted(times)[25] < 0.02
    served()
