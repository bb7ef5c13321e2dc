"""A caller and a peer written from adr-0014-relay-hops.md alone, with websocket-client and json: nothing of ours.

They are given an address and credentials, opaque strings, by the fixture `relay`.
"""

import base64
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import websocket

Message = dict[str, Any]
Answering = Callable[[Message], Iterable[Message]]

OCTETS = bytes(range(256))


class Peer(threading.Thread):
    """Answers each request by its path or body, in a thread, until its socket ends."""

    def __init__(self, relay: Any, peer_id: str, answer: Answering) -> None:
        super().__init__(daemon=True)
        self.ws = relay.connect("/ws", relay.credential(peer_id), timeout=20)
        self.ws.send(json.dumps({"type": "register", "peer_id": peer_id}))
        self.welcome = json.loads(self.ws.recv())
        self.answer = answer
        self.seen: list[Message] = []
        self.news = threading.Condition()
        self.start()

    def run(self) -> None:
        while True:
            try:
                text = self.ws.recv()
            except (websocket.WebSocketException, OSError):
                return
            if not text:
                return
            message = json.loads(text)
            with self.news:
                self.seen.append(message)
                self.news.notify_all()
            if message["type"] == "relay-http-request":
                for reply in self.answer(message):
                    self.ws.send(json.dumps({"request_id": message["request_id"], **reply}))

    def wait_for(self, number: int) -> list[Message]:
        """What it has been sent, when that are so many."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.seen) >= number, 10), self.seen
            return list(self.seen)

    def die(self) -> None:
        """As after kill -9: the connection ends without a word."""
        self.ws.sock.shutdown(socket.SHUT_RDWR)


def echo(message: Message) -> Iterator[Message]:
    """The record's binary answer to POST /forward."""
    yield {
        "status": 200,
        "headers": {
            "X-Meshnet-Shape": message["headers"]["x-meshnet-shape"],
            "Content-Type": "application/octet-stream",
        },
        "body_base64": message["body_base64"],
    }


def text(message: Message) -> Iterator[Message]:
    """The record's text answer: the last hop's."""
    yield {
        "type": "relay-http-response",
        "status": 200,
        "headers": {"content-type": "application/json"},
        "body": '{"é":1}',
    }


def silent(message: Message) -> Iterator[Message]:
    return iter(())


def request(request_id: str, body: bytes = b"\x80\x3f", **changes: Any) -> str:
    envelope = {
        "request_id": request_id,
        "method": "POST",
        "path": "/forward",
        "headers": {"X-Meshnet-Shape": "1,1,1", "X-Meshnet-Start-Layer": "12"},
        "body_base64": base64.b64encode(body).decode(),
    }
    return json.dumps({**envelope, **changes})


def ask(ws: websocket.WebSocket, text: str) -> Any:
    ws.send(text)
    return json.loads(ws.recv())


def error_of(answer: Message) -> Any:
    return json.loads(answer["body"])["error"]["code"]


def open_rpc(relay: Any, peer_id: str = "aa11", caller: str = "cc33") -> websocket.WebSocket:
    ws: websocket.WebSocket = relay.connect(f"/rpc/{peer_id}", relay.credential(caller))
    return ws


def closing(ws: websocket.WebSocket) -> tuple[Message, int]:
    """The error frame and the close code with which a socket ends."""
    frame = json.loads(ws.recv())
    opcode, data = ws.recv_data()
    assert opcode == websocket.ABNF.OPCODE_CLOSE
    return frame, int.from_bytes(data[:2], "big")


def test_a_peer_is_welcomed_with_its_address_and_the_limits(relay: Any) -> None:
    welcome = Peer(relay, "aa11", echo).welcome
    assert welcome["type"] == "registered"
    assert welcome["peer_id"] == "aa11"
    assert welcome["relay_addr"] == "ws://relay.example/rpc/aa11"
    assert welcome["limits"]["max_body_bytes"] == 1024 * 1024


def test_binary_bodies_arrive_bit_for_bit_both_ways(relay: Any) -> None:
    peer = Peer(relay, "aa11", echo)
    answer = ask(open_rpc(relay), request("0f", OCTETS))
    assert base64.b64decode(answer["body_base64"]) == OCTETS
    assert (answer["request_id"], answer["status"]) == ("0f", 200)
    assert {name.lower(): value for name, value in answer["headers"].items()}["x-meshnet-shape"] == "1,1,1"
    [asked] = peer.seen
    assert (asked["method"], asked["path"]) == ("POST", "/forward")
    assert base64.b64decode(asked["body_base64"]) == OCTETS
    assert asked["headers"]["x-meshnet-start-layer"] == "12"


