"""WebSocket frames as they leave: masked by numpy, since a megabyte costs websocket-client's pure Python eleven ms."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import numpy as np

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_LAST, _MASKED = 0x80, 0x80


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message of any kind, whole in one frame."""

    payload: str | bytes
    opcode: int

    @classmethod
    def of(cls, message: str | bytes) -> Outgoing:
        return cls(message, TEXT if isinstance(message, str) else BINARY)

    @classmethod
    def ping(cls, data: bytes) -> Outgoing:
        return cls(data, PING)

    @classmethod
    def pong(cls, data: bytes) -> Outgoing:
        return cls(data, PONG)

    @classmethod
    def close(cls, code: int) -> Outgoing:
        return cls(struct.pack("!H", code), CLOSE)

    def framed(self) -> bytes:
        """The frame of a client (RFC 6455, 5.2), with a fresh key."""
        data = self.payload.encode() if isinstance(self.payload, str) else self.payload
        key = os.urandom(4)
        return b"".join((_header(self.opcode, len(data)), key, masked(data, key)))


def masked(data: bytes, key: bytes) -> bytes:
    """Each byte xor the key's, over and over; doing it twice undoes it."""
    padded = data + bytes(-len(data) % 4)
    words = np.frombuffer(padded, np.uint32) ^ np.frombuffer(key, np.uint32)
    return words.tobytes()[: len(data)]


def _header(opcode: int, length: int) -> bytes:
    if length < 126:
        return struct.pack("!BB", _LAST | opcode, _MASKED | length)
    if length < 65536:
        return struct.pack("!BBH", _LAST | opcode, _MASKED | 126, length)
    return struct.pack("!BBQ", _LAST | opcode, _MASKED | 127, length)
