from __future__ import annotations

from typing import Any

import pytest
import websocket

from relay.framing import framed


class Wire:
    """Bytes as websocket-client receives them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def recv(self, num_bytes: int) -> bytes:
        taken, self.data = self.data[:num_bytes], self.data[num_bytes:]
        return taken


def read(frame: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """The opcode and the payload that a client reads; nothing is left over."""
    wire = Wire(b"".join(frame))
    buffer: Any = websocket._abnf.frame_buffer(wire.recv, skip_utf8_validation=False)
    read = buffer.recv_frame()
    assert (read.fin, read.mask_value, wire.data) == (1, 0, b"")
    return read.opcode, read.data


@pytest.mark.parametrize("num_bytes", [0, 1, 125, 126, 65535, 65536, 1 << 20])
def test_a_client_reads_what_was_framed(num_bytes: int) -> None:
    assert read(framed(b"\xff" * num_bytes)) == (websocket.ABNF.OPCODE_BINARY, b"\xff" * num_bytes)
    assert read(framed(None, "x" * num_bytes)) == (websocket.ABNF.OPCODE_TEXT, b"x" * num_bytes)


def test_a_text_is_utf8() -> None:
    assert framed(None, "é") == (b"\x81\x02", b"\xc3\xa9")
    assert framed(b"\x02\x05") == (b"\x82\x02", b"\x02\x05")
