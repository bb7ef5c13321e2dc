from __future__ import annotations

from typing import Any

import pytest
import websocket

from relay.framing import framed, unframed


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


def sent(payload: bytes, opcode: int = websocket.ABNF.OPCODE_BINARY, fin: int = 1) -> bytes:
    """As a client masks and sends it."""
    return bytes(websocket.ABNF(fin, 0, 0, 0, opcode, 1, payload).format())


@pytest.mark.parametrize("num_bytes", [0, 1, 2, 3, 4, 5, 125, 126, 1200, 65535])
def test_a_clients_message_is_read_with_what_follows_it(num_bytes: int) -> None:
    payload = bytes(n % 256 for n in range(num_bytes))
    data = sent(b"before") + sent(payload) + sent(b"after")
    first = unframed(data)
    assert first is not None
    second = unframed(data, first[1])
    assert second == (payload, len(data) - len(sent(b"after")))
    assert unframed(data, second[1]) == (b"after", len(data))
    assert unframed(data, len(data)) is None


@pytest.mark.parametrize("num_bytes", [0, 5, 126, 300])
def test_a_part_of_a_message_is_not_read(num_bytes: int) -> None:
    data = sent(bytes(num_bytes))
    assert [unframed(data[:length]) for length in range(len(data))] == [None] * len(data)


OTHERS = {
    "text": sent(b"text", websocket.ABNF.OPCODE_TEXT),
    "ping": sent(b"ping", websocket.ABNF.OPCODE_PING),
    "close": sent(b"", websocket.ABNF.OPCODE_CLOSE),
    "begun": sent(b"begun", fin=0),
    "continued": sent(b"continued", websocket.ABNF.OPCODE_CONT),
    "large": sent(bytes(65536)),
    "not masked": b"".join(framed(b"not masked")),
    "compressed": b"\xc2" + sent(b"compressed")[1:],
    "its length could be written shorter": b"\x82\xfe\x00\x05mask12345",
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS.keys())  # masks are drawn: names tell them apart
def test_any_other_frame_is_left(data: bytes) -> None:
    assert unframed(data) is None
