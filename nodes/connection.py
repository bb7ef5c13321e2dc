"""A WebSocket to the relay: opened within a deadline, then one thread may send and one receive.

websocket-client shakes hands and reads frames; what is sent is framed here (nodes/framing.py), and the socket is
ours too (nodes/sockets.py): it keeps the deadlines over connect, TLS, upgrade and every frame, and lets a reader and
a writer share a TLS connection.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import websocket

from nodes.deadline import Deadline
from nodes.framing import Outgoing
from nodes.sockets import DeadlineSocket, dial
from relay.wire import MAX_MESSAGE_BYTES

_PORTS = {"ws": 80, "wss": 443}
_FAILURES = (OSError, ValueError, websocket.WebSocketException)


class ConnectionFailed(Exception):
    """There was no connection, or it has ended. `status` is the HTTP status or the close code, where there was one."""

    def __init__(self, cause: str, status: int = 0) -> None:
        super().__init__(cause)
        self.cause, self.status = cause, status


def origin_of(url: str) -> tuple[str, str, int]:
    """(scheme, host, port) of a ws:// or wss:// address. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url[:100]!r} is not a ws:// or wss:// address")
    return parts.scheme, parts.hostname.lower(), parts.port or _PORTS[parts.scheme]


class Connection:
    def __init__(self, url: str, credential: str, tls: ssl.SSLContext, subprotocols: Sequence[str] = ()) -> None:
        self.url = url
        self._credential, self._tls, self._offered = credential, tls, subprotocols
        self.subprotocol = ""  # the one of those offered that the relay has picked
        self._socket: DeadlineSocket | None = None
        self._websocket: Any = websocket.WebSocket(skip_utf8_validation=True, enable_multithread=True)
        self._parts: list[bytes] = []  # of a message in several frames
        self._is_text = True  # that message
        self.on_ping: Callable[[bytes], None] = self.pong  # a connection with a writer thread leaves pongs to that
        self.on_pong: Callable[[bytes], None] = lambda data: None

    def open(self, deadline: Deadline) -> None:
        """Connects and upgrades. Raises ConnectionFailed."""
        try:
            scheme, host, port = origin_of(self.url)
            self._socket = dial(host, port, self._tls if scheme == "wss" else None, deadline)
            self._websocket.connect(
                self.url,
                socket=self._socket,
                header=self._headers(),
                suppress_origin=True,
                redirect_limit=0,
            )
            picked = self._websocket.getheaders().get("sec-websocket-protocol", "")
            self.subprotocol = picked if picked in self._offered else ""
        except websocket.WebSocketBadStatusException as error:
            self.close()
            raise ConnectionFailed(f"the relay answered HTTP {error.status_code}", error.status_code) from None
        except _FAILURES as error:
            self.close()
            raise ConnectionFailed(f"can't connect: {_words(error)}") from None

    def send(self, message: str | bytes, deadline: Deadline) -> None:
        """As text or binary. Raises ConnectionFailed: the frame may be half sent, so the connection is over."""
        self.send_message(Outgoing.of(message), deadline)

    def send_message(self, message: Outgoing, deadline: Deadline) -> int:
        """How many bytes it took. Raises ConnectionFailed."""
        frame = message.framed()
        self.send_rest(frame, deadline)
        return len(frame)

    def send_now(self, message: Outgoing) -> tuple[int, bytes]:
        """How many bytes it takes, and those that can't go without waiting: the next to be sent. Never waits."""
        frame = message.framed()
        try:
            return len(frame), frame[self._open_socket().send_now(frame) :]
        except _FAILURES as error:
            raise ConnectionFailed(f"can't send: {_words(error)}") from None

    def send_rest(self, data: bytes, deadline: Deadline) -> None:
        """What is left of a frame. Raises ConnectionFailed."""
        sock = self._open_socket()
        sock.write_deadline = deadline
        try:
            sock.sendall(data)
        except TimeoutError:
            raise ConnectionFailed("the relay took nothing within the deadline") from None
        except _FAILURES as error:
            raise ConnectionFailed(f"can't send: {_words(error)}") from None

    def pong(self, data: bytes) -> None:
        self.send_message(Outgoing.pong(data), Deadline.after(5))

    def receive(self, deadline: Deadline) -> str | bytes | None:
        """The next message, text or binary; None for a frame that ends none, after which the caller may wait again.

        Raises TimeoutError when nothing ends within the deadline, ConnectionFailed at the end of the connection.
        """
        self._open_socket().read_deadline = deadline
        frame = self._frame()
        match frame.opcode:
            case websocket.ABNF.OPCODE_PING:
                self.on_ping(frame.data)
            case websocket.ABNF.OPCODE_CLOSE:
                raise _closed(frame.data)
            case websocket.ABNF.OPCODE_PONG:
                self.on_pong(frame.data)
            case _:
                return self._message(frame)
        return None

    def has_input(self) -> bool:
        return self._open_socket().has_input()

    def shut_down(self) -> None:
        """Wakes the threads that wait in this connection; they raise ConnectionFailed. From any thread."""
        if self._socket:
            self._socket.shut_down()

    def close(self) -> None:
        """By the owner, when no other thread is in it."""
        if self._socket:
            with contextlib.suppress(OSError):
                self._socket.close()

    def say_goodbye(self) -> None:
        """A close frame, if it goes out at once."""
        with contextlib.suppress(ConnectionFailed):
            self.send_message(Outgoing.close(1000), Deadline.after(1))

    def _headers(self) -> list[str]:
        """A relay that picks nothing of what is offered is none that fails: websocket-client would have it so."""
        offer = [f"Sec-WebSocket-Protocol: {', '.join(self._offered)}"] if self._offered else []
        return [f"Authorization: Bearer {self._credential}", *offer]

    def _message(self, frame: Any) -> str | bytes | None:
        if not self._parts:
            self._is_text = frame.opcode == websocket.ABNF.OPCODE_TEXT
        self._parts.append(frame.data)
        if sum(map(len, self._parts)) > MAX_MESSAGE_BYTES:
            raise ConnectionFailed(f"the relay sent a message of more than {MAX_MESSAGE_BYTES} bytes")
        if not frame.fin:
            return None
        parts, self._parts = self._parts, []
        data = b"".join(parts)
        return data.decode("utf-8", "replace") if self._is_text else data

    def _frame(self) -> Any:
        try:
            return self._websocket.recv_frame()
        except (TimeoutError, websocket.WebSocketTimeoutException):
            raise TimeoutError("nothing came within the deadline") from None
        except websocket.WebSocketConnectionClosedException:
            raise ConnectionFailed("the connection ended") from None
        except _FAILURES as error:
            raise ConnectionFailed(f"the connection ended: {_words(error)}") from None

    def _open_socket(self) -> DeadlineSocket:
        if self._socket is None:
            raise ConnectionFailed("the connection isn't open")
        return self._socket


def _closed(data: bytes) -> ConnectionFailed:
    code = struct.unpack("!H", data[:2])[0] if len(data) >= 2 else 1005
    return ConnectionFailed(f"the relay closed the connection ({code})", code)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
