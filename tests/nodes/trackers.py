"""A small tracker for tests of nodes: a real HTTP server that answers from a list and keeps what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nodes.registration import ModelFacts, NodeFacts

Answer = tuple[int, Any]

MODEL = ModelFacts(name="tiny", fingerprint="f" * 64, num_layers=4, hidden_size=8, context_length=64)
FACTS = NodeFacts(
    name="one",
    model=MODEL,
    start_layer=0,
    end_layer=2,
    relay=True,
    endpoint=None,
    memory_bytes=1000,
    threads=2,
    dtype="bfloat16",
)

STANDING = {"status": "approved", "heartbeat_s": 0.2, "ticket_keys": {}, "endpoint_error": None}
REGISTERED = STANDING | {
    "registration": "r1",
    "peer_id": "ab" * 16,
    "start_layer": 0,
    "end_layer": 2,
    "relay_url": None,
    "relay_addr": None,
    "wire_versions": [1],
    "model": {"name": "tiny", "prefill_chunk_tokens": 128, "wire_dtype": "bfloat16"},
}


def registered(**changes: Any) -> Answer:
    return 200, REGISTERED | {"now": time.time()} | changes


def standing(**changes: Any) -> Answer:
    return 200, STANDING | {"now": time.time()} | changes


def refusal(status: int, code: str, message: str = "no") -> Answer:
    return status, {"error": {"code": code, "message": message}}


class MiniTracker:
    """`answer` decides what a verb is answered; each request is in `asked` as (verb, credential, message)."""

    def __init__(self, answer: Callable[[str], Answer] | None = None) -> None:
        self.answer = answer or (lambda verb: registered(node_key="n.k") if verb == "register" else standing())
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.changed = threading.Condition()
        tracker = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                verb = self.path.removeprefix("/api/nodes/")
                with tracker.changed:
                    tracker.asked.append((verb, self.headers["authorization"].removeprefix("Bearer "), message))
                    tracker.changed.notify_all()
                status, content = tracker.answer(verb)
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> MiniTracker:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.asked]

    def wait_for(self, verb: str, count: int = 1, deadline_s: float = 10) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.verbs.count(verb) >= count, deadline_s), self.verbs
