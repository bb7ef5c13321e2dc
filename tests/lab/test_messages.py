from __future__ import annotations

import pytest
import websocket
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.messages import Piece, Splitter

UPGRADE = b"GET /ws HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\r\n"
POST = b"POST /forward HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nhello"


def frame(data: bytes, opcode: int = websocket.ABNF.OPCODE_BINARY) -> bytes:
    """As a client sends it, masked."""
    return bytes(websocket.ABNF.create_frame(data, opcode).format())


def bare_frame(data: bytes) -> bytes:
    """As a server sends it."""
    size = bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
    return b"\x82" + size + data


def messages(pieces: list[Piece]) -> list[bytes | None]:
    return [piece.message for piece in pieces]


def test_requests_on_one_connection_are_told_apart_with_their_bodies() -> None:
    get = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"
    assert messages(Splitter().feed(POST + get + POST, whole=True)) == [POST, get, POST]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 100_000])
def test_after_an_upgrade_each_frame_is_a_message_with_its_payload_unmasked(size: int) -> None:
    splitter = Splitter()
    splitter.feed(UPGRADE, whole=True)
    payload = bytes(range(256)) * (size // 256 + 1)
    assert messages(splitter.feed(frame(payload[:size]) + frame(b"next"), whole=True)) == [payload[:size], b"next"]


def test_a_servers_frames_follow_its_101() -> None:
    splitter = Splitter()
    pieces = splitter.feed(SWITCHED + bare_frame(b"a") + bare_frame(b"b" * 300), whole=True)
    assert messages(pieces) == [SWITCHED, b"a", b"b" * 300]


def test_control_frames_are_no_messages_but_pass() -> None:
    splitter = Splitter()
    splitter.feed(UPGRADE, whole=True)
    ping = frame(b"there?", websocket.ABNF.OPCODE_PING)
    assert splitter.feed(ping, whole=True) == [Piece(ping, None, True)]


def test_a_message_that_is_not_waited_for_passes_in_parts() -> None:
    splitter = Splitter()
    splitter.feed(UPGRADE, whole=False)
    whole = frame(b"x" * 1000)
    first = splitter.feed(whole[:100], whole=False)
    assert first == [Piece(whole[:100], None, False)]
    assert not splitter.is_between_messages
    assert splitter.feed(whole[100:], whole=False) == [Piece(whole[100:], None, True)]
    assert splitter.is_between_messages


@pytest.mark.parametrize(
    "stream",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil it closes",
        b"SSH-2.0-OpenSSH\r\nmore",
    ],
)
def test_what_it_cannot_tell_apart_passes_as_it_comes(stream: bytes) -> None:
    splitter = Splitter()
    assert [piece.data for piece in splitter.feed(stream, whole=True)] == [stream]
    assert [piece.data for piece in splitter.feed(b"anything", whole=True)] == [b"anything"]


@given(st.lists(st.integers(1, 400), max_size=40), st.lists(st.binary(max_size=300), max_size=6), st.booleans())
def test_however_the_bytes_are_cut_none_is_lost_or_moved(cuts: list[int], payloads: list[bytes], whole: bool) -> None:
    stream, splitter, out, at = UPGRADE + b"".join(map(frame, payloads)), Splitter(), b"", 0
    for cut in [*cuts, len(stream)]:
        out += b"".join(piece.data for piece in splitter.feed(stream[at : at + cut], whole=whole))
        at += cut
    assert out == stream
