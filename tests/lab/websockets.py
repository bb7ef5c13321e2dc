"""A client's WebSocket that hears a close however late it reads it."""

from __future__ import annotations

import contextlib
from typing import Any

import websocket


class Socket(websocket.WebSocket):
    def send_close(self, status: int = websocket.STATUS_NORMAL, reason: str | bytes = b"") -> None:
        """An answer to the other side's close fails where that waits no longer; what it said is heard all the same."""
        with contextlib.suppress(websocket.WebSocketException, OSError):
            super().send_close(status, reason)


def connect(url: str, **options: Any) -> websocket.WebSocket:
    """As websocket-client's create_connection."""
    made: websocket.WebSocket = websocket.create_connection(url, class_=Socket, **options)
    return made
