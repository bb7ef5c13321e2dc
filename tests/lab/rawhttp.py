"""One HTTP request on a socket of its own, and its answer as it arrives: nothing is repeated, hidden or waited for.

with ask("http://127.0.0.1:8000", "/v1/chat/completions", {"stream": True, …}, headers) as answer:
    assert answer.status == 200
    for block in answer.blocks():       # of an event stream, each as soon as its last byte is here
        …
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DEADLINE_S = 60  # between two reads


@dataclass
class Answer:
    status: int
    headers: dict[str, str]  # by their names in lower case
    _file: BufferedReader
    _inflate: Any = field(init=False)

    def __post_init__(self) -> None:
        is_zipped = self.headers.get("content-encoding") == "gzip"
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress if is_zipped else bytes

    def parts(self) -> Iterator[bytes]:
        """Of the body, unzipped. Raises AssertionError where it ends too early."""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := int(self._line(), 16):
                yield self._inflate(self._exactly(size))
                assert self._line() == b""
            assert self._line() == b""
        elif "content-length" in self.headers:
            yield self._inflate(self._exactly(int(self.headers["content-length"])))
        else:  # up to the connection's end
            while part := self._file.read1():
                yield self._inflate(part)

    def body(self) -> bytes:
        return b"".join(self.parts())

    def json(self) -> Any:
        return json.loads(self.body())

    def blocks(self) -> Iterator[str]:
        """What stands between empty lines."""
        rest = b""
        for part in self.parts():
            *blocks, rest = (rest + part).split(b"\n\n")
            for block in blocks:
                yield block.decode()
        assert not rest, f"the stream ends in the middle of {rest!r}"

    def _line(self) -> bytes:
        line = self._file.readline()
        assert line.endswith(b"\r\n"), f"the answer ends in the middle: {line!r}"
        return line[:-2]

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        assert len(data) == size, f"the answer ends {size - len(data)} bytes too early"
        return data


@contextlib.contextmanager
def ask(
    url: str, path: str, body: Any, headers: Mapping[str, str], *, ca_file: Path | None = None, method: str = "POST"
) -> Iterator[Answer]:
    """`body`: bytes as they are, anything else as JSON. Leaving the block closes the connection."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    parts = urlsplit(url)
    fields = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(data)),
        "Connection": "close",
    } | dict(headers)
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    with _connected(str(parts.hostname), parts.port or 80, ca_file) as connection:
        connection.sendall("\r\n".join(head).encode("latin-1") + data)
        with connection.makefile("rb") as file:
            yield Answer(*_head(file), file)


@contextlib.contextmanager
def _connected(host: str, port: int, ca_file: Path | None) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=DEADLINE_S) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ca_file is None:
            yield plain
            return
        with ssl.create_default_context(cafile=str(ca_file)).wrap_socket(plain, server_hostname=host) as secured:
            yield secured


def _head(file: BufferedReader) -> tuple[int, dict[str, str]]:
    first, *lines = _lines(file)
    pairs = (line.partition(":") for line in lines)
    return int(first.split(" ")[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _lines(file: BufferedReader) -> Iterator[str]:
    while line := file.readline().decode("latin-1").rstrip("\r\n"):
        yield line
