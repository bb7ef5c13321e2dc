"""The two ends of a relay, whatever they speak: a caller that asks one peer, a peer that answers.

An end speaks in the decision record's flat envelopes, each beside its body's bytes. What travels is its language's
matter: tests/lab/record.py has version 1, tests/lab/tunnel.py version 2. Nothing of Meshnet is imported here.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import websocket

from tests.lab.websockets import connect

Envelope = dict[str, Any]
Answer = tuple[int, dict[str, str], bytes | str]
Serve = Callable[[Envelope, bytes], Answer | None]


class Language(Protocol):
    """What one wire version makes of an envelope. Text messages are str, binary ones bytes."""

    subprotocols: list[str]

    def greeting(self, peer_id: str) -> str | bytes: ...

    def encode(self, envelope: Envelope, body: bytes | str) -> str | bytes: ...

    def decode(self, message: bytes) -> tuple[Envelope, bytes]: ...

    def reply(self, envelope: Envelope) -> str | bytes | None:
        """What the other side must hear at once, whoever reads this: the answer to its ping."""
        ...


@dataclass(frozen=True)
class Heard:
    """An answer whole: what a stream sent is joined."""

    envelope: Envelope
    body: bytes

    @property
    def request_id(self) -> str:
        return str(self.envelope["request_id"])

    @property
    def status(self) -> int:
        return int(self.envelope["status"])

    @property
    def code(self) -> str:
        """Of an error, as its body says it."""
        return str(json.loads(self.body)["error"]["code"])


class End:
    """One socket: a thread reads, any thread writes. `reads=False`: what comes is left lying, as by one that stalls."""

    language: Language

    def __init__(
        self, url: str, credential: str, ca_file: str | None = None, timeout_s: float = 20, *, reads: bool = True
    ) -> None:
        context = ssl.create_default_context(cafile=ca_file) if url.startswith("wss") else None
        self._timeout_s = timeout_s
        self._socket = connect(
            url,
            header=[f"Authorization: Bearer {credential}"],
            timeout=timeout_s,
            subprotocols=self.language.subprotocols or None,
            sslopt={"context": context} if context else None,
            sockopt=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            skip_utf8_validation=True,
        )
        self.ended = threading.Event()
        self.close_code = 0  # with which the other side ended it; 0: without a close frame
        self.farewell: Heard | None = None  # the last error that spoke of the socket as a whole
        self._heard: queue.SimpleQueue[Heard | None] = queue.SimpleQueue()
        self._pieces: dict[str, list[Heard]] = {}  # of streams that have begun
        self._begin(reads)

    def _begin(self, reads: bool) -> None:
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        if reads:
            self._thread.start()

    def read(self) -> None:
        """From now on, where the end was made with `reads=False`."""
        self._thread.start()

    def say(self, envelope: Envelope, body: bytes | str = b"") -> None:
        self.say_raw(self.language.encode(envelope, body))

    def say_raw(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self._socket.send(message)
        else:
            self._socket.send_binary(message)

    def say_frame(self, frame: bytes) -> None:
        """One made by `framed`."""
        with self._socket.lock:
            assert self._socket.sock, "the socket has ended"
            self._socket.sock.sendall(frame)

    def hear(self, deadline_s: float | None = None) -> Heard:
        """The next whole answer, or error of the socket. Raises ConnectionError when the socket has ended."""
        try:
            heard = self._heard.get(timeout=self._timeout_s if deadline_s is None else deadline_s)
        except queue.Empty:
            raise AssertionError("nothing was heard in time") from None
        if heard is None:
            self._heard.put(None)
            raise ConnectionError(f"the socket has ended ({self.close_code})")
        return heard

    def wait_for_end(self, deadline_s: float = 10) -> tuple[int, int]:
        """(status of the error frame, close code) with which the other side ended the socket."""
        assert self.ended.wait(deadline_s), "the socket lives"
        return self.farewell.status if self.farewell else 0, self.close_code

    def close(self) -> None:
        self._socket.close(timeout=1)
        self._join()

    def die(self) -> None:
        """As after kill -9: the connection ends without a word."""
        if self._socket.sock:
            with contextlib.suppress(OSError):
                self._socket.sock.shutdown(socket.SHUT_RDWR)
        self._join()

    def _join(self) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)
        self._socket.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        try:
            while (message := self._message()) is not None:
                self._take(*self.language.decode(message))
        except (websocket.WebSocketException, OSError):
            pass
        finally:
            self.ended.set()
            self._heard.put(None)

    def _message(self) -> bytes | None:
        opcode, data = self._socket.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            self.close_code = struct.unpack("!H", data[:2])[0] if len(data) >= 2 else 1005
            return None
        return bytes(data)

    def _take(self, envelope: Envelope, body: bytes) -> None:
        reply = self.language.reply(envelope)
        if reply is not None:
            return self.say_raw(reply)
        if "request_id" not in envelope:
            return self._told(envelope)
        self._joined(Heard(envelope, body))

    def _told(self, envelope: Envelope) -> None:
        """What speaks of no request, and is no error."""

    def _joined(self, heard: Heard) -> None:
        envelope, request_id = heard.envelope, heard.request_id
        if envelope.get("stream"):
            self._pieces[request_id] = [heard]
        elif "status" in envelope:
            self._pieces.pop(request_id, None)
            if not request_id:
                self.farewell = heard
            self._heard.put(heard)
        elif envelope.get("end"):
            begin, *chunks = self._pieces.pop(request_id)
            self._heard.put(Heard(begin.envelope, b"".join(chunk.body for chunk in chunks)))
        else:
            self._pieces[request_id].append(heard)


class Asking(End):
    """Asks, one thing after another or many at once."""

    to = ""  # whom, on a socket that asks many

    def ask(
        self,
        request_id: str,
        body: bytes | str = b"",
        *,
        method: str = "POST",
        path: str = "/forward",
        headers: dict[str, str] | None = None,
        deadline_ms: int | None = None,
    ) -> None:
        envelope: Envelope = {"request_id": request_id, "method": method, "path": path, "headers": headers or {}}
        envelope |= {"deadline_ms": deadline_ms} if deadline_ms is not None else {}
        self.say(envelope | ({"to": self.to} if self.to else {}), body)

    def asked(self, request_id: str, body: bytes | str = b"", **options: Any) -> Heard:
        """Asks, and gives the next answer."""
        self.ask(request_id, body, **options)
        return self.hear()

    def call(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[Envelope, bytes]:
        """(answer, its body's bytes); a streamed answer's chunks are joined."""
        heard = self.asked("ab12", body, method=method, path=path, headers=headers)
        return heard.envelope, heard.body


class Caller(Asking):
    """Opens `wss://<relay>/rpc/<peer_id>`."""

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Peer(End):
    """Keeps `wss://<relay>/ws` open and answers each request with what `serve` gives: (status, headers, body).

    Without `serve`, or where that gives None, `answer` answers later.
    """

    def __init__(
        self,
        relay_url: str,
        peer_id: str,
        credential: str,
        serve: Serve | None = None,
        *,
        reads: bool = True,
        ca_file: str | None = None,
    ) -> None:
        self.peer_id, self._serve = peer_id, serve
        self.welcome: Envelope = {}
        self.requests: list[Envelope] = []
        self.bodies: list[bytes] = []
        self.cancelled: list[str] = []
        self._num_taken = 0
        self._news = threading.Condition()
        super().__init__(relay_url, credential, ca_file, reads=reads)

    def _begin(self, reads: bool) -> None:
        self.say_raw(self.language.greeting(self.peer_id))
        message = self._message()
        if message is not None:
            self.welcome, body = self.language.decode(message)
            if "status" in self.welcome:
                self.farewell = Heard(self.welcome, body)
        super()._begin(reads)

    @property
    def is_registered(self) -> bool:
        return "relay_addr" in self.welcome

    def answer(self, request_id: str, status: int = 200, headers: Any = None, body: bytes | str = b"") -> None:
        self.say({"request_id": request_id, "status": status, "headers": headers or {}}, body)

    def wait_for_requests(self, number: int, deadline_s: float = 10) -> list[Envelope]:
        """What it has been asked since it connected, once that are so many."""
        self._wait(lambda: len(self.requests) >= number, deadline_s)
        return list(self.requests)

    def taken(self, wait_s: float) -> list[tuple[str, bytes]]:
        """(request_id, body) of what came since the last call, waiting a little for the first."""
        with self._news:
            self._news.wait_for(lambda: len(self.requests) > self._num_taken, wait_s)
            new = slice(self._num_taken, len(self.requests))
            self._num_taken = new.stop
            return [(it["request_id"], body) for it, body in zip(self.requests[new], self.bodies[new], strict=True)]

    def wait_for_cancels(self, number: int, deadline_s: float = 10) -> list[str]:
        self._wait(lambda: len(self.cancelled) >= number, deadline_s)
        return list(self.cancelled)

    def _wait(self, condition: Callable[[], bool], deadline_s: float) -> None:
        with self._news:
            assert self._news.wait_for(condition, deadline_s), (len(self.requests), len(self.cancelled))

    def _take(self, envelope: Envelope, body: bytes) -> None:
        kind = envelope.get("type")
        if kind == "relay-http-cancel":
            with self._news:
                self.cancelled.append(envelope["request_id"])
                self._news.notify_all()
        elif kind == "relay-http-request":
            with self._news:
                self.requests.append(envelope)
                self.bodies.append(body)
                self._news.notify_all()
            answer = self._serve(envelope, body) if self._serve else None
            if answer:
                self.answer(envelope["request_id"], *answer)
        else:
            super()._take(envelope, body)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def eventually(condition: Callable[[], Any], deadline_s: float = 10, why: str = "") -> Any:
    """What the condition gives once it is true."""
    until = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < until, why or "it didn't come about in time"
        time.sleep(0.02)
    return found


def framed(message: str | bytes) -> bytes:
    """The message as a client's frame, made once: masking a megabyte takes longer than sending it."""
    opcode = websocket.ABNF.OPCODE_TEXT if isinstance(message, str) else websocket.ABNF.OPCODE_BINARY
    return bytes(websocket.ABNF.create_frame(message, opcode).format())
