"""Ends that stop reading, fall silent or read slowly: bounded, told, closed; others don't notice."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import websocket

from relay import codec, envelope, wire
from relay.wire import Chunk, Code, Error, Ping, Pong, Request, Response
from tests.relay.conftest import ON_UVICORN, Relay
from tests.relay.tunnels import Tunnel

MIB = 1024 * 1024
PING_S = 1.0


@pytest.fixture(scope="module")
def one_quick_relay() -> Iterator[Relay]:
    relay = Relay(RELAY_PING_S=str(PING_S))
    yield relay
    relay.close_sockets()
    assert relay.process.stop() == 0
    assert "Traceback" not in relay.process.output


@pytest.fixture
def quick(one_quick_relay: Relay) -> Iterator[Relay]:
    """A relay whose PINGs come each second."""
    yield one_quick_relay
    one_quick_relay.close_sockets()


def resident_mib(relay: Relay) -> float:
    status = Path(f"/proc/{relay.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def test_a_ping_is_answered_with_its_number(quick: Relay) -> None:
    a = Tunnel.register(quick, "aa11")
    a.say(Ping(4711))
    assert a.hear() == Pong(4711)


def test_a_silent_peer_that_answers_pings_stays_for_many_periods(quick: Relay) -> None:
    a = Tunnel.register(quick, "aa11")
    a.listen_for(2.5 * PING_S)
    assert len(a.pings) == 2
    a.ask("1", to="ffff")
    assert a.hear().code is Code.NOT_FOUND


def test_an_end_that_answers_no_ping_is_closed_within_two_periods_and_its_requests_fail(quick: Relay) -> None:
    a, b = Tunnel.register(quick, "aa11"), Tunnel.register(quick, "bb22")
    started = time.monotonic()
    a.ask("1", to="bb22")
    error = a.hear()
    assert (error.request_id, error.code) == ("1", Code.PEER_GONE)
    assert PING_S < time.monotonic() - started < 2.5 * PING_S
    assert isinstance(b.next().frame, Request)
    while isinstance(frame := b.next().frame, Ping):
        pass
    assert frame == Error("", Code.DEADLINE, "no PONG came; you read too slowly, or not at all")
    assert int.from_bytes(b.ws.recv_data()[1][:2], "big") == 4504


def test_the_number_of_a_ping_cannot_be_guessed(quick: Relay) -> None:
    a = Tunnel.register(quick, "aa11")
    for number in range(100):
        a.say(Pong(number))
    started = time.monotonic()
    while not isinstance(frame := a.next().frame, Error):
        pass
    assert frame.code is Code.DEADLINE
    assert time.monotonic() - started < 2.5 * PING_S


def test_a_peer_that_stops_reading_pins_little_and_others_notice_nothing(quick: Relay) -> None:
    """100 bodies of 1 MiB at it, each given up soon; meanwhile others' requests are as quick as before."""
    Tunnel.register(quick, "bb22")  # reads nothing more
    a, echo, other = (Tunnel.register(quick, name) for name in ("aa11", "ee55", "0f0f"))
    before, most, slowest_s = resident_mib(quick), 0.0, 0.0
    codes: list[Code] = []
    for number in range(100):
        a.ask(str(number), to="bb22", body=b"\xff" * MIB, deadline_ms=100)
        if number % 10 == 0:
            codes += [a.hear().code for _ in range(number + 1 - len(codes))]
            started = time.monotonic()
            other.ask("1", to="ee55", body=b"x" * 1200)
            echo.say(Response(echo.take().request_id, 200))
            other.hear()
            slowest_s = max(slowest_s, time.monotonic() - started)
            most = max(most, resident_mib(quick))
    assert most - before < 64
    assert slowest_s < 0.5
    assert Code.PEER_BUSY in codes
    assert set(codes) <= {Code.PEER_BUSY, Code.DEADLINE, Code.PEER_GONE, Code.NOT_FOUND}


@pytest.mark.parametrize("version", [1, 2])
def test_an_asker_that_reads_no_answers_is_bounded_and_on_version_2_closed(quick: Relay, version: int) -> None:
    """It keeps asking for 1 MiB each time; a peer answers at once."""
    b = Tunnel.register(quick, "bb22")
    asker = Tunnel.rpc(quick, "bb22", "aa11").ws if version == 2 else quick.connect("/rpc/bb22", "aa11.tiny.good")
    asker.settimeout(0.2)
    before, most, number = resident_mib(quick), 0.0, 0
    is_closed_in_time = version == 2 and not ON_UVICORN  # which closes when all has been read
    enough = 600 if is_closed_in_time else 60
    while number < enough and ask_for_more(asker, version, number):
        number += 1
        b.ws.settimeout(0.1)
        with contextlib.suppress(websocket.WebSocketTimeoutException):
            asked = b.hear()  # or a CANCEL, when the asker has been closed
            if isinstance(asked, Request):
                b.say(Response(asked.request_id, 200, {}, b"\xff" * MIB))
        most = max(most, resident_mib(quick))
    assert most - before < 64
    assert number > 8
    assert number < enough or not is_closed_in_time


def ask_for_more(asker: websocket.WebSocket, version: int, number: int) -> bool:
    """False when the socket has ended."""
    request = Request(str(number), "POST", "/forward")
    try:
        if version == 2:
            asker.send_binary(codec.encode_frame(request))
        else:
            asker.send(envelope.encode(request))
        return True
    except (OSError, websocket.WebSocketException):
        return False


def test_a_stream_to_an_end_that_reads_late_waits_and_is_whole(quick: Relay) -> None:
    """More than the credit, less than what may wait."""
    a, b = Tunnel.register(quick, "aa11"), Tunnel.register(quick, "bb22")
    a.ask("1", to="bb22")
    asked = b.take().request_id
    b.say(Response(asked, 200, stream=True))
    pieces = [bytes([number]) * MIB for number in range(12)]
    for piece in pieces:
        b.say(Chunk(asked, piece))
    b.say(wire.End(asked))
    b.listen_for(0.5)
    assert a.hear() == Response("1", 200, stream=True)
    assert [a.hear().data for _ in pieces] == pieces
    assert a.hear() == wire.End("1")
    assert len(a.pings) >= 11


def test_bytes_are_off_the_account_as_soon_as_they_are_read(quick: Relay) -> None:
    """Far more than the credit in all, to a peer that reads and never answers."""
    a, b = Tunnel.register(quick, "aa11"), Tunnel.register(quick, "bb22")
    for number in range(24):
        a.ask(str(number), to="bb22", body=b"\xff" * MIB)
        asked = b.take()
        a.say(wire.Cancel(str(number)))
        assert b.hear() == wire.Cancel(asked.request_id)
