from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.backoff import Backoff
from nodes.bridge import RelayHttpBridge
from nodes.deadline import Deadline
from nodes.tunnel import Tunnel
from relay import envelope, wire
from relay.codec import decode_frame, encode_frame
from relay.wire import Code, Hello, Request, Welcome
from tests.nodes.certificates import tls_pair
from tests.nodes.meshes import Mesh, parts, shared_tls
from tests.nodes.relays import MiniRelay
from tests.nodes.websockets import Ended, ServerSocket, WebSocketServer

PLAIN = "/v1/completions"


@contextlib.contextmanager
def bridged(handler: Callable[[ServerSocket], None], **options: Any) -> Iterator[WebSocketServer]:
    """A bridge of a small node to a server that the test plays by hand, with next to no pause between tries.

    It speaks version 2 where it is given a tunnel.
    """
    with Mesh([(0, 4)], relayed=False) as mesh, WebSocketServer(handler, picks=[wire.SUBPROTOCOL]) as server:
        head = mesh.head
        options = {"backoff": Backoff(0.01, 0.01)} | options
        bridge = RelayHttpBridge(head.api, f"{server.url}/ws", head.peer_id, head.key, shared_tls(), **options)
        bridge.start()
        try:
            yield server
        finally:
            bridge.stop(Deadline.after(5))


def welcome(connection: ServerSocket) -> str:
    """Registers the peer; its id."""
    if connection.subprotocol:
        hello = decode_frame(connection.receive_data()).frame
        assert isinstance(hello, Hello)
        connection.send(encode_frame(Welcome(hello.peer_id, 1, wire.limits(), "")))
        return hello.peer_id
    message = json.loads(connection.receive())
    assert message["type"] == "register"
    connection.send(json.dumps({"type": "registered", "peer_id": message["peer_id"], "relay_addr": "", "limits": {}}))
    return str(message["peer_id"])


def until_gone(connection: ServerSocket) -> None:
    with contextlib.suppress(Ended):
        while True:
            connection.receive()


def test_it_registers_with_its_credential_and_answers_requests() -> None:
    answers: list[wire.Answer] = []
    done = threading.Event()

    def serve(connection: ServerSocket) -> None:
        assert welcome(connection) == f"{1:032x}"
        connection.send(envelope.encode(Request("r1", "GET", "/health", sender="tracker"), to_peer=True))
        answers.append(envelope.decode_answer(connection.receive()))
        done.set()
        until_gone(connection)

    with bridged(serve) as server:
        assert done.wait(5)
    assert server.sockets[0].headers["authorization"] == f"Bearer node_00000000.key-of-{1:032x}"
    answer = answers[0]
    assert isinstance(answer, wire.Response)
    assert (answer.request_id, answer.status) == ("r1", 200)


def test_bad_requests_are_answered_and_the_connection_stays() -> None:
    answers: list[wire.Response] = []
    done = threading.Event()

    def serve(connection: ServerSocket) -> None:
        welcome(connection)
        for text in (
            '{"type":"relay-http-request","request_id":"r1","method":7,"path":"/"}',
            '{"type":"relay-http-request","request_id":"r2","method":"POST","path":"/x","body_base64":"%"}',
            '{"type":"something-new"}',
            "not json",
            envelope.encode(Request("r3", "GET", "/nothing"), to_peer=True),
        ):
            connection.send(text)
        for _ in range(3):
            answer = envelope.decode_answer(connection.receive())
            assert isinstance(answer, wire.Response)
            answers.append(answer)
        done.set()
        until_gone(connection)

    with bridged(serve) as server:
        assert done.wait(5)
        assert len(server.sockets) == 1
    assert [(answer.request_id, answer.status) for answer in answers] == [("r1", 400), ("r2", 400), ("r3", 403)]


def test_it_answers_pings() -> None:
    got = threading.Event()

    def serve(connection: ServerSocket) -> None:
        welcome(connection)
        connection.frame(9, b"are you there")
        connection.send(envelope.encode(Request("r1", "GET", "/health"), to_peer=True))
        connection.receive()
        if connection.pongs == [b"are you there"]:
            got.set()
        until_gone(connection)

    with bridged(serve):
        assert got.wait(5)


