"""A hub as huggingface_hub knows it, over HTTP or TLS, for models in folders; and the CDN its large files come from.

The two are servers of different ports, so that what must not cross from one host to another can be told apart. Bytes of
files are counted as they leave. Faults are set by the test and hold until they are used up or taken back.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS_SUFFIXES = (".safetensors", ".model", ".gguf")
_PIECE_BYTES = 16 << 10


@dataclass
class Faults:
    cut_after_bytes: list[int] = field(default_factory=list)  # the next answers of the CDN each end after so many
    statuses: list[int] = field(default_factory=list)  # the next answers are these errors instead
    cdn_statuses: list[int] = field(default_factory=list)
    hold_after_bytes: int | None = None  # answers of the CDN stop there until `release`
    release: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)  # one has stopped
    has_ranges: bool = True
    extra_total: int = 0  # what Content-Range says too much of a file's size
    shift: int = 0  # of the first byte of every range, as answered
    corrupt: str = ""  # a file whose last byte is sent wrong
    linked_etag: str = ""  # instead of the right one
    gated: bool = False
    cdn_etag: str = ""  # instead of a file's own


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    is_cdn: bool


class LocalHub:
    """`models`: name to folder. A model's commit is a hash of its files, so that changing one makes another commit."""

    def __init__(self, models: dict[str, Path], tls: ssl.SSLContext | None = None, token: str = "") -> None:
        self.models, self.token, self.faults = models, token, Faults()
        self.retry_after = ""
        self.asked: list[Asked] = []
        self.sent: Counter[str] = Counter()  # bytes of each file
        self._old: dict[tuple[str, str], dict[str, bytes]] = {}
        self._lock = threading.Lock()
        self._hub, self._cdn = self._server(False, tls), self._server(True, tls)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._hub.server_address[1]}"
        self.cdn_url = f"{scheme}://127.0.0.1:{self._cdn.server_address[1]}"

    def __enter__(self) -> LocalHub:
        for server in (self._hub, self._cdn):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.faults.release.set()
        for server in (self._hub, self._cdn):
            server.shutdown()
            server.server_close()

    def commit(self, name: str) -> str:
        """Of the branch main, as the folder is now; older ones stay to be had."""
        files = {file.name: file.read_bytes() for file in sorted(self.models[name].iterdir()) if file.is_file()}
        digest = hashlib.sha1(b"".join(name.encode() + hashlib.sha1(data).digest() for name, data in files.items()))
        self._old[name, digest.hexdigest()] = files
        return digest.hexdigest()

    def size(self, name: str) -> int:
        """Bytes of the model's weights."""
        return sum(file.stat().st_size for file in self.models[name].glob("*.safetensors"))

    @property
    def sent_weights(self) -> int:
        return sum(count for file, count in self.sent.items() if file.endswith(".safetensors"))

    def _server(self, is_cdn: bool, tls: ssl.SSLContext | None) -> ThreadingHTTPServer:
        hub = self

        class Handler(_Handler):
            def do_GET(self) -> None:
                with hub._lock:
                    hub.asked.append(
                        Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, is_cdn)
                    )
                (hub._answer_cdn if is_cdn else hub._answer_hub)(self)

            do_HEAD = do_GET

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        return server

    def _answer_hub(self, handler: _Handler) -> None:
        if self.faults.statuses:
            status, headers = self.faults.statuses.pop(0), {"retry-after": self.retry_after} if self.retry_after else {}
            return handler.send(status, b"{}", headers)
        path = urlsplit(handler.path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path.path):
            name, revision = found[1], unquote(found[2] or "main")
            return self._list(handler, name, revision, has_blobs="blobs" in parse_qs(path.query))
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path.path):
            return self._resolve(handler, found[1], unquote(found[2]), unquote(found[3]))
        return handler.error(404)

    def _files(self, handler: _Handler, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if name not in self.models or (self.token and handler.headers["authorization"] != f"Bearer {self.token}"):
            handler.error(401, "RepoNotFound")
            return None
        if self.faults.gated:
            handler.error(403, "GatedRepo")
            return None
        commit = self.commit(name) if revision == "main" else revision
        if (name, commit) not in self._old:
            handler.error(404, "RevisionNotFound")
            return None
        return commit, self._old[name, commit]

    def _list(self, handler: _Handler, name: str, revision: str, *, has_blobs: bool) -> None:
        if found := self._files(handler, name, revision):
            commit, files = found
            siblings = [_sibling(file, data) if has_blobs else {"rfilename": file} for file, data in files.items()]
            handler.send(200, json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode())

    def _resolve(self, handler: _Handler, name: str, revision: str, file: str) -> None:
        found = self._files(handler, name, revision)
        if found is None:
            return
        commit, files = found
        if file not in files:
            return handler.error(404, "EntryNotFound")
        data = files[file]
        headers = {"x-repo-commit": commit, "etag": f'"{_git_sha1(data)}"', "accept-ranges": "bytes"}
        if not file.endswith(LFS_SUFFIXES):
            self._count(file, 0 if handler.command == "HEAD" else len(data))
            return handler.send(200, data, headers)
        linked = self.faults.linked_etag or hashlib.sha256(data).hexdigest()
        headers |= {"x-linked-etag": f'"{linked}"', "x-linked-size": str(len(data))}
        handler.send(302, b"", headers | {"location": f"{self.cdn_url}/{name}/{commit}/{file}?signature=s"})

    def _answer_cdn(self, handler: _Handler) -> None:
        if self.faults.cdn_statuses:
            return handler.error(self.faults.cdn_statuses.pop(0))
        owner, short, commit, file = urlsplit(handler.path).path[1:].split("/", 3)
        data = self._old[f"{owner}/{short}", commit][file]
        if file == self.faults.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        etag = self.faults.cdn_etag or f'"cdn-{_git_sha1(data)}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("range", ""))
        if not wanted or not self.faults.has_ranges or handler.headers.get("if-range", etag) != etag:
            return self._send_piecewise(handler, file, 200, data, {"etag": etag})
        start, end = int(wanted[1]) + self.faults.shift, min(int(wanted[2]) + 1, len(data)) + self.faults.shift
        if start >= len(data):
            return handler.error(416)
        content_range = f"bytes {start}-{end - 1}/{len(data) + self.faults.extra_total}"
        self._send_piecewise(handler, file, 206, data[start:end], {"etag": etag, "content-range": content_range})

    def _send_piecewise(self, handler: _Handler, file: str, status: int, data: bytes, headers: dict[str, str]) -> None:
        cut = self.faults.cut_after_bytes.pop(0) if self.faults.cut_after_bytes else len(data)
        handler.begin(status, len(data), headers)
        hold = self.faults.hold_after_bytes
        for at in range(0, min(cut, len(data)), _PIECE_BYTES):
            if hold is not None and at >= hold:
                self.faults.held.set()
                self.faults.release.wait(60)
            piece = data[at : min(at + _PIECE_BYTES, cut)]
            self._count(file, len(piece))
            try:
                handler.wfile.write(piece)
            except OSError:  # the client has left
                return
        if cut < len(data):
            handler.close_connection = True

    def _count(self, file: str, count: int) -> None:
        with self._lock:
            self.sent[file] += count


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"content-length": str(length)}).items():
            self.send_header(name, value)
        self.end_headers()

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.begin(status, len(body), headers or {})
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status: int, code: str = "") -> None:
        self.send(status, b"{}", {"x-error-code": code} if code else {})

    def log_message(self, *arguments: Any) -> None:
        pass


def _sibling(file: str, data: bytes) -> dict[str, Any]:
    entry = {"rfilename": file, "size": len(data), "blobId": _git_sha1(data)}
    if file.endswith(LFS_SUFFIXES):
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