def test_text_bodies_arrive_as_text_both_ways(relay: Any) -> None:
    peer = Peer(relay, "aa11", text)
    body = '{"messages": "👩‍👩‍👧‍👦 é"}'
    envelope = {"request_id": "1", "method": "POST", "path": "/v1/completions", "body": body}
    answer = ask(open_rpc(relay), json.dumps(envelope | {"headers": {"Content-Type": "application/json"}}))
    assert answer["body"] == '{"é":1}'
    assert peer.seen[0]["body"] == body


def test_an_empty_body_may_be_left_out(relay: Any) -> None:
    peer = Peer(relay, "aa11", lambda message: [{"status": 204}])
    path = "/sessions/" + "0a" * 16
    answer = ask(open_rpc(relay), json.dumps({"request_id": "1", "method": "DELETE", "path": path}))
    assert answer["status"] == 204
    assert not answer.get("body")
    assert peer.seen[0]["path"] == path


def test_a_streamed_answer_comes_in_pieces_and_ends(relay: Any) -> None:
    def stream(message: Message) -> Iterator[Message]:
        yield {"status": 200, "headers": {"content-type": "text/event-stream"}, "stream": True}
        yield {"chunk": "data: é\n\n"}
        yield {"chunk_base64": base64.b64encode(b"\xff").decode()}
        yield {"end": True}

    Peer(relay, "aa11", stream)
    ws = open_rpc(relay)
    begin, first, second, end = [ask(ws, request("1"))] + [json.loads(ws.recv()) for _ in range(3)]
    assert (begin["status"], begin["stream"]) == (200, True)
    assert first["chunk"] == "data: é\n\n"
    assert base64.b64decode(second["chunk_base64"]) == b"\xff"
    assert end == {"request_id": "1", "end": True}


def test_a_socket_for_each_hop_works_as_the_record_has_it(relay: Any) -> None:
    Peer(relay, "aa11", echo)
    for number in range(10):
        ws = open_rpc(relay)
        assert ask(ws, request(str(number)))["status"] == 200
        ws.close()


def test_a_request_sent_with_the_handshake_still_warm_is_not_lost(relay: Any) -> None:
    """Before the credential has been checked: a first use, nothing is cached."""
    Peer(relay, "aa11", echo)
    for number in range(10):
        assert ask(open_rpc(relay, caller=f"{number:04x}"), request("1"))["status"] == 200


def test_many_requests_on_one_socket_answered_in_any_order_find_their_own(relay: Any) -> None:
    waiting: list[Message] = []

    def shuffled(message: Message) -> Iterator[Message]:
        waiting.append(message)
        if len(waiting) < 50:
            return
        random.shuffle(waiting)
        for asked in waiting:
            yield {"request_id": asked["request_id"], "status": 200, "body_base64": asked["body_base64"]}
        waiting.clear()

    Peer(relay, "aa11", shuffled)
    ws = open_rpc(relay)
    for batch in range(20):
        for number in range(50):
            ws.send(request(f"{batch}-{number}", f"{batch}-{number}".encode()))
        answers = [json.loads(ws.recv()) for _ in range(50)]
        assert sorted(base64.b64decode(a["body_base64"]).decode() for a in answers) == sorted(
            a["request_id"] for a in answers
        )
        assert all(base64.b64decode(a["body_base64"]).decode() == a["request_id"] for a in answers)


def test_callers_that_use_the_same_request_id_get_their_own_answers(relay: Any) -> None:
    Peer(relay, "aa11", echo)
    sockets = [open_rpc(relay, caller=f"{number:04x}") for number in range(8)]
    for number, ws in enumerate(sockets):
        ws.send(request("1", bytes([number])))
    assert [base64.b64decode(json.loads(ws.recv())["body_base64"])[0] for ws in sockets] == list(range(8))


def test_a_peers_own_error_is_passed_on(relay: Any) -> None:
    Peer(relay, "aa11", lambda message: [{"status": 500, "body": "no"}])
    answer = ask(open_rpc(relay), request("1"))
    assert (answer["status"], base64.b64decode(answer.get("body_base64", "")) or answer.get("body")) == (500, b"no")


def test_a_peer_that_is_not_there_is_404(relay: Any) -> None:
    answer = ask(open_rpc(relay, "ffff"), request("1"))
    assert (answer["request_id"], answer["status"], error_of(answer)) == ("1", 404, "not_found")


def test_a_peer_of_another_model_looks_as_if_it_were_not_there(relay: Any) -> None:
    Peer(relay, "aa11", echo)
    ws = relay.connect("/rpc/aa11", relay.credential("cc33", "other"))
    there, absent = (
        ask(ws, request("1")),
        ask(relay.connect("/rpc/ffff", relay.credential("cc33", "other")), request("1")),
    )
    assert there["status"] == absent["status"] == 404
    assert there["body"].replace("aa11", "ffff") == absent["body"]


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/../admin"},
        {"path": "//evil"},
        {"path": "/%2e%2e/x"},
        {"path": "http://169.254.169.254/"},
        {"path": "/forward?x=1#@h"},
        {"method": "CONNECT"},
        {"method": "TRACE", "path": "/health"},
    ],
)
def test_a_path_that_no_node_serves_is_403_and_the_peer_never_sees_it(relay: Any, changes: dict[str, Any]) -> None:
    peer = Peer(relay, "aa11", echo)
    ws = open_rpc(relay)
    assert ask(ws, request("1", **changes))["status"] == 403
    assert ask(ws, request("2"))["status"] == 200
    assert len(peer.seen) == 1