def test_it_asks_each_period_whether_the_relay_is_there() -> None:
    asked = threading.Semaphore(0)

    def serve(connection: ServerSocket) -> None:
        welcome(connection)
        while True:
            opcode, data = connection._frame()
            if opcode == 9:
                connection.frame(10, data)
                asked.release()

    with bridged(serve, ping_s=0.05) as server:
        for _ in range(3):
            assert asked.acquire(timeout=5)
        assert len(server.sockets) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_relay_that_says_nothing_at_all_is_given_up_within_two_periods(version: int) -> None:
    over = threading.Event()
    welcomed_at: list[float] = []

    def black_hole(connection: ServerSocket) -> None:
        welcome(connection)
        welcomed_at.append(time.monotonic())
        over.wait(10)

    with bridged(black_hole, ping_s=0.5, tunnel=Tunnel() if version == 2 else None) as server:
        for _ in range(2):
            assert server.opened.acquire(timeout=5)
        assert 0.7 < time.monotonic() - welcomed_at[0] < 1.0
        over.set()


def test_it_comes_back_after_a_cut(caplog: pytest.LogCaptureFixture) -> None:
    def cut(connection: ServerSocket) -> None:
        welcome(connection)
        connection.cut()

    with caplog.at_level(logging.INFO), bridged(cut) as server:
        for _ in range(4):
            assert server.opened.acquire(timeout=5)
    assert "No connection to the relay" in caplog.text
    assert "trying again in" in caplog.text


def test_a_relay_that_answers_no_registration_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.bridge.CONNECT_DEADLINE_S", 0.1)

    with bridged(until_gone) as server:
        for _ in range(2):
            assert server.opened.acquire(timeout=5)


@pytest.mark.parametrize("with_frame", [True, False])
def test_when_another_machine_uses_its_key_it_waits_and_says_so(
    with_frame: bool, caplog: pytest.LogCaptureFixture
) -> None:
    closed_at: list[float] = []

    def replace(connection: ServerSocket) -> None:
        welcome(connection)
        if with_frame:
            connection.send(json.dumps({"type": "error", "status": 409, "message": "replaced"}))
        connection.close(4409)
        closed_at.append(time.monotonic())

    with bridged(replace, replaced_pause_s=0.4) as server:
        assert server.opened.acquire(timeout=5)
        assert server.opened.acquire(timeout=5)
        assert time.monotonic() - closed_at[0] > 0.3
    assert "another machine uses this node's key" in caplog.text


