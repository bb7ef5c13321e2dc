"""A small WebSocket server for tests: stdlib sockets, a thread for each connection, plain or TLS."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Ended(Exception):
    """The client has gone; `code` is that of its close frame, if there was one."""


class ServerSocket:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket, path: str, headers: dict[str, str], subprotocol: str) -> None:
        self.path, self.headers, self.subprotocol = path, headers, subprotocol
        self._socket = sock
        self._sending = threading.Lock()
        self.pongs: list[bytes] = []

    def receive(self) -> str:
        """The next message, a text. Pings are answered. Raises Ended."""
        return self.receive_data(TEXT).decode()

    def receive_data(self, kind: int = BINARY) -> bytes:
        while True:
            opcode, data = self._frame()
            if opcode in (TEXT, BINARY):
                assert opcode == kind, data[:100]
                return data
            if opcode == CLOSE:
                raise Ended
            if opcode == PING:
                self.frame(PONG, data)
            if opcode == PONG:
                self.pongs.append(data)

    def send(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self.frame(TEXT, message.encode())
        else:
            self.frame(BINARY, message)

    def close(self, code: int = 1000) -> None:
        with contextlib.suppress(OSError):
            self.frame(CLOSE, struct.pack("!H", code))
        self.cut()

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def frame(self, opcode: int, data: bytes, *, is_last: bool = True) -> None:
        length = len(data)
        if length < 126:
            size = bytes([length])
        elif length < 65536:
            size = struct.pack("!BH", 126, length)
        else:
            size = struct.pack("!BQ", 127, length)
        with self._sending:
            self._socket.sendall(bytes([(0x80 if is_last else 0) | opcode]) + size + data)

    def _frame(self) -> tuple[int, bytes]:
        first, second = self._exactly(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self._exactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._exactly(8))
        mask, data = self._exactly(4), self._exactly(length)
        repeated = (mask * (length // 4 + 1))[:length]
        plain = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")
        return first & 0x0F, plain

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._socket.recv(min(size - len(data), 262144))
            except OSError:
                raise Ended from None
            if not piece:
                raise Ended
            data += piece
        return bytes(data)


Handler = Callable[[ServerSocket], None]


class WebSocketServer:
    """Calls `handler` for each connection, on a thread of its own. A context. `picks`: subprotocols, where offered."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None, picks: Sequence[str] = ()) -> None:
        self._handler, self._tls, self._picks = handler, tls, picks
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"{'wss' if tls else 'ws'}://127.0.0.1:{self.port}"
        self.sockets: list[ServerSocket] = []
        self.opened = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> WebSocketServer:
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self.sockets):
            connection.cut()
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.closing(sock), contextlib.suppress(Ended, OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                sock = self._tls.wrap_socket(sock, server_side=True)
            connection = _upgraded(sock, self._picks)
            self.sockets.append(connection)
            self.opened.release()
            try:
                self._handler(connection)
            finally:
                connection.cut()
                sock.close()


def _upgraded(sock: socket.socket, picks: Sequence[str]) -> ServerSocket:
    head = b""
    while b"\r\n\r\n" not in head:
        piece = sock.recv(4096)
        if not piece:
            raise Ended
        head += piece
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + _MAGIC).digest()).decode()
    offered = headers.get("sec-websocket-protocol", "").split(", ")
    picked = next((name for name in offered if name in picks), "")
    answer = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    answer += [f"Sec-WebSocket-Protocol: {picked}"] if picked else []
    sock.sendall("\r\n".join([*answer, f"Sec-WebSocket-Accept: {accept}", "", ""]).encode())
    return ServerSocket(sock, first.split(" ")[1], headers, picked)