def test_headers_that_belong_to_one_connection_do_not_cross(relay: Any) -> None:
    peer = Peer(relay, "aa11", lambda message: [{"status": 200, "headers": {"Set-Cookie": "c", "X-Own": "1"}}])
    answer = ask(
        open_rpc(relay), request("1", headers={"Cookie": "c", "Authorization": "a", "Host": "h", "X-Own": "1"})
    )
    assert answer["headers"] == {"x-own": "1"}
    assert peer.seen[0]["headers"] == {"x-own": "1"}


@pytest.mark.parametrize("over", [0, 1, 200_000])
def test_a_body_of_the_limit_passes_one_over_it_is_413_and_the_socket_lives(relay: Any, over: int) -> None:
    Peer(relay, "aa11", echo)
    ws = open_rpc(relay)
    answer = ask(ws, request("big", b"\xff" * (1024 * 1024 + over)))
    assert (answer["request_id"], answer["status"]) == ("big", 413 if over else 200)
    assert ask(ws, request("small"))["status"] == 200


def test_an_answer_over_the_limit_is_413_to_the_caller_and_both_sockets_live(relay: Any) -> None:
    big = base64.b64encode(b"x" * (1024 * 1024 + 1)).decode()
    Peer(
        relay, "aa11", lambda message: [{"status": 200, "body_base64": big if message["body_base64"] == "AA==" else ""}]
    )
    ws = open_rpc(relay)
    answer = ask(ws, request("1", b"\0"))
    assert (answer["request_id"], answer["status"]) == ("1", 413)
    assert ask(ws, request("2", b"\1"))["status"] == 200


@pytest.mark.parametrize(
    ("text", "request_id"),
    [
        ("nonsense", ""),
        ("[]", ""),
        ('{"method":"GET"}', ""),
        ('{"request_id":"7","method":"GET"}', "7"),
        (request("7", body_base64="%"), "7"),
        (request("7", headers={"a": "1\r\nb: 2"}), "7"),
        (request("7", headers={str(number): "" for number in range(33)}), "7"),
    ],
)
def test_a_malformed_request_is_400_and_the_socket_lives(relay: Any, text: str, request_id: str) -> None:
    Peer(relay, "aa11", echo)
    ws = open_rpc(relay)
    answer = ask(ws, text)
    assert (answer["request_id"], answer["status"]) == (request_id, 400)
    assert ask(ws, request("8"))["status"] == 200


def test_a_request_id_in_use_is_409(relay: Any) -> None:
    Peer(relay, "aa11", silent)
    ws = open_rpc(relay)
    ws.send(request("1"))
    assert ask(ws, request("1"))["status"] == 409


def test_the_65th_request_in_flight_is_429_at_once(relay: Any) -> None:
    Peer(relay, "aa11", silent)
    ws = open_rpc(relay)
    for number in range(64):
        ws.send(request(str(number)))
    answer = ask(ws, request("one-more"))
    assert (answer["request_id"], answer["status"]) == ("one-more", 429)


def test_a_deadline_is_504_and_the_peer_is_told_to_stop(relay: Any) -> None:
    peer = Peer(relay, "aa11", silent)
    answer = ask(open_rpc(relay), request("1", deadline_ms=200))
    assert (answer["status"], error_of(answer)) == (504, "deadline")
    asked, told = peer.wait_for(2)
    assert told == {"type": "relay-http-cancel", "request_id": asked["request_id"]}


def test_a_peer_killed_with_five_requests_in_flight_is_five_502_in_a_second(relay: Any) -> None:
    peer = Peer(relay, "aa11", silent)
    ws = open_rpc(relay)
    for number in range(5):
        ws.send(request(str(number)))
    peer.wait_for(5)
    started = time.monotonic()
    peer.die()
    answers = [json.loads(ws.recv()) for _ in range(5)]
    assert time.monotonic() - started < 1
    assert {answer["request_id"]: answer["status"] for answer in answers} == {str(number): 502 for number in range(5)}
    assert ask(ws, request("later"))["status"] == 404
    Peer(relay, "aa11", echo)
    assert ask(ws, request("back"))["status"] == 200


