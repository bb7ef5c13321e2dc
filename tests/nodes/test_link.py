"""A node's connection in version 2 of the wire, against a relay that the test plays by hand."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from nodes.deadline import Deadline
from nodes.hops import HopAnswer, HopError, TunnelHop
from nodes.tunnel import Tunnel
from relay import wire
from relay.codec import decode_frame, encode_frame
from relay.wire import Cancel, Chunk, Code, Drain, Error, Frame, Ping, Pong, Request, Response
from tests.nodes.test_bridge import bridged, until_gone, welcome
from tests.nodes.websockets import Ended, ServerSocket, WebSocketServer

PEER = "cd" * 16


class Relay:
    """Welcomes a node and keeps what it says; `answer` may answer it. PINGs are answered while `is_alive`."""

    def __init__(self, answer: Callable[[Relay, Request], None] | None = None) -> None:
        self._answer = answer
        self.tunnel = Tunnel()
        self.is_alive = True
        self.socket: ServerSocket | None = None
        self.heard: list[tuple[Frame, str]] = []
        self.changed = threading.Condition()
        self.welcomed = threading.Semaphore(0)

    def __call__(self, connection: ServerSocket) -> None:
        welcome(connection)
        self.socket = connection
        self.welcomed.release()
        while True:
            frame, to, _ = decode_frame(connection.receive_data())
            if isinstance(frame, Ping):
                if self.is_alive:
                    self.send(Pong(frame.n))
                continue
            with self.changed:
                self.heard.append((frame, to))
                self.changed.notify_all()
            if isinstance(frame, Request) and self._answer:
                self._answer(self, frame)

    def send(self, frame: Frame, sender: str = "") -> None:
        assert self.socket
        self.socket.send(encode_frame(frame, "", sender))

    def wait_for(self, kind: type[Frame], count: int = 1) -> list[Frame]:
        with self.changed:
            found: list[Frame] = []

            def is_there() -> bool:
                found[:] = [frame for frame, _ in self.heard if isinstance(frame, kind)]
                return len(found) >= count

            assert self.changed.wait_for(is_there, 5), self.heard
        return found

    @contextlib.contextmanager
    def serving(self, **options: float) -> Iterator[WebSocketServer]:
        with bridged(self, tunnel=self.tunnel, **options) as server:
            assert self.welcomed.acquire(timeout=5)
            until = time.monotonic() + 5
            while not self.tunnel.is_open:
                assert time.monotonic() < until
                time.sleep(0.001)
            yield server

    def ask(self, body: bytes = b"x", deadline_s: float = 5) -> HopAnswer:
        return TunnelHop(self.tunnel, PEER).ask("POST", "/forward", {"x-a": "1"}, body, Deadline.after(deadline_s))


def test_it_asks_another_node_by_its_id_and_gets_the_answer() -> None:
    def answer(relay: Relay, request: Request) -> None:
        relay.send(Response(request.request_id, 200, {"x-b": "2"}, request.body[::-1]), sender=PEER)

    relay = Relay(answer)
    with relay.serving() as server:
        got = relay.ask(bytes(range(256)))
    assert (got.status, got.headers, got.body) == (200, {"x-b": "2"}, bytes(range(255, -1, -1)))
    request, to = relay.heard[0]
    assert isinstance(request, Request)
    assert (request.method, request.path, request.headers, to) == ("POST", "/forward", {"x-a": "1"}, PEER)
    assert server.sockets[0].path == "/ws"


def test_many_ask_at_once_and_each_gets_its_own_answer_in_whatever_order() -> None:
    waiting: list[Request] = []

    def answer(relay: Relay, request: Request) -> None:
        waiting.append(request)
        if len(waiting) == 16:
            for one in reversed(waiting):
                relay.send(Response(one.request_id, 200, {}, one.body * 2))

    relay = Relay(answer)
    with relay.serving(), ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda number: relay.ask(b"%03d" % number).body, range(16)))
    assert answers == [b"%03d%03d" % (number, number) for number in range(16)]


def test_what_the_relay_says_instead_of_an_answer_is_one_with_its_status() -> None:
    relay = Relay(lambda relay, request: relay.send(Error(request.request_id, Code.PEER_GONE, "it has left")))
    with relay.serving():
        answer = relay.ask()
    assert answer.status == 502
    assert wire.error_of(answer.status, answer.body) == ("peer_gone", "it has left")


def test_an_answer_that_cant_be_read_fails_its_own_question_only() -> None:
    def answer(relay: Relay, request: Request) -> None:
        assert relay.socket
        meta = b'{"id":"%s","status":7}' % request.request_id.encode()
        relay.socket.send(bytes((2, 2, 0, len(meta))) + meta)

    relay = Relay(answer)
    with relay.serving() as server:
        assert relay.ask().status == 400
        assert relay.ask().status == 400
        assert len(server.sockets) == 1


def test_a_streamed_answer_is_refused_at_once() -> None:
    def answer(relay: Relay, request: Request) -> None:
        relay.send(Response(request.request_id, 200, {}, stream=True))
        relay.send(Chunk(request.request_id, b"more"))

    relay = Relay(answer)
    with relay.serving():
        assert wire.error_of(502, relay.ask().body)[0] == "bad_answer"


def test_a_question_without_an_answer_is_cancelled_and_the_connection_stays() -> None:
    relay = Relay()
    with relay.serving() as server:
        with pytest.raises(HopError, match="no answer through the tunnel in time") as error:
            relay.ask(deadline_s=0.1)
        assert not error.value.is_cut
        (cancel,) = relay.wait_for(Cancel)
        request = relay.heard[0][0]
        assert isinstance(request, Request)
        assert cancel == Cancel(request.request_id)
        relay.send(Response(request.request_id, 200, {}, b"late"))
        with pytest.raises(HopError):
            relay.ask(deadline_s=0.1)
        assert len(server.sockets) == 1


def test_a_cut_fails_every_open_question_at_once() -> None:
    relay = Relay()
    with relay.serving(), ThreadPoolExecutor(5) as threads:
        asked: list[Future[HopAnswer]] = [threads.submit(relay.ask, b"x", 30) for _ in range(5)]
        relay.wait_for(Request, 5)
        started = time.monotonic()
        assert relay.socket
        relay.socket.cut()
        for one in asked:
            with pytest.raises(HopError) as error:
                one.result(5)
            assert error.value.is_cut
        assert time.monotonic() - started < 1


def test_too_large_a_body_is_refused_before_it_is_sent() -> None:
    relay = Relay()
    with relay.serving():
        for size in (wire.MAX_BODY_BYTES + 1, 64 * wire.MAX_BODY_BYTES):
            with pytest.raises(HopError, match="too_large"):
                relay.ask(bytes(size))
        assert not relay.heard


def test_more_headers_than_a_frame_carries_are_refused_before_it_is_sent() -> None:
    relay = Relay()
    with relay.serving():
        with pytest.raises(HopError, match="too_large"):
            TunnelHop(relay.tunnel, PEER).ask("POST", "/forward", {"x": "y" * 70_000}, b"", Deadline.after(5))
        assert relay.tunnel.num_asked == 0


def test_it_answers_while_it_asks() -> None:
    """Both directions on one socket, with ids that don't know of each other."""
    relay = Relay()
    with relay.serving(), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(relay.ask)
        (request,) = relay.wait_for(Request)
        assert isinstance(request, Request)
        relay.send(Request(request.request_id, "GET", "/health"), sender="tracker")
        (response,) = relay.wait_for(Response)
        assert isinstance(response, Response)
        assert (response.request_id, response.status) == (request.request_id, 200)
        relay.send(Response(request.request_id, 200, {}, b"mine"))
        assert asked.result(5).body == b"mine"


