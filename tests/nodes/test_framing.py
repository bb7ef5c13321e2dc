from __future__ import annotations

import os

import pytest
import websocket

from nodes.framing import BINARY, CLOSE, PING, PONG, TEXT, Outgoing, masked


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 125, 126, 127, 65_535, 65_536, 1_000_003])
def test_a_frame_is_what_websocket_client_makes_with_the_same_key(length: int) -> None:
    data = os.urandom(length)
    frame = Outgoing.of(data).framed()
    key = frame[len(frame) - length - 4 : len(frame) - length]

    theirs = websocket.ABNF.create_frame(data, websocket.ABNF.OPCODE_BINARY)
    theirs.get_mask_key = lambda size: key
    assert frame == theirs.format()


def test_each_kind_has_its_opcode_and_its_bytes() -> None:
    def read(message: Outgoing) -> tuple[int, bytes]:
        frame = message.framed()
        assert frame[1] & 0x80, "a client's frame is masked"
        return frame[0] & 0x0F, masked(frame[6:], frame[2:6])

    assert read(Outgoing.of("ä")) == (TEXT, "ä".encode())
    assert read(Outgoing.of(b"\x00\xff")) == (BINARY, b"\x00\xff")
    assert read(Outgoing.ping(b"7")) == (PING, b"7")
    assert read(Outgoing.pong(b"7")) == (PONG, b"7")
    assert read(Outgoing.close(1000)) == (CLOSE, b"\x03\xe8")


def test_every_frame_has_a_key_of_its_own() -> None:
    assert len({Outgoing.of(b"same").framed() for _ in range(20)}) == 20
