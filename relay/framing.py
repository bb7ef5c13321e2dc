"""A WebSocket message as a server sends it: one frame, unmasked, nothing negotiated (RFC 6455, section 5.2).

Autobahn's own way there composes log lines that nobody reads; they cost as much as all the rest of sending.
"""

from __future__ import annotations

import struct

WHOLE_TEXT, WHOLE_BINARY = 0x81, 0x82


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