def test_it_answers_pings() -> None:
    relay = Relay()
    with relay.serving():
        relay.send(Ping(41))
        assert relay.wait_for(Pong) == [Pong(41)]


def test_bad_requests_are_answered_and_the_connection_stays(caplog: pytest.LogCaptureFixture) -> None:
    relay = Relay()
    with relay.serving() as server:
        assert relay.socket
        for meta in (b'{"id":"r1","method":7,"path":"/"}', b"not json"):
            relay.socket.send(bytes((2, 1, 0, len(meta))) + meta)
        relay.socket.send("text")
        relay.socket.send(b"")
        relay.send(Request("r2", "GET", "/nothing"))
        relay.send(Request("r3", "POST", "/forward?x=1#@h"))
        answers = relay.wait_for(Response, 3)
        assert len(server.sockets) == 1
    assert [(one.request_id, one.status) for one in answers if isinstance(one, Response)] == [
        ("r1", 400),
        ("r2", 403),
        ("r3", 403),
    ]
    assert "can't be read" in caplog.text


def test_when_the_relay_takes_nothing_more_questions_are_refused_at_once() -> None:
    relay = Relay()
    relay.is_alive = False
    with relay.serving(ping_s=600), ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(relay.ask, bytes(wire.MAX_BODY_BYTES), 2) for _ in range(7)]
        relay.wait_for(Request, 7)
        started = time.monotonic()
        refused = relay.ask(bytes(wire.MAX_BODY_BYTES))
        assert time.monotonic() - started < 1
        assert wire.error_of(refused.status, refused.body) == (
            "rate_limited",
            "the relay has yet to take what this node has sent",
        )
        relay.tunnel.close("the test is over")
        for one in asked:
            with pytest.raises(HopError):
                one.result(5)


