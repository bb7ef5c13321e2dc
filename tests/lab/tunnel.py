"""Version 2 of the wire as tests speak it: binary frames, on `/rpc/<peer_id>` or, asking and answering, on `/ws`.

The frames are relay.wire's; the socket is websocket-client's. Nothing of the relay's or of a node's machinery.
"""

from __future__ import annotations

import json

from relay import codec, wire
from tests.lab import ends
from tests.lab.ends import Envelope


class Frames:
    subprotocols = [wire.SUBPROTOCOL]

    def greeting(self, peer_id: str) -> bytes:
        return codec.encode_frame(wire.Hello(peer_id))

    def encode(self, envelope: Envelope, body: bytes | str) -> bytes:
        data = body.encode() if isinstance(body, str) else body
        return codec.encode_frame(_frame(envelope, data), to=envelope.get("to", ""))

    def decode(self, message: bytes) -> tuple[Envelope, bytes]:
        frame, _, sender = codec.decode_frame(message)
        match frame:
            case wire.Request(request_id, method, path, headers, body, sender, deadline_ms):
                asked = {"method": method, "path": path, "headers": headers, "from": sender, "deadline_ms": deadline_ms}
                return {"type": "relay-http-request", "request_id": request_id} | asked, body
            case wire.Response(request_id, status, headers, body, stream):
                answer = {"request_id": request_id, "status": status, "headers": headers, "from": sender}
                return answer | ({"stream": True} if stream else {}), body
            case wire.Chunk(request_id, data):
                return {"request_id": request_id}, data
            case wire.End(request_id):
                return {"request_id": request_id, "end": True}, b""
            case wire.Error(request_id, code, text):
                error = {"error": {"code": code, "message": text}}
                return {"request_id": request_id, "status": wire.STATUS[code]}, json.dumps(error).encode()
            case wire.Cancel(request_id):
                return {"type": "relay-http-cancel", "request_id": request_id}, b""
            case wire.Welcome(peer_id, generation, limits, relay_addr):
                known = {"generation": generation, "limits": limits, "relay_addr": relay_addr}
                return {"type": "registered", "peer_id": peer_id} | known, b""
            case wire.Ping(n):
                return {"type": "ping", "n": n}, b""
            case wire.Drain(reconnect_in_ms, spread_ms):
                return {"type": "drain", "reconnect_in_ms": reconnect_in_ms, "spread_ms": spread_ms}, b""
        return {"type": type(frame).__name__.lower()}, b""

    def reply(self, envelope: Envelope) -> bytes | None:
        return codec.encode_frame(wire.Pong(envelope["n"])) if envelope.get("type") == "ping" else None


class Caller(ends.Caller):
    language = Frames()


class Peer(ends.Peer):
    language = Frames()


class Asker(ends.Asking, Peer):
    """A peer that asks another over its own socket, as a node does."""

    def __init__(self, relay_url: str, peer_id: str, credential: str, to: str, ca_file: str | None = None) -> None:
        super().__init__(relay_url, peer_id, credential, ca_file=ca_file)
        self.to = to


def _frame(envelope: Envelope, body: bytes) -> wire.Frame:
    request_id = envelope["request_id"]
    if "method" in envelope:
        method, path, headers = envelope["method"], envelope["path"], envelope["headers"]
        return wire.Request(request_id, method, path, headers, body, deadline_ms=envelope.get("deadline_ms"))
    return wire.Response(request_id, envelope["status"], envelope["headers"], body)
