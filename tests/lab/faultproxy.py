"""A TCP proxy that breaks connections on demand, told apart by the path of their HTTP request line.

with FaultProxy(upstream=("127.0.0.1", 8000)) as proxy:
    proxy.fail("/rpc", "refuse")      # new connections to /rpc… are closed at once
    proxy.cut("/rpc")                 # open ones are reset
    proxy.fail("/rpc", "blackhole")   # accepted, read, never answered
    proxy.heal("/rpc")
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time

FIRST_BYTES_DEADLINE_S = 10.0


class _Link:
    """One client connection and the one to the upstream that serves it."""

    def __init__(self, client: socket.socket, path: str) -> None:
        self.client, self.path = client, path
        self.upstream: socket.socket | None = None

    def close(self, *, reset: bool = False) -> None:
        for end in filter(None, (self.client, self.upstream)):
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR) if not reset else None
            end.close()


class FaultProxy:
    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream_address = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._faults: dict[str, str] = {}
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._closing = False
        self.opened: list[str] = []  # paths of the connections so far

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self.cut("")

    def fail(self, prefix: str, how: str) -> None:
        """`how`: "refuse" or "blackhole", for new connections; and in a black hole open ones carry nothing more."""
        with self._lock:
            self._faults[prefix] = how

    def heal(self, prefix: str) -> None:
        with self._lock:
            self._faults.pop(prefix, None)

    def cut(self, prefix: str) -> int:
        """Resets the open connections whose path starts with `prefix`; how many there were."""
        with self._lock:
            hit = [link for link in self._links if link.path.startswith(prefix)]
        for link in hit:
            link.close(reset=True)
        return len(hit)

    def _fault(self, path: str) -> str:
        with self._lock:
            return next((how for prefix, how in self._faults.items() if path.startswith(prefix)), "")

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        first = _first_line(client)
        path = first.split(b" ")[1].decode("latin-1") if first.count(b" ") else ""
        link = _Link(client, path)
        with self._lock:
            self.opened.append(path)
            self._links.add(link)
        try:
            if self._fault(path) == "refuse":
                return
            link.upstream = socket.create_connection(self.upstream_address, timeout=5)
            link.upstream.settimeout(None)
            for end in (client, link.upstream):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._copy(link, first)
        except (OSError, ValueError):
            pass  # an end has gone, or cut() closed it
        finally:
            link.close()
            with self._lock:
                self._links.discard(link)

    def _copy(self, link: _Link, pending: bytes) -> None:
        client, upstream = link.client, link.upstream
        assert upstream is not None
        upstream.sendall(pending)
        while True:
            for source in select.select([client, upstream], [], [], 60)[0]:
                data = source.recv(65536)
                while self._fault(link.path) == "blackhole":
                    if self._closing:
                        return
                    time.sleep(0.02)
                if not data:
                    return
                (upstream if source is client else client).sendall(data)


def _first_line(client: socket.socket) -> bytes:
    """What the client sends first, up to the end of its request line."""
    client.settimeout(FIRST_BYTES_DEADLINE_S)
    data = b""
    with contextlib.suppress(OSError):
        while b"\n" not in data and len(data) < 8192:
            piece = client.recv(4096)
            if not piece:
                break
            data += piece
    client.settimeout(None)
    return data
