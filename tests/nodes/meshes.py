"""Nodes with fake engines on real doors: a bridge to a small relay, an HTTP port, or both; and whoever asks them."""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nodes.api import Door, NodeApi
from nodes.bridge import RelayHttpBridge
from nodes.chat import Head
from nodes.deadline import Deadline
from nodes.engine import Engine
from nodes.events import Answer, StreamAnswer
from nodes.grammar import Grammars
from nodes.hops import Dialler
from nodes.server import NodeServer
from nodes.sockets import tls_context
from nodes.steps import Layers
from nodes.text import Tokenizer
from nodes.tickets import TicketBook, TrackerClock
from nodes.tunnel import Tunnel
from relay import headers as names
from relay import wire
from relay.headers import Hop, Ticket, encode_route, encode_ticket
from relay.wire import WIRE_VERSIONS
from tests.nodes.engines import VOCAB, WIDTH, FakeEngine, count_up
from tests.nodes.models import make_tokenizer
from tests.nodes.relays import MiniRelay, key_of

FINGERPRINT = "f" * 64
CONTEXT_LENGTH = 200
_sessions = itertools.count(1)
_tls: list[ssl.SSLContext] = []


def shared_tls() -> ssl.SSLContext:
    _tls[:] = _tls or [tls_context()]
    return _tls[0]


class Signer:
    """The tracker's signing key."""

    def __init__(self, kid: str = "k1") -> None:
        self.kid, self._key = kid, Ed25519PrivateKey.generate()

    def public_keys(self) -> dict[str, str]:
        return {self.kid: base64.b64encode(self._key.public_key().public_bytes_raw()).decode()}

    def sign(self, hops: Sequence[tuple[str, int, int]], **changes: Any) -> tuple[Ticket, str]:
        fields: dict[str, Any] = {
            "kid": self.kid,
            "session": f"{next(_sessions):032x}",
            "epoch": 0,
            "fingerprint": FINGERPRINT,
            "head": hops[0][0],
            "hops": tuple(hops),
            "dtype": "bfloat16",
            "max_tokens": 50,
            "seed": 7,
            "expires": int(time.time()) + 600,
        }
        ticket = Ticket(**(fields | changes))
        return ticket, encode_ticket(ticket.payload(), self._key.sign(ticket.payload()))


class TestNode:
    """One node: its engine, its NodeApi and the doors that are open."""

    __test__ = False

    def __init__(
        self,
        number: int,
        layers: tuple[int, int],
        num_layers: int,
        signer: Signer,
        relay: MiniRelay | None,
        next_token: Callable[[int, int], int],
        max_chats: int,
        tls: ssl.SSLContext,
        wire_versions: Sequence[int] = WIRE_VERSIONS,
        prefer: str = "relay",
        context_length: int = CONTEXT_LENGTH,
    ) -> None:
        self.peer_id, self.layers = f"{number:032x}", layers
        self.key = key_of(self.peer_id)
        self.engine = FakeEngine(num_layers, next_token)
        clock = TrackerClock()
        clock.set(time.time())
        self.book = TicketBook(self.peer_id, FINGERPRINT, clock)
        self.book.set_keys(signer.public_keys())
        engine = cast(Engine, self.engine)
        self.wire_versions = tuple(wire_versions)
        self.tunnel = Tunnel() if 2 in wire_versions else None
        head, tokenizer = None, Tokenizer(make_tokenizer(), {2})
        self.grammars = Grammars(tokenizer, VOCAB)
        if layers[0] == 0:
            dialler = Dialler(relay.ws_url if relay else None, self.key, tls, self.tunnel, prefer)
            told = WIDTH, context_length, engine, tokenizer, dialler, VOCAB
            head = Head(self.peer_id, *told, grammars=self.grammars)
        held = Layers(*layers, num_layers, WIDTH, VOCAB, context_length)
        self.api = NodeApi("tiny", held, engine, self.book, head, self.key, max_chats, self.grammars)
        self.server: NodeServer | None = None
        self.bridge: RelayHttpBridge | None = None
        self.endpoint: str | None = None
        self._relay, self._tls = relay, tls

    def listen(self) -> None:
        self.server = NodeServer("127.0.0.1", 0)
        self.server.api = self.api
        self.endpoint = "http://{}:{}".format(*self.server.start())

    def connect(self) -> None:
        assert self._relay
        self.bridge = RelayHttpBridge(
            self.api, self._relay.ws_url, self.peer_id, self.key, self._tls, tunnel=self.tunnel
        )
        self.bridge.start()
        assert self.bridge.connected.wait(5)

    def close(self) -> None:
        if self.bridge:
            self.bridge.stop(Deadline.after(5))
        if self.server:
            self.server.stop(2)
        self.engine.stop()

    @property
    def hop(self) -> Hop:
        relay_addr = self._relay.address(self.peer_id) if self._relay and self.bridge else None
        return Hop(self.peer_id, *self.layers, self.endpoint, relay_addr, self.wire_versions)


