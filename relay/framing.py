"""A WebSocket message as a server sends it, and as most come: one frame, nothing negotiated (RFC 6455, section 5.2).

Autobahn's own way there composes log lines that nobody reads; they cost as much as all the rest of sending, and of
receiving. Whatever else may come, text, control frames, parts of messages, faults, is autobahn's to read.
"""

from __future__ import annotations

import struct

WHOLE_TEXT, WHOLE_BINARY = 0x81, 0x82
MASKED = 0x80


def framed(data: bytes | None, text: str | None = None) -> tuple[bytes, bytes]:
    """(header, payload) of `data` as a binary message, or of `text` as a text one."""
    opcode = WHOLE_BINARY
    if data is None:
        data, opcode = (text or "").encode(), WHOLE_TEXT
    num_bytes = len(data)
    if num_bytes < 126:
        return struct.pack("!BB", opcode, num_bytes), data
    if num_bytes < 65536:
        return struct.pack("!BBH", opcode, 126, num_bytes), data
    return struct.pack("!BBQ", opcode, 127, num_bytes), data


def unframed(data: bytes, at: int = 0) -> tuple[bytes, int] | None:
    """(payload, where it ends) of a client's binary message of less than 64 KiB, if one is there whole."""
    if len(data) < at + 6 or data[at] != WHOLE_BINARY or data[at + 1] < MASKED:
        return None
    num_bytes, begin = data[at + 1] - MASKED, at + 6
    if num_bytes > 125:
        num_bytes, begin = int.from_bytes(data[at + 2 : at + 4], "big") if num_bytes == 126 else 0, at + 8
        if num_bytes < 126:
            return None  # a longer one, or a length that could be written shorter
    end = begin + num_bytes
    if len(data) < end:
        return None
    # As two numbers: a loop over the bytes would take a hundred times as long.
    mask = data[begin - 4 : begin] * (num_bytes // 4 + 1)
    unmasked = int.from_bytes(data[begin:end], "little") ^ int.from_bytes(mask[:num_bytes], "little")
    return unmasked.to_bytes(num_bytes, "little"), end
