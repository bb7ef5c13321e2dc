from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from nodes import sockets
from nodes.deadline import Deadline
from nodes.sockets import DeadlineSocket, dial
from tests.nodes.certificates import tls_pair


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port; its first connection is served on a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def reading_to_the_end(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def test_it_gives_what_was_sent_in_pieces_of_the_size_asked() -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"abcdef")
        reading_to_the_end(connection)

    with listening(serve) as port:
        sock = dial("127.0.0.1", port, None, Deadline.after(5))
        assert [sock.recv(4), sock.recv(4)] == [b"abcd", b"ef"]
        sock.close()


def test_reading_ends_at_the_deadline_when_nothing_comes() -> None:
    with listening(reading_to_the_end) as port:
        sock = dial("127.0.0.1", port, None, Deadline.after(0.2))
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.close()


def test_reading_ends_at_the_deadline_while_bytes_trickle_in() -> None:
    def trickle(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for _ in range(500):
                connection.sendall(b"x")
                time.sleep(0.01)

    with listening(trickle) as port:
        sock = dial("127.0.0.1", port, None, Deadline.after(0.3))
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            receive_for_ever(sock)
        assert time.monotonic() - started < 2
        sock.close()


def test_sending_ends_when_the_other_side_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "STALL_S", 0.2)
    finished = threading.Event()

    with listening(lambda connection: assert_true(finished.wait(10))) as port:
        sock = dial("127.0.0.1", port, None, Deadline.after(30))
        with pytest.raises(TimeoutError):
            send_all(sock, bytes(1_000_000), 1000)
        finished.set()
        sock.close()


def test_shutting_down_wakes_a_thread_that_reads() -> None:
    with listening(reading_to_the_end) as port:
        sock = dial("127.0.0.1", port, None, Deadline.after(30))
        threading.Timer(0.05, sock.shut_down).start()
        assert sock.recv(1) == b""
        sock.close()


def test_it_knows_whether_something_came_without_waiting() -> None:
    go = threading.Event()

    def serve(connection: socket.socket) -> None:
        assert go.wait(5)
        connection.sendall(b"x")
        reading_to_the_end(connection)

    with listening(serve) as port:
        sock = dial("127.0.0.1", port, None, Deadline.after(5))
        assert not sock.has_input()
        go.set()
        until = time.monotonic() + 5
        while not sock.has_input():
            assert time.monotonic() < until
        assert sock.recv(5) == b"x"
        sock.close()


def test_a_handshake_that_nobody_answers_ends_at_the_deadline(tmp_path: Path) -> None:
    _, client = tls_pair(tmp_path)
    with listening(reading_to_the_end) as port:
        with pytest.raises(TimeoutError):
            dial("127.0.0.1", port, client, Deadline.after(0.3))


def test_a_certificate_that_isnt_trusted_is_refused(tmp_path: Path) -> None:
    server, _ = tls_pair(tmp_path / "a")
    _, other = tls_pair(tmp_path / "b")

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            server.wrap_socket(connection, server_side=True)

    with listening(serve) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            dial("127.0.0.1", port, other, Deadline.after(5))


def test_a_refused_connection_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        dial("127.0.0.1", port, None, Deadline.after(5))


def test_a_reader_and_a_writer_share_a_tls_socket(tmp_path: Path) -> None:
    """Megabytes both ways at once."""
    server, client = tls_pair(tmp_path)
    block, num_blocks = os.urandom(200_000), 60

    def echo(connection: socket.socket) -> None:
        wrapped = server.wrap_socket(connection, server_side=True)
        waiting: list[bytes] = []
        came, done = threading.Condition(), threading.Event()

        def send() -> None:
            # OpenSSL on this side isn't ours: one lock there too.
            while True:
                with came:
                    came.wait_for(lambda: bool(waiting) or done.is_set())
                    if not waiting:
                        return
                    data = waiting.pop(0)
                peer.sendall(data)

        peer = DeadlineSocket(wrapped, Deadline.after(60))
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        left = num_blocks * len(block)
        while left:
            data = peer.recv(65536)
            assert data
            left -= len(data)
            with came:
                waiting.append(data)
                came.notify()
        done.set()
        with came:
            came.notify()
        sender.join(30)

    with listening(echo) as port:
        sock = dial("127.0.0.1", port, client, Deadline.after(60))
        writer = threading.Thread(target=send_all, args=(sock, block, num_blocks), daemon=True)
        writer.start()
        digest, left = hashlib.sha256(), num_blocks * len(block)
        while left:
            data = sock.recv(65536)
            assert data, f"ended with {left} bytes to come"
            digest.update(data)
            left -= len(data)
        writer.join(10)
        sock.close()

    assert digest.digest() == hashlib.sha256(block * num_blocks).digest()


def test_two_threads_are_never_in_the_socket_at_once() -> None:
    """OpenSSL's connection object isn't made for that: traffic both ways broke the stream, but not every time."""

    class Counting:
        def __init__(self) -> None:
            self.num_inside = self.most_inside = 0

        def setblocking(self, flag: bool) -> None:
            assert not flag

        def recv(self, size: int) -> bytes:
            self._stay()
            return b"x"

        def send(self, data: bytes) -> int:
            self._stay()
            return len(data)

        def _stay(self) -> None:
            self.num_inside += 1
            self.most_inside = max(self.most_inside, self.num_inside)
            time.sleep(0.001)  # lets the other thread run, as OpenSSL does
            self.num_inside -= 1

    counting = Counting()
    sock = DeadlineSocket(cast(socket.socket, counting), Deadline.after(30))
    writer = threading.Thread(target=lambda: [sock.send(b"y") for _ in range(50)], daemon=True)
    writer.start()
    for _ in range(50):
        assert sock.recv(1) == b"x"
    writer.join(10)

    assert counting.most_inside == 1


def receive_for_ever(sock: DeadlineSocket) -> None:
    while True:
        sock.recv(1)


def send_all(sock: DeadlineSocket, block: bytes, count: int) -> None:
    for _ in range(count):
        sock.sendall(block)


def assert_true(value: bool) -> None:
    assert value
