"""A caller and a peer written from the decision record of relay hops alone: websocket-client, json and base64.

Credentials and tickets are opaque strings here. Nothing of Meshnet is imported, and nothing may be: these two stand
for programs of other people.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from typing import Any

import websocket

Envelope = dict[str, Any]


class Caller:
    """Opens `wss://<relay>/rpc/<peer_id>` and sends one envelope at a time."""

    def __init__(self, relay_addr: str, credential: str, ca_file: str | None = None, timeout_s: float = 20) -> None:
        context = ssl.create_default_context(cafile=ca_file) if relay_addr.startswith("wss") else None
        self._socket = websocket.create_connection(
            relay_addr,
            header=[f"Authorization: Bearer {credential}"],
            timeout=timeout_s,
            sslopt={"context": context} if context else None,
        )

    def call(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[Envelope, bytes]:
        """(answer, its body's bytes); a streamed answer's chunks are joined."""
        envelope = {"request_id": "ab12", "method": method, "path": path, "headers": headers}
        self._socket.send(json.dumps(envelope | {"body_base64": base64.b64encode(body).decode()}))
        answer: Envelope = json.loads(self._socket.recv())
        data = _bytes_of(answer, "body")
        while answer.get("stream"):
            piece = json.loads(self._socket.recv())
            if piece.get("end"):
                break
            data += _bytes_of(piece, "chunk")
        return answer, data

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Peer:
    """Keeps `wss://<relay>/ws` open and answers each request with what `serve` gives: (status, headers, body)."""

    def __init__(
        self,
        relay_url: str,
        peer_id: str,
        credential: str,
        serve: Callable[[Envelope, bytes], tuple[int, dict[str, str], bytes | str]],
    ) -> None:
        self._serve = serve
        self._socket = websocket.create_connection(
            relay_url, header=[f"Authorization: Bearer {credential}"], timeout=20
        )
        self._socket.send(json.dumps({"type": "register", "peer_id": peer_id}))
        self.welcome: Envelope = json.loads(self._socket.recv())
        self.requests: list[Envelope] = []
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                text = self._socket.recv()
            except (websocket.WebSocketException, OSError):
                return
            if not text:
                return
            envelope = json.loads(text)
            if envelope.get("type") == "relay-http-request":
                self.requests.append(envelope)
                status, headers, body = self._serve(envelope, _bytes_of(envelope, "body"))
                answer: Envelope = {"request_id": envelope["request_id"], "status": status, "headers": headers}
                if isinstance(body, str):
                    answer["body"] = body
                else:
                    answer["body_base64"] = base64.b64encode(body).decode()
                self._socket.send(json.dumps(answer))

    def close(self) -> None:
        self._socket.shutdown()  # type: ignore[no-untyped-call]
        self._thread.join(5)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _bytes_of(message: Envelope, key: str) -> bytes:
    if f"{key}_base64" in message:
        return base64.b64decode(message[f"{key}_base64"])
    return str(message.get(key, "")).encode()
