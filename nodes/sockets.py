"""A socket that two threads may use at once, one reading and one writing, also over TLS, with deadlines.

OpenSSL's connection object is not safe for two threads, and Python before 3.13 doesn't guard it: a reader and a writer
in one TLS socket corrupt the stream within seconds of traffic. So the socket is non-blocking, one lock is held around
each call into OpenSSL, and waiting happens outside of it. Deadlines are kept by the waiting itself: whatever trickles
in, `recv` ends when `read_deadline` is over.
"""

from __future__ import annotations

import contextlib
import io
import select
import socket
import ssl
import threading
from typing import Any

from nodes.deadline import Deadline

READ_SIZE = 65536
WRITE_SIZE = 65536
STALL_S = 15.0  # a peer that takes no byte for so long is gone


def tls_context(ca_file: str = "") -> ssl.SSLContext:
    """One for the whole process: making it reads every authority (35 ms). `ca_file` adds a private authority."""
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(cafile=ca_file)
    return context


class DeadlineSocket:
    """What websocket-client and http.client use of a socket; `recv` and `send` wait until their deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._calling = threading.Lock()
        self._received = b""
        self._num_files, self._is_closing = 0, False
        self.read_deadline = self.write_deadline = deadline

    def recv(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end of the stream. Raises TimeoutError, OSError."""
        if not self._received:
            self._received = self._read()
        piece, self._received = self._received[:size], self._received[size:]
        return piece

    def send(self, data: bytes) -> int:
        """How many of the bytes were taken, at least one. Raises TimeoutError, OSError."""
        piece = data if len(data) <= WRITE_SIZE else data[:WRITE_SIZE]  # OpenSSL wants the same bytes after a wait
        deadline = self.write_deadline.at_most(STALL_S)
        while True:
            try:
                with self._calling:
                    return self._socket.send(piece)
            except (BlockingIOError, ssl.SSLWantWriteError):
                wait(self._socket, select.POLLOUT, deadline)
            except ssl.SSLWantReadError:
                wait(self._socket, select.POLLIN, deadline)

    def send_now(self, data: bytes) -> int:
        """How many of the bytes were taken without waiting; the rest is to be sent next. Raises OSError."""
        num_sent = 0
        with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            while num_sent < len(data):
                with self._calling:
                    num_sent += self._socket.send(data[num_sent : num_sent + WRITE_SIZE])
        return num_sent

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self.send(left[:WRITE_SIZE].tobytes()) :]

    def has_input(self) -> bool:
        """Whether `recv` has something to say now: bytes, the end or an error."""
        if self._received:
            return True
        try:
            with self._calling:
                self._received = self._socket.recv(READ_SIZE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            return True
        return True

    def shut_down(self) -> None:
        """Ends the connection; a thread that waits in it wakes up. The file descriptor stays until `close`."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # SSLSocket's own would go on in plain text

    def close(self) -> None:
        """At once, or when the last file of it is closed: http.client reads the end of an answer after it has closed
        a connection that the other side won't keep."""
        self._is_closing = True
        if not self._num_files:
            with self._calling:
                self._socket.close()

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """For http.client, which reads its answers from a file."""
        self._num_files += 1
        return io.BufferedReader(_Reader(self))

    def file_closed(self) -> None:
        self._num_files -= 1
        if self._is_closing:
            self.close()

    @property
    def _closed(self) -> bool:  # websocket-client asks
        return self._socket.fileno() < 0

    def gettimeout(self) -> float:
        return 0.0  # tells websocket-client to call and not to wait by itself

    def fileno(self) -> int:
        return self._socket.fileno()

    def _read(self) -> bytes:
        while True:
            if self.read_deadline.is_over:
                raise TimeoutError("no answer within the deadline")
            try:
                with self._calling:
                    return self._socket.recv(READ_SIZE)
            except (BlockingIOError, ssl.SSLWantReadError):
                wait(self._socket, select.POLLIN, self.read_deadline)
            except ssl.SSLWantWriteError:
                wait(self._socket, select.POLLOUT, self.read_deadline)


class _Reader(io.RawIOBase):
    def __init__(self, sock: DeadlineSocket) -> None:
        self._socket = sock

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._socket.file_closed()

    def readinto(self, buffer: Any) -> int:
        data = self._socket.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def dial(host: str, port: int, tls: ssl.SSLContext | None, deadline: Deadline) -> DeadlineSocket:
    """A connection, with its TLS handshake done. Raises TimeoutError, OSError with a cause that can be shown."""
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            return _connect(sock, address, host, tls, deadline)
        except OSError as error:
            sock.close()
            failure = error
    raise failure


def _connect(
    sock: socket.socket, address: Any, host: str, tls: ssl.SSLContext | None, deadline: Deadline
) -> DeadlineSocket:
    sock.settimeout(max(0.001, deadline.left_s()))
    sock.connect(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if tls is None:
        return DeadlineSocket(sock, deadline)
    sock.setblocking(False)
    wrapped = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        _shake_hands(wrapped, deadline)
    except OSError:
        wrapped.close()
        raise
    return DeadlineSocket(wrapped, deadline)


def _shake_hands(sock: ssl.SSLSocket, deadline: Deadline) -> None:
    while True:
        try:
            return sock.do_handshake()
        except ssl.SSLWantReadError:
            wait(sock, select.POLLIN, deadline)
        except ssl.SSLWantWriteError:
            wait(sock, select.POLLOUT, deadline)


def wait(sock: socket.socket, event: int, deadline: Deadline) -> None:
    if sock.fileno() < 0:
        raise ConnectionAbortedError("the connection was closed here")
    poll = select.poll()
    poll.register(sock.fileno(), event)
    while not poll.poll(int(deadline.turn_s() * 1000) + 1) and not deadline.is_over:
        pass
    if deadline.is_over:
        raise TimeoutError("no progress within the deadline")
