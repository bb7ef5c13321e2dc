"""Where one message ends and the next begins in a stream of bytes: HTTP/1.1 requests or answers, then WebSocket frames.

Bytes in, pieces out. What it can't tell apart (TLS, a body without a length) passes as it comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIRST_LINE = re.compile(rb"(?:[A-Z]+ \S+ HTTP/1\.1|HTTP/1\.1 (?P<status>\d{3})[^\r\n]*)\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:[ \t]*websocket[ \t]*\r\n", re.IGNORECASE)
_CONTROL = 0x8  # opcodes from here on: close, ping, pong
_LONGEST_HEAD = 64 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    data: bytes
    message: bytes | None  # where the piece is one whole message: an HTTP message, or a data frame's payload unmasked
    ends: bool  # a message ends here


class Splitter:
    """One direction of a connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0  # bytes of the message that is being passed in parts
        self._speaks_websocket = False
        self._is_opaque = False

    @property
    def is_between_messages(self) -> bool:
        return not self._left and not self._buffer

    def feed(self, data: bytes, *, whole: bool) -> list[Piece]:
        """`whole`: messages come as one piece each, and wait for their last byte."""
        self._buffer += data
        pieces: list[Piece] = []
        while self._buffer and (piece := self._next(whole)) is not None:
            pieces.append(piece)
        return pieces

    def _next(self, whole: bool) -> Piece | None:
        if self._is_opaque:
            return Piece(self._take(len(self._buffer)), None, True)
        if self._left:
            return self._part(min(self._left, len(self._buffer)))
        size = self._frame_size() if self._speaks_websocket else self._http_size()
        if self._is_opaque:
            return self._next(whole)
        if size is None or (whole and len(self._buffer) < size):
            return None
        if len(self._buffer) < size:
            self._left = size
            return self._part(len(self._buffer))
        data = self._take(size)
        if self._speaks_websocket:
            return Piece(data, _payload(data), True)
        self._speaks_websocket = _UPGRADE.search(data) is not None and _status(data) in (None, b"101")
        return Piece(data, data, True)

    def _part(self, size: int) -> Piece:
        self._left -= size
        return Piece(self._take(size), None, not self._left)

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _frame_size(self) -> int | None:
        found = _layout(self._buffer)
        return found and found[0] + found[1]

    def _http_size(self) -> int | None:
        """Of the head with its body; None until the head is there."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            line_end = self._buffer.find(b"\n")
            is_http = line_end < 0 or _FIRST_LINE.match(self._buffer)
            self._is_opaque = not is_http or not self._buffer[:1].isupper() or len(self._buffer) > _LONGEST_HEAD
            return None
        head = bytes(self._buffer[: end + 4])
        length = _LENGTH.search(head)
        is_bodiless = _status(head) in (None, b"101", b"204", b"304") and b"\r\ntransfer-encoding:" not in head.lower()
        self._is_opaque = not _FIRST_LINE.match(head) or not (length or is_bodiless)
        return end + 4 + (int(length[1]) if length else 0)


def _status(head: bytes) -> bytes | None:
    """Of an answer; None for a request."""
    found = _FIRST_LINE.match(head)
    return found["status"] if found else None


def _layout(frame: bytes | bytearray) -> tuple[int, int] | None:
    """(bytes of the header, mask included, bytes of the payload) of a frame whose header is there."""
    if len(frame) < 2:
        return None
    size, start = frame[1] & 0x7F, 2
    if size >= 126:
        start = 4 if size == 126 else 10
        if len(frame) < start:
            return None
        size = int.from_bytes(frame[2:start], "big")
    return start + (4 if frame[1] & 0x80 else 0), size


def _payload(frame: bytes) -> bytes | None:
    """Of a data frame, unmasked."""
    if frame[0] & 0x0F >= _CONTROL:
        return None
    layout = _layout(frame)
    assert layout is not None
    start, size = layout
    data = frame[start : start + size]
    if not frame[1] & 0x80 or not data:
        return data
    mask = (frame[start - 4 : start] * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")