@dataclass
class Mesh:
    """Nodes that hold one model of as many layers as they have together. A context."""

    cuts: Sequence[tuple[int, int]]
    relayed: bool = True
    direct: bool = False
    next_token: Callable[[int, int], int] = count_up
    max_chats: int = 8
    relay: MiniRelay | None = None
    tls: ssl.SSLContext = field(default_factory=shared_tls)
    wire_versions: Sequence[Sequence[int]] = ()  # of each node; what is left out speaks all
    prefer: str = "relay"
    context_length: int = CONTEXT_LENGTH

    def __enter__(self) -> Mesh:
        self._stack = ExitStack()
        self.signer = Signer()
        if self.relay is None and self.relayed:
            self.relay = self._stack.enter_context(MiniRelay())
        num_layers = self.cuts[-1][1]
        spoken = [*self.wire_versions, *[WIRE_VERSIONS] * len(self.cuts)]
        same = (num_layers, self.signer, self.relay, self.next_token, self.max_chats, self.tls)
        self.nodes = [
            TestNode(number, cut, *same, versions, self.prefer, self.context_length)
            for number, (cut, versions) in enumerate(zip(self.cuts, spoken, strict=False), 1)
        ]
        for node in self.nodes:
            self._stack.callback(node.close)
            if self.direct:
                node.listen()
            if self.relayed:
                node.connect()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def head(self) -> TestNode:
        return self.nodes[0]

    def request(self, body: Mapping[str, Any], path: str = "/v1/chat/completions", **changes: Any) -> wire.Request:
        """A chat as the tracker asks it. `changes`: of the ticket, or of headers by their name with underscores."""
        hops = [(node.peer_id, *node.layers) for node in self.nodes]
        ticket_changes = {name: changes.pop(name) for name in list(changes) if name in Ticket.__slots__}
        ticket, text = self.signer.sign(ticket_changes.pop("hops", hops), **ticket_changes)
        headers = {
            names.SESSION: ticket.session,
            names.EPOCH: str(ticket.epoch),
            names.TICKET: text,
            names.ROUTE: encode_route([node.hop for node in self.nodes[1:]]),
            names.PREFILL_CHUNK: "4",
            names.DEADLINE_MS: "20000",
            "content-type": "application/json",
        }
        headers |= {name.replace("_", "-"): str(value) for name, value in changes.items()}
        return wire.Request("1", "POST", path, headers, json.dumps(body).encode(), sender=wire.TRACKER)

    def begin(self, request: wire.Request, door: Door = "relay") -> Answer:
        return self.head.api.begin(request, door).result(10)

    def chat(self, prompt: str = "abc", **parameters: Any) -> Told:
        """A chat to its end."""
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 5, "temperature": 0} | parameters
        return tell(self.begin(self.request(body)))

    def wait_until_free(self, deadline_s: float = 5) -> None:
        """Frees come after the answer, over the network."""
        until = time.monotonic() + deadline_s
        while any(node.engine.num_sessions or node.api.num_chats or node.api._num_releasing for node in self.nodes):
            assert time.monotonic() < until, [node.engine.num_sessions for node in self.nodes]
            time.sleep(0.005)


@dataclass
class Told:
    """What a stream said."""

    events: list[dict[str, Any]] = field(default_factory=list)
    num_keepalives: int = 0
    is_done: bool = False

    @property
    def content(self) -> list[dict[str, Any]]:
        return [event for event in self.events if "choices" in event]

    @property
    def deltas(self) -> list[str]:
        choices = [event["choices"][0] for event in self.content]
        return [choice["text"] if "text" in choice else choice["delta"]["content"] for choice in choices]

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def ids(self) -> list[int]:
        return [token_id for event in self.content for token_id in event["meshnet"]["ids"]]

    @property
    def finish_reason(self) -> str | None:
        reason: str | None = self.content[-1]["choices"][0]["finish_reason"]
        return reason

    @property
    def summary(self) -> dict[str, Any]:
        return next(event["meshnet"] for event in self.events if event.get("meshnet", {}).get("done"))

    @property
    def paths(self) -> list[str]:
        return [hop["path"] for hop in self.summary["hops"]]

    @property
    def error(self) -> dict[str, Any] | None:
        return next((event["error"] for event in self.events if "error" in event), None)


def tell(answer: Answer) -> Told:
    assert isinstance(answer, StreamAnswer), answer
    told = Told()
    for event in parts(b"".join(answer.events)):
        if event.startswith(b": keepalive"):
            told.num_keepalives += 1
        elif event == b"data: [DONE]":
            told.is_done = True
        else:
            told.events.append(json.loads(event.removeprefix(b"data: ")))
    return told


def parts(stream: bytes) -> Iterator[bytes]:
    yield from (part for part in stream.split(b"\n\n") if part)
