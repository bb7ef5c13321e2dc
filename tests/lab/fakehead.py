"""A node in the test's own process that holds a whole model and says what the test says, when the test says it.

with FakeHead(site, "fake", listens=False) as head:          # reached through the relay, or where it listens
    … somebody asks model "fake" …                           # the first word is said at once
    head.say("second")                                       # and each other one now
    head.end()

It sends no comments in between: what somebody keeps back until more comes stays where it is for good.
"""

from __future__ import annotations

import ssl
from concurrent.futures import Future
from typing import Any, Self

from nodes.answers import answer_now, json_answer
from nodes.api import prove
from nodes.bridge import RelayHttpBridge
from nodes.deadline import Deadline
from nodes.events import Answer, EventStream, StreamAnswer
from nodes.server import NodeServer
from relay import headers, wire
from tests.lab.site import Site

FIRST = "first"
PROMPT_IDS = [1, 2, 3]


class FakeHead:
    def __init__(self, site: Site, model: str, *, listens: bool, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: where the site's relay is reached over it."""
        self._site, self.model, self._listens = site, model, listens
        self._tls = tls or ssl.create_default_context()
        self._server = NodeServer("127.0.0.1", 0)
        self._endpoint: str | None = None
        self._node_key = ""
        self._ids: list[int] = []

    def __enter__(self) -> Self:
        made = self.register(self._site.join_token)
        self._node_key = made["node_key"]
        api: Any = self
        self._server.api = api
        host, port = self._server.start()
        if self._listens:
            self._endpoint = f"http://{host}:{port}"
            told = self.register()
            assert told["endpoint_error"] is None, told
        else:
            self._bridge = RelayHttpBridge(api, made["relay_url"], made["peer_id"], self._node_key, self._tls)
            self._bridge.start()
            assert self._bridge.connected.wait(20), "the fake head isn't connected"
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._listens:
            self._bridge.stop(Deadline.after(5))
        self._server.stop(5)

    def register(self, credential: str = "") -> dict[str, Any]:
        """Also begins a new lease."""
        model = {"name": self.model, "fingerprint": "f" * 64, "num_layers": 2, "hidden_size": 8}
        endpoint = self._endpoint or ("http://127.0.0.1:1" if self._listens else None)
        said = {"name": self.model, "model": model | {"context_length": 4096}, "relay": not self._listens}
        return self._site.register(credential or self._node_key, **said, endpoint=endpoint)

    def begin(self, request: wire.Request, door: str) -> Future[Answer]:
        """In the place of NodeApi."""
        if request.path == "/health":
            proof = {headers.PROOF: prove(self._node_key, request.headers.get(headers.NONCE, ""))}
            return answer_now(wire.Response(request.request_id, 200, proof, b"{}"))
        if not request.path.endswith("completions"):
            return answer_now(json_answer(request.request_id, {}))
        self._stream, self._is_chat = EventStream(), request.path.endswith("chat/completions")
        self._ids = []
        self.say(FIRST)
        answered: Future[Answer] = Future()
        answered.set_result(StreamAnswer(request.request_id, self._stream))
        return answered

    def say(self, text: str, finish_reason: str | None = None) -> None:
        choice = {"delta": {"content": text}} if self._is_chat else {"text": text}
        own: dict[str, Any] = {"ids": [7], "position": len(PROMPT_IDS) + len(self._ids)}
        own |= {} if self._ids else {"prompt_ids": PROMPT_IDS}
        self._ids.append(7)
        event = {"choices": [{"index": 0, "finish_reason": finish_reason, **choice}], "meshnet": own}
        self._stream.send(event, Deadline.after(10))

    def end(self) -> None:
        """After a last word of nothing."""
        self.say("", "stop")
        usage = {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": len(self._ids), "total_tokens": 0}
        self._stream.finish({"meshnet": {"done": True, "usage": usage, "hops": []}})