def test_told_to_drain_it_finishes_and_connects_again_without_counting_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    relay = Relay()
    with relay.serving() as server, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(relay.ask)
        (request,) = relay.wait_for(Request)
        assert isinstance(request, Request)
        drained_at = time.monotonic()
        relay.send(Drain(100, 100))
        time.sleep(0.25)
        assert len(server.sockets) == 1, "it left while something was under way"
        relay.send(Response(request.request_id, 200, {}, b"finished"))
        assert asked.result(5).body == b"finished"
        assert relay.welcomed.acquire(timeout=5)
        assert 0.25 < time.monotonic() - drained_at < 1.5
    assert "connecting anew" in caplog.text
    assert "No connection to the relay" not in caplog.text


def test_a_drained_relay_that_closes_is_left_alone_until_the_time_it_named() -> None:
    relay = Relay()
    with relay.serving():
        drained_at = time.monotonic()
        relay.send(Drain(300, 0))
        assert relay.socket
        relay.socket.close(4503)
        assert relay.welcomed.acquire(timeout=5)
        assert 0.3 <= time.monotonic() - drained_at < 2


def test_a_relay_that_wants_another_version_makes_it_say_upgrade(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nodes.bridge.UPGRADE_PAUSE_S", 0.1)

    def refuse(connection: ServerSocket) -> None:
        connection.receive_data()
        connection.send(encode_frame(Error("", Code.UPGRADE, "this relay speaks version 3")))
        connection.close(wire.CLOSE_UPGRADE)

    with bridged(refuse, tunnel=Tunnel()) as server:
        for _ in range(2):
            assert server.opened.acquire(timeout=5)
    assert "the relay refuses: this relay speaks version 3: upgrade this node's program" in caplog.text


@pytest.mark.parametrize("with_frame", [True, False])
def test_when_another_machine_uses_its_key_it_waits(with_frame: bool, caplog: pytest.LogCaptureFixture) -> None:
    relay = Relay()
    with relay.serving(replaced_pause_s=0.3):
        replaced_at = time.monotonic()
        if with_frame:
            relay.send(Error("", Code.CONFLICT, "replaced"))
        assert relay.socket
        relay.socket.close(4409)
        assert relay.welcomed.acquire(timeout=5)
        assert time.monotonic() - replaced_at >= 0.3
    assert "another machine uses this node's key" in caplog.text


@pytest.mark.parametrize("reply", [encode_frame(Pong(1)), b"\x02", "text"])
def test_a_welcome_that_is_none_isnt_taken_for_one(reply: bytes | str, caplog: pytest.LogCaptureFixture) -> None:
    def serve(connection: ServerSocket) -> None:
        with contextlib.suppress(Ended):
            connection.receive_data()
            connection.send(reply)
            until_gone(connection)

    with bridged(serve, tunnel=Tunnel()) as server:
        for _ in range(2):
            assert server.opened.acquire(timeout=5)
    assert "the relay's answer to the registration can't be read" in caplog.text


def test_a_complaint_of_the_relay_about_a_message_is_no_end(caplog: pytest.LogCaptureFixture) -> None:
    relay = Relay(lambda relay, request: relay.send(Response(request.request_id, 200)))
    with relay.serving() as server:
        relay.send(Error("", Code.BAD_REQUEST, "what was that"))
        assert relay.ask().status == 200
        assert len(server.sockets) == 1
    assert "The relay can't read what this node sent: what was that" in caplog.text
