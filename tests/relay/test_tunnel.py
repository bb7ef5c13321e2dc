"""Version 2 through a served relay: one socket asks and answers, old and new ends understand each other."""

from __future__ import annotations

import hashlib
import json
import random
import time

import pytest
import websocket

from relay import codec, envelope, wire
from relay.wire import Cancel, Chunk, Code, End, Error, Ping, Pong, Request, Response, Welcome
from tests.relay.conftest import Relay
from tests.relay.ends import die, end, hear, take
from tests.relay.tunnels import Tunnel

OCTETS = bytes(range(256))
MIB = 1024 * 1024


def test_a_peer_is_welcomed_with_its_address_the_limits_and_the_number_of_its_registration(relay: Relay) -> None:
    first, second = Tunnel.register(relay, "aa11").welcome, Tunnel.register(relay, "bb22").welcome
    assert (first.peer_id, first.relay_addr) == ("aa11", "ws://relay.example/rpc/aa11")
    assert first.limits == wire.limits()
    assert 0 < first.generation < second.generation


def test_one_socket_asks_and_answers_and_every_frame_says_whom_it_is_from(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    a.ask("mine", to="bb22", body=OCTETS, deadline_ms=5000)
    asked = b.addressed()
    assert isinstance(asked.frame, Request)
    assert (asked.frame.body, asked.frame.deadline_ms, asked.sender, asked.frame.sender) == (
        OCTETS,
        5000,
        "aa11",
        "aa11",
    )
    assert asked.frame.request_id != "mine"
    b.ask("mine", to="aa11")  # the other way round, at the same time, under the same id
    b.say(Response(asked.frame.request_id, 200, {"x-a": "1"}, OCTETS[::-1]))
    back, answer = a.take(), a.addressed()
    a.say(Response(back.request_id, 204))
    assert answer == (Response("mine", 200, {"x-a": "1"}, OCTETS[::-1]), "", "bb22")
    assert b.addressed() == (Response("mine", 204), "", "aa11")


def test_a_streamed_answer_comes_in_pieces_and_ends(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    a.ask("1", to="bb22")
    asked = b.take().request_id
    sent: list[wire.Frame] = [Response(asked, 200, stream=True), Chunk(asked, b"1"), Chunk(asked, b""), End(asked)]
    for frame in sent:
        b.say(frame)
    assert [a.hear() for _ in sent] == [Response("1", 200, stream=True), Chunk("1", b"1"), Chunk("1", b""), End("1")]


def test_a_caller_of_version_1_is_answered_by_a_peer_of_version_2(relay: Relay) -> None:
    b, caller = Tunnel.register(relay, "bb22"), relay.connect("/rpc/bb22", relay.credential("aa11"))
    caller.send(envelope.encode(Request("1", "POST", "/forward", {"x-a": "1"}, OCTETS)))
    asked = b.take()
    assert (asked.body, asked.sender, asked.headers) == (OCTETS, "aa11", {"x-a": "1"})
    b.say(Response(asked.request_id, 200, {}, OCTETS))
    assert hear(caller) == Response("1", 200, {}, OCTETS)


@pytest.mark.parametrize("path", ["/ws", "/rpc/bb22"])
def test_an_asker_of_version_2_is_answered_by_a_peer_of_version_1(relay: Relay, path: str) -> None:
    peer = relay.register("bb22")
    a = Tunnel.register(relay, "aa11") if path == "/ws" else Tunnel.rpc(relay, "bb22", "aa11")
    a.ask("1", to="bb22", body=OCTETS)
    asked = take(peer)
    assert (asked.body, asked.sender) == (OCTETS, "aa11")
    peer.send(envelope.encode(Response(asked.request_id, 200, {}, OCTETS)))
    assert a.addressed() == (Response("1", 200, {}, OCTETS), "", "bb22")


def test_the_site_asks_a_peer_of_version_2(relay: Relay) -> None:
    """Its call is waited for in a thread of the server: the request comes first."""
    b = Tunnel.register(relay, "bb22")
    with relay.get_in_thread("/call/bb22") as text:
        asked = b.take()
        assert asked.sender == wire.TRACKER
        b.say(Response(asked.request_id, 200, {}, b"out"))
    assert "status=200" in text()


def test_a_kept_rpc_socket_is_welcomed_and_asks_its_peer_only(relay: Relay) -> None:
    b, a = Tunnel.register(relay, "bb22"), Tunnel.rpc(relay, "bb22", "aa11")
    assert a.welcome == Welcome("aa11", 0, wire.limits(), "ws://relay.example/rpc/bb22")
    a.ask("1", to="cc33")
    error = a.hear()
    assert (error.request_id, error.code) == ("1", Code.FORBIDDEN)
    a.ask("2")
    b.say(Response(b.take().request_id, 204))
    assert a.hear() == Response("2", 204)
    a.ask("3", to="bb22")
    b.say(Response(b.take().request_id, 204))
    assert a.hear() == Response("3", 204)


@pytest.mark.parametrize("to", ["ffff", ""])
def test_a_peer_that_is_not_there_is_an_error(relay: Relay, to: str) -> None:
    a = Tunnel.register(relay, "aa11")
    a.ask("1", to=to)
    assert a.hear() == Error("1", Code.NOT_FOUND, f"no peer {to} is connected here that you may ask")


def test_a_thousand_requests_answered_in_random_order_find_their_own(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    for batch in range(20):
        bodies = {f"{batch}-{number}": random.randbytes(100) for number in range(50)}
        for request_id, body in bodies.items():
            a.ask(request_id, to="bb22", body=body)
        asked = [b.take() for _ in bodies]
        random.shuffle(asked)
        for request in asked:
            b.say(Response(request.request_id, 200, {}, hashlib.sha256(request.body).digest()))
        answers = {answer.request_id: answer.body for answer in (a.hear() for _ in bodies)}
        assert answers == {key: hashlib.sha256(body).digest() for key, body in bodies.items()}


@pytest.mark.parametrize("piece_bytes", [1 << 20, 1500, 99])
def test_messages_are_read_in_whatever_pieces_they_come(relay: Relay, piece_bytes: int) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    bodies = [b"", OCTETS, bytes(100_000), b"short", bytes(1200)]
    requests = [
        codec.encode_frame(Request(str(n), "POST", "/forward", {}, body), to="bb22") for n, body in enumerate(bodies)
    ]
    whole = [bytes(websocket.ABNF.create_frame(it, websocket.ABNF.OPCODE_BINARY).format()) for it in requests]
    ping = bytes(websocket.ABNF.create_frame(b"", websocket.ABNF.OPCODE_PING).format())
    begun = bytes(websocket.ABNF.create_frame(requests[3][:9], websocket.ABNF.OPCODE_BINARY, fin=0).format())
    rest = bytes(websocket.ABNF.create_frame(requests[3][9:], websocket.ABNF.OPCODE_CONT).format())
    data = b"".join([*whole[:2], ping, whole[2], begun, ping, rest, whole[4]])
    assert a.ws.sock is not None
    for at in range(0, len(data), piece_bytes):
        a.ws.sock.sendall(data[at : at + piece_bytes])
    assert [b.take().body for _ in bodies] == bodies


def test_the_asker_cancels_and_a_late_answer_reaches_nobody(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    a.ask("1", to="bb22")
    asked = b.take()
    a.say(Cancel("1"))
    assert b.addressed() == (Cancel(asked.request_id), "", "aa11")
    a.say(Cancel("1"))  # has ended: nothing happens
    a.ask("1", to="bb22")  # the id is free again
    again = b.take()
    b.say(Response(asked.request_id, 500))
    b.say(Response(again.request_id, 200))
    assert a.hear() == Response("1", 200)


def test_a_deadline_is_an_error_and_a_cancel(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    a.ask("1", to="bb22", deadline_ms=100)
    asked = b.take()
    assert a.hear().code is Code.DEADLINE
    assert b.hear() == Cancel(asked.request_id)


def test_a_peer_killed_with_five_requests_in_flight_is_five_errors_in_a_second(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    for number in range(5):
        a.ask(str(number), to="bb22")
    for _ in range(5):
        b.take()
    started = time.monotonic()
    die(b.ws)
    errors = [a.hear() for _ in range(5)]
    assert time.monotonic() - started < 1
    assert {(error.request_id, error.code) for error in errors} == {(str(it), Code.PEER_GONE) for it in range(5)}


def test_a_peer_that_leaves_cancels_what_it_asked(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    a.ask("1", to="bb22")
    asked = b.take()
    die(a.ws)
    assert b.hear() == Cancel(asked.request_id)


@pytest.mark.parametrize("over", [0, 1, 200_000])
def test_a_body_of_the_limit_passes_one_over_it_is_too_large_and_the_socket_lives(relay: Relay, over: int) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    body = b"\xff" * (MIB + over)
    a.ask("big", to="bb22", body=body)
    if over:
        error = a.hear()
        assert (error.request_id, error.code) == ("big", Code.TOO_LARGE)
    else:
        asked = b.take()
        assert asked.body == body
        b.say(Response(asked.request_id, 200, {}, body))
        assert a.hear().body == body
    a.ask("small", to="bb22")
    b.say(Response(b.take().request_id, 204))
    assert a.hear() == Response("small", 204)


def test_an_answer_over_the_limit_is_too_large_to_the_asker_and_both_sockets_live(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    for size, code in ((MIB + 1, Code.TOO_LARGE), (0, None)):
        a.ask("1", to="bb22")
        asked = b.take()
        b.say(Response(asked.request_id, 200, {}, b"x" * size))
        answer = a.hear()
        assert getattr(answer, "code", None) == code
        if code:
            assert b.hear() == Cancel(asked.request_id)


def frame_of(kind: int, meta: str) -> bytes:
    return bytes((2, kind)) + len(meta).to_bytes(2, "big") + meta.encode()


LATE = '{"id":"1","to":"bb22","method":"POST","path":"/forward","deadline_ms":1' + 400 * "0" + "}"
BAD = [
    (b"\x02", "", Code.BAD_REQUEST),
    (frame_of(1, LATE), "1", Code.BAD_REQUEST),
    (b"\x02\x01\xff", "", Code.BAD_REQUEST),
    (b"\x02\x01\x00\x02{}", "", Code.BAD_REQUEST),
    (b'\x02\x01\x00\x0a{"id":"1"}', "1", Code.BAD_REQUEST),
    (b"\x02\x63\x00\x02{}", "", Code.BAD_REQUEST),
    (codec.encode_frame(wire.Hello("aa11")), "", Code.BAD_REQUEST),
    (codec.encode_frame(wire.Drain(1, 1)), "", Code.BAD_REQUEST),
    (codec.encode_frame(Request("1", "GET", "/admin"), to="bb22"), "1", Code.FORBIDDEN),
]


@pytest.mark.parametrize(("data", "request_id", "code"), BAD)
@pytest.mark.parametrize("path", ["/ws", "/rpc"])
def test_what_cannot_be_read_is_told_and_the_socket_lives(
    relay: Relay, path: str, data: bytes, request_id: str, code: Code
) -> None:
    a = Tunnel.register(relay, "aa11") if path == "/ws" else Tunnel.rpc(relay, "bb22", "aa11")
    Tunnel.register(relay, "bb22")
    a.ws.send_binary(data)
    error = a.hear()
    assert (error.request_id, error.code) == (request_id, code)
    a.say(Ping(7))
    assert a.hear() == Pong(7)


def test_text_is_told_that_this_socket_is_binary(relay: Relay) -> None:
    a = Tunnel.register(relay, "aa11")
    a.ws.send('{"type":"register","peer_id":"aa11"}')
    assert a.hear() == Error("", Code.BAD_REQUEST, "this socket speaks version 2: binary messages only")


def test_an_answer_that_cannot_be_read_fails_its_request(relay: Relay) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    a.ask("1", to="bb22")
    meta = json.dumps({"id": b.take().request_id, "status": 7}).encode()
    b.ws.send_binary(bytes((2, 2, 0, len(meta))) + meta)
    error = a.hear()
    assert (error.request_id, error.code) == ("1", Code.BAD_ANSWER)


@pytest.mark.parametrize("path", ["/ws", "/rpc/aa11"])
@pytest.mark.parametrize(
    ("credential", "code", "close"),
    [
        (None, Code.UNAUTHORIZED, 4401),
        ("unknown", Code.UNAUTHORIZED, 4401),
        ("bb22.tiny.pending", Code.FORBIDDEN, 4403),
    ],
)
def test_a_bad_credential_is_told_why_in_a_frame(
    relay: Relay, path: str, credential: str | None, code: Code, close: int
) -> None:
    ws = relay.connect(path, credential, subprotocols=[wire.SUBPROTOCOL])
    data = ws.recv()
    assert isinstance(data, bytes)
    error = codec.decode_frame(data).frame
    assert isinstance(error, Error)
    assert (error.code, closing(ws)) == (code, close)


@pytest.mark.parametrize(
    ("first", "code", "close"),
    [
        (codec.encode_frame(wire.Hello("bb22")), Code.FORBIDDEN, 4403),
        (codec.encode_frame(Ping(1)), Code.BAD_REQUEST, 4400),
        (b"\x02", Code.BAD_REQUEST, 4400),
        (b"\x02" + b"x" * 8192, Code.TOO_LARGE, 4413),
        (b"\x03\x08\x00\x12" + b'{"peer_id":"aa11"}', Code.UPGRADE, wire.CLOSE_UPGRADE),
        (b"", Code.UPGRADE, wire.CLOSE_UPGRADE),
    ],
)
def test_a_first_frame_that_registers_nobody_ends_the_socket(
    relay: Relay, first: bytes, code: Code, close: int
) -> None:
    tunnel = Tunnel(relay, "/ws", "aa11")
    tunnel.ws.send_binary(first)
    error, closed_with = tunnel.end()
    assert (error.code, closed_with) == (code, close)
    if code is Code.UPGRADE:
        assert "upgrade to version 2" in error.message


@pytest.mark.parametrize("path", ["/ws", "/rpc/aa11"])
def test_a_version_that_nobody_here_speaks_is_told_to_upgrade_and_others_notice_nothing(
    relay: Relay, path: str
) -> None:
    a, b = Tunnel.register(relay, "aa11"), Tunnel.register(relay, "bb22")
    ws = relay.connect(path, relay.credential("cc33"), subprotocols=["meshnet.v3"])
    refusal = hear(ws)
    assert (refusal.status, closing(ws)) == (426, wire.CLOSE_UPGRADE)
    assert "meshnet.v3 isn't spoken here; upgrade to meshnet.v2" in str(wire.error_of(426, refusal.body))
    a.ask("1", to="bb22")
    b.say(Response(b.take().request_id, 204))
    assert a.hear() == Response("1", 204)


def test_of_several_versions_it_picks_its_own(relay: Relay) -> None:
    ws = relay.connect("/ws", relay.credential("aa11"), subprotocols=["meshnet.v3", "meshnet.v2"])
    assert ws.subprotocol == "meshnet.v2"


def test_the_newest_registration_wins_across_versions(relay: Relay) -> None:
    old = relay.register("aa11")
    middle = Tunnel.register(relay, "aa11")
    assert end(old) == (409, wire.CLOSE_REPLACED)
    relay.register("aa11")
    error, code = middle.end()
    assert (error.code, code) == (Code.CONFLICT, wire.CLOSE_REPLACED)


def test_two_machines_with_one_key_do_not_make_it_spin(relay: Relay) -> None:
    """Each registers again as soon as it is replaced."""
    sockets: list[Tunnel] = []
    waits_s = [0.0]
    while waits_s[-1] < 2 and len(sockets) < 10:
        started = time.monotonic()
        sockets.append(Tunnel.register(relay, "aa11"))
        waits_s.append(time.monotonic() - started)
    assert 6 < len(sockets) < 10, waits_s
    sockets[-1].ask("1", to="ffff")
    assert sockets[-1].hear().code is Code.NOT_FOUND, "the newest has won"


def closing(ws: websocket.WebSocket) -> int:
    return int.from_bytes(ws.recv_data()[1][:2], "big")