def test_a_peer_killed_in_the_middle_of_a_stream_is_502(relay: Any) -> None:
    def begin(message: Message) -> Iterator[Message]:
        yield {"status": 200, "stream": True}
        yield {"chunk": "x"}

    peer = Peer(relay, "aa11", begin)
    ws = open_rpc(relay)
    assert ask(ws, request("1"))["stream"] is True
    assert json.loads(ws.recv())["chunk"] == "x"
    peer.die()
    answer = json.loads(ws.recv())
    assert (answer["status"], error_of(answer)) == (502, "peer_gone")


@pytest.mark.parametrize("how", ["close", "shutdown"])
def test_a_caller_that_leaves_cancels_what_it_asked(relay: Any, how: str) -> None:
    peer = Peer(relay, "aa11", silent)
    ws = open_rpc(relay)
    for number in range(3):
        ws.send(request(str(number)))
    peer.wait_for(3)
    getattr(ws, how)()
    seen = peer.wait_for(6)
    assert [message["type"] for message in seen[3:]] == ["relay-http-cancel"] * 3
    assert {message["request_id"] for message in seen[3:]} == {message["request_id"] for message in seen[:3]}


def test_a_newer_registration_replaces_the_older_which_is_told_so(relay: Any) -> None:
    old = relay.register("aa11")
    caller = open_rpc(relay)
    caller.send(request("1"))
    assert json.loads(old.recv())["type"] == "relay-http-request"
    Peer(relay, "aa11", echo)
    assert json.loads(caller.recv())["status"] == 502
    frame, code = closing(old)
    assert (frame["type"], frame["status"], code) == ("error", 409, 4409)
    assert ask(caller, request("2"))["status"] == 200
    old.shutdown()
    assert ask(caller, request("3"))["status"] == 200


def test_only_the_peer_that_was_asked_can_answer(relay: Any) -> None:
    peer, other = Peer(relay, "aa11", silent), relay.register("bb22")
    ws = open_rpc(relay)
    ws.send(request("1", deadline_ms=300))
    [asked] = peer.wait_for(1)
    other.send(json.dumps({"request_id": asked["request_id"], "status": 200, "body": "forged"}))
    assert json.loads(ws.recv())["status"] == 504


def test_an_answer_that_cannot_be_read_is_502_and_the_peer_stays(relay: Any) -> None:
    Peer(relay, "aa11", lambda message: [{"status": "fine" if message["body_base64"] == "AA==" else 200}])
    ws = open_rpc(relay)
    answer = ask(ws, request("1", b"\0"))
    assert (answer["status"], error_of(answer)) == (502, "bad_answer")
    assert ask(ws, request("2", b"\1"))["status"] == 200


@pytest.mark.parametrize("path", ["/ws", "/rpc/aa11"])
@pytest.mark.parametrize(
    ("credential", "status", "code"),
    [(None, 401, 4401), ("unknown", 401, 4401), ("bb22.tiny.pending", 403, 4403)],
)
def test_a_bad_credential_is_told_why_and_closed(
    relay: Any, path: str, credential: str | None, status: int, code: int
) -> None:
    frame, closed_with = closing(relay.connect(path, credential))
    assert (frame["type"], frame["status"], closed_with) == ("error", status, code)
    assert frame["message"]


def test_a_page_of_another_site_may_not_open_a_socket(relay: Any) -> None:
    ws = relay.connect("/rpc/aa11", relay.credential("cc33"), origin="https://evil.example")
    frame, code = closing(ws)
    assert (frame["status"], code) == (403, 4403)


@pytest.mark.parametrize(
    ("first", "status", "code"),
    [
        ('{"type":"register","peer_id":"bb22"}', 403, 4403),
        ('{"type":"register"}', 400, 4400),
        ('{"request_id":"1","status":200}', 400, 4400),
        ("nonsense", 400, 4400),
        ("x" * 8193, 413, 4413),
    ],
)
def test_a_first_message_that_registers_nobody_ends_the_socket(relay: Any, first: str, status: int, code: int) -> None:
    ws = relay.connect("/ws", relay.credential("aa11"))
    ws.send(first)
    frame, closed_with = closing(ws)
    assert (frame["type"], frame["status"], closed_with) == ("error", status, code)


def test_a_peer_that_never_registers_is_closed_after_five_seconds(relay: Any) -> None:
    ws = relay.connect("/ws", relay.credential("aa11"))
    started = time.monotonic()
    frame, code = closing(ws)
    assert 4 < time.monotonic() - started < 7
    assert (frame["type"], code) == ("error", 4504)


def test_a_caller_may_be_silent_for_longer_than_a_peer(relay: Any) -> None:
    """A kept /rpc socket waits for the next token."""
    Peer(relay, "aa11", echo)
    ws = open_rpc(relay)
    silent_peer = relay.connect("/ws", relay.credential("bb22"))
    closing(silent_peer)  # five seconds later
    assert ask(ws, request("1"))["status"] == 200