def test_a_refused_credential_isnt_tried_in_a_hurry(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nodes.bridge.REFUSED_PAUSE_S", 0.3)
    closed_at: list[float] = []

    def refuse(connection: ServerSocket) -> None:
        connection.receive()
        connection.send(envelope.encode_error(Code.UNAUTHORIZED, "this key is unknown"))
        connection.close(4401)
        closed_at.append(time.monotonic())

    with bridged(refuse) as server:
        assert server.opened.acquire(timeout=5)
        assert server.opened.acquire(timeout=5)
        assert time.monotonic() - closed_at[0] > 0.25
    assert "this key is unknown" in caplog.text
    assert "key-of-" not in caplog.text


def test_while_the_tracker_says_that_it_is_out_the_relay_is_not_asked() -> None:
    is_let_in = threading.Event()
    is_let_in.set()

    def refuse(connection: ServerSocket) -> None:
        connection.receive()
        is_let_in.clear()  # the tracker tells it of this too
        connection.close(1011)

    with bridged(refuse, is_let_in=is_let_in) as server:
        assert server.opened.acquire(timeout=5)
        assert not server.opened.acquire(timeout=0.4), "it would have been back after a hundredth of a second"
        is_let_in.set()
        assert server.opened.acquire(timeout=5)


def test_a_cancelled_chat_stops_and_frees_every_hop() -> None:
    with Mesh([(0, 2), (2, 4)]) as mesh:
        relay = mesh.relay
        assert relay
        for node in mesh.nodes:
            node.engine.next_token = slow_count
        request = mesh.request({"prompt": "a", "max_tokens": 150}, PLAIN, max_tokens=150)
        request_id = relay.ask(mesh.head.peer_id, request)
        wait_for(lambda: len(mesh.head.engine.steps) > 2)
        relay.tell(mesh.head.peer_id, wire.Cancel(request_id))

        mesh.wait_until_free()
        assert len(mesh.head.engine.steps) < 100


def test_when_the_connection_ends_the_chats_that_came_over_it_end_too() -> None:
    with Mesh([(0, 2), (2, 4)]) as mesh:
        relay = mesh.relay
        assert relay
        for node in mesh.nodes:
            node.engine.next_token = slow_count
        relay.ask(mesh.head.peer_id, mesh.request({"prompt": "a", "max_tokens": 150}, PLAIN, max_tokens=150))
        wait_for(lambda: len(mesh.head.engine.steps) > 2)
        relay.peers[mesh.head.peer_id].cut()

        mesh.wait_until_free()
        assert len(mesh.head.engine.steps) < 100


def test_a_chat_over_the_relay_is_a_stream_of_chunks_and_an_end() -> None:
    frames: list[wire.Answer] = []
    with Mesh([(0, 4)]) as mesh:
        request = mesh.request({"prompt": "a", "max_tokens": 3, "temperature": 0}, PLAIN)
        done = threading.Event()

        def serve(connection: ServerSocket) -> None:
            welcome(connection)
            connection.send(envelope.encode(request, to_peer=True))
            while not frames or not wire.is_last(frames[-1]):
                frames.append(envelope.decode_answer(connection.receive()))
            done.set()
            until_gone(connection)

        with WebSocketServer(serve) as server:
            head = mesh.head
            bridge = RelayHttpBridge(head.api, f"{server.url}/ws", head.peer_id, head.key, shared_tls())
            bridge.start()
            assert done.wait(5)
            bridge.stop(Deadline.after(5))

    first, last = frames[0], frames[-1]
    assert isinstance(first, wire.Response)
    assert (first.status, first.stream, first.headers["content-type"]) == (200, True, "text/event-stream")
    assert isinstance(last, wire.End)
    text = b"".join(frame.data for frame in frames if isinstance(frame, wire.Chunk))
    assert list(parts(text))[-1] == b"data: [DONE]"


def test_a_route_works_over_tls(tmp_path: Path) -> None:
    server_tls, client_tls = tls_pair(tmp_path)
    with MiniRelay(server_tls) as relay, Mesh([(0, 2), (2, 4), (4, 6)], relay=relay, tls=client_tls) as mesh:
        told = [mesh.chat("abc", max_tokens=20) for _ in range(3)]

    assert {tuple(one.paths) for one in told} == {("local", "tunnel", "tunnel")}
    assert len({tuple(one.ids) for one in told}) == 1


def test_eight_chats_at_once_over_tls_each_get_their_own_tokens(tmp_path: Path) -> None:
    """One bridge socket carries them all: its reader and its writer are busy at the same time."""
    server_tls, client_tls = tls_pair(tmp_path)
    with MiniRelay(server_tls) as relay, Mesh([(0, 2), (2, 4)], relay=relay, tls=client_tls) as mesh:
        prompts = ["abcdefgh"[number] * (number + 1) for number in range(8)]
        alone = [mesh.chat(prompt, max_tokens=40).ids for prompt in prompts]
        together: dict[str, list[int]] = {}
        threads = [
            threading.Thread(
                target=lambda prompt=prompt: together.update({prompt: mesh.chat(prompt, max_tokens=40).ids})
            )
            for prompt in prompts
        ]
        mesh.wait_until_free()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    assert [together[prompt] for prompt in prompts] == alone


def test_the_relay_cut_in_the_middle_of_a_generation_goes_on_by_direct_http(caplog: pytest.LogCaptureFixture) -> None:
    mesh = Mesh([(0, 2), (2, 4)], direct=True, wire_versions=[(1,)])

    def cut_at_sixth(position: int, last_id: int) -> int:
        if len(mesh.nodes[1].engine.steps) == 6 and mesh.relay:
            mesh.relay.refuse_rpc = True
            mesh.relay.cut_callers()
        return last_id + 1

    with mesh:
        undisturbed = mesh.chat("abc", max_tokens=10)
        mesh.wait_until_free()
        mesh.nodes[1].engine.steps.clear()
        mesh.nodes[1].engine.next_token = cut_at_sixth
        told = mesh.chat("abc", max_tokens=10)
        mesh.wait_until_free()

    assert undisturbed.paths == ["local", "relay"]
    assert told.paths == ["local", "direct"]
    assert told.ids == undisturbed.ids
    assert "relay hop to layers 2–3" in caplog.text
    assert caplog.text.count("trying direct HTTP") == 1  # the next tokens don't pay for it


def test_a_cut_tunnel_is_replaced_by_the_relays_other_door_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    mesh = Mesh([(0, 2), (2, 4)])

    def cut_at_sixth(position: int, last_id: int) -> int:
        if len(mesh.nodes[1].engine.steps) == 6 and mesh.relay:
            mesh.relay.peers[mesh.head.peer_id].cut()
        return last_id + 1

    with mesh:
        undisturbed = mesh.chat("abc", max_tokens=10)
        mesh.wait_until_free()
        mesh.nodes[1].engine.steps.clear()
        mesh.nodes[1].engine.next_token = cut_at_sixth
        told = mesh.chat("abc", max_tokens=10)
        assert mesh.head.bridge
        assert mesh.head.bridge.connected.wait(5)
        after = mesh.chat("abc", max_tokens=10)

    assert undisturbed.paths == ["local", "tunnel"]
    assert told.paths == ["local", "relay"]
    assert after.paths == ["local", "tunnel"]
    assert told.ids == after.ids == undisturbed.ids
    assert "tunnel hop to layers 2–3 on peer 00000000 failed" in caplog.text
    assert "trying the relay" in caplog.text


@pytest.mark.parametrize(
    ("wire_versions", "paths"),
    [
        ([(1, 2), (1,), (1, 2)], ["local", "relay", "tunnel"]),
        ([(1,), (1, 2), (1, 2)], ["local", "relay", "relay"]),
    ],
)
def test_nodes_of_both_versions_work_in_one_route(wire_versions: list[tuple[int, ...]], paths: list[str]) -> None:
    cuts = [(0, 2), (2, 4), (4, 6)]
    with Mesh(cuts) as mesh:
        same = mesh.chat("abc", max_tokens=10)
    with Mesh(cuts, wire_versions=wire_versions) as mesh:
        mixed = mesh.chat("abc", max_tokens=10)

    assert same.paths == ["local", "tunnel", "tunnel"]
    assert mixed.paths == paths
    assert mixed.ids == same.ids


def test_a_relay_of_version_1_is_used_as_one() -> None:
    with MiniRelay(wire_versions=[1]) as relay, Mesh([(0, 2), (2, 4)], relay=relay) as mesh:
        assert mesh.chat("abc").paths == ["local", "relay"]


def test_a_path_that_is_preferred_comes_first() -> None:
    with Mesh([(0, 2), (2, 4)], direct=True, prefer="direct") as mesh:
        assert mesh.chat("abc").paths == ["local", "direct"]
    with Mesh([(0, 2), (2, 4)], direct=True, prefer="fastest") as mesh:
        assert mesh.chat("abc").paths[1] in ("tunnel", "direct")


def test_both_paths_cut_is_one_typed_error_in_time() -> None:
    mesh = Mesh([(0, 2), (2, 4)], direct=True)

    def cut_at_sixth(position: int, last_id: int) -> int:
        tail = mesh.nodes[1]
        if len(tail.engine.steps) == 6 and mesh.relay and tail.server:
            mesh.relay.refuse_rpc = True
            tail.server.api = None  # answers 503
            mesh.relay.peers[mesh.head.peer_id].cut()
        return last_id + 1

    mesh.next_token = cut_at_sixth
    with mesh:
        started = time.monotonic()
        told = mesh.chat("abc", max_tokens=10)
        took_s = time.monotonic() - started

    assert told.error
    assert told.error["code"] == "node_failed"
    assert told.error["message"].startswith("pipeline error: layers 2–3 on peer 00000000: tunnel: ")
    assert "; relay: " in told.error["message"]
    assert "; direct: " in told.error["message"]
    assert took_s < 10


def slow_count(position: int, last_id: int) -> int:
    time.sleep(0.01)
    return last_id + 1


def wait_for(condition: Callable[[], bool], deadline_s: float = 5) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_told_to_renew_it_ends_the_connection_and_opens_another_at_once() -> None:
    def serve(connection: ServerSocket) -> None:
        welcome(connection)
        came.release()
        until_gone(connection)

    came = threading.Semaphore(0)
    with Mesh([(0, 4)], relayed=False) as mesh, WebSocketServer(serve) as server:
        head = mesh.head
        backoff = Backoff(600, 600, draw=lambda: 1.0)
        bridge = RelayHttpBridge(head.api, f"{server.url}/ws", head.peer_id, head.key, shared_tls(), backoff)
        bridge.start()
        assert came.acquire(timeout=5)
        assert bridge.connected.wait(5)
        bridge.renew()
        assert came.acquire(timeout=5)
        bridge.stop(Deadline.after(5))
