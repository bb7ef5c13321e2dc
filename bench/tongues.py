"""How the two ends of a relayed request speak, and the echo's client: each opens sockets, encodes and decodes."""

from __future__ import annotations

import json
from typing import Any, Protocol

import websocket

from bench.sockets import open_socket, read
from relay import codec, envelope, headers, wire

HEADERS = {  # a step's
    "content-type": "application/octet-stream",
    headers.SESSION: "0123456789abcdef0123456789abcdef",
    headers.EPOCH: "0",
    headers.STEP: "17",
    headers.POSITION: "42",
    headers.SHAPE: "1,1,576",
    headers.DTYPE: "bfloat16",
    headers.START_LAYER: "15",
    headers.END_LAYER: "30",
}
DEADLINE_MS = 30_000


def step(body: bytes, request_id: str = "1", path: str = "/forward", deadline_ms: int = DEADLINE_MS) -> wire.Request:
    return wire.Request(request_id, "POST", path, HEADERS, body, deadline_ms=deadline_ms)


def same_again(asked: wire.Request) -> wire.Response:
    return wire.Response(asked.request_id, 200, {"content-type": HEADERS["content-type"]}, asked.body)


class Tongue(Protocol):
    """`url` is the server's, like ws://127.0.0.1:8000. What decodes gives None for what is the socket's own matter."""

    opcode: int

    def open_caller(self, url: str, caller_id: str, peer_id: str) -> Any: ...

    def open_peer(self, url: str, peer_id: str) -> Any: ...

    def encode(self, frame: wire.Frame, to: str = "") -> bytes | str: ...

    def decode_at_peer(self, ws: Any, message: bytes) -> wire.Request | wire.Cancel | None: ...

    def decode_at_caller(self, ws: Any, message: bytes) -> wire.Answer | None: ...


class Echo:
    opcode = websocket.ABNF.OPCODE_BINARY

    def open_caller(self, url: str, caller_id: str, peer_id: str) -> Any:
        return open_socket(url)

    def open_peer(self, url: str, peer_id: str) -> Any:
        raise NotImplementedError("an echo has no peer")

    def encode(self, frame: wire.Frame, to: str = "") -> bytes | str:
        assert isinstance(frame, wire.Request)
        return frame.body

    def decode_at_peer(self, ws: Any, message: bytes) -> wire.Request | wire.Cancel | None:
        raise NotImplementedError("an echo has no peer")

    def decode_at_caller(self, ws: Any, message: bytes) -> wire.Answer | None:
        return wire.Response("1", 200, {}, message)


class V1:
    """JSON text: /ws for the peer, /rpc/<peer_id> for the caller."""

    opcode = websocket.ABNF.OPCODE_TEXT

    def open_caller(self, url: str, caller_id: str, peer_id: str) -> Any:
        return open_socket(f"{url}/rpc/{peer_id}", caller_id)

    def open_peer(self, url: str, peer_id: str) -> Any:
        ws = open_socket(f"{url}/ws", peer_id)
        ws.send(json.dumps({"type": "register", "peer_id": peer_id}))
        answer = json.loads(read(ws))
        assert answer["type"] == "registered", answer
        return ws

    def encode(self, frame: wire.Frame, to: str = "") -> bytes | str:
        return envelope.encode(frame)

    def decode_at_peer(self, ws: Any, message: bytes) -> wire.Request | wire.Cancel | None:
        return envelope.decode_peer(message.decode())

    def decode_at_caller(self, ws: Any, message: bytes) -> wire.Answer | None:
        return envelope.decode_answer(message.decode())


class V2:
    """Binary frames on /ws, where both ends are peers; both answer the relay's PING."""

    opcode = websocket.ABNF.OPCODE_BINARY

    def open_caller(self, url: str, caller_id: str, peer_id: str) -> Any:
        return self.open_peer(url, caller_id)

    def open_peer(self, url: str, peer_id: str) -> Any:
        ws = open_socket(f"{url}/ws", peer_id, [wire.SUBPROTOCOL])
        ws.send(codec.encode_frame(wire.Hello(peer_id)), self.opcode)
        welcome = codec.decode_frame(read(ws)).frame
        assert isinstance(welcome, wire.Welcome), welcome
        return ws

    def encode(self, frame: wire.Frame, to: str = "") -> bytes | str:
        return codec.encode_frame(frame, to)

    def decode_at_peer(self, ws: Any, message: bytes) -> wire.Request | wire.Cancel | None:
        frame = self._decode(ws, message)
        assert frame is None or isinstance(frame, wire.Request | wire.Cancel), frame
        return frame

    def decode_at_caller(self, ws: Any, message: bytes) -> wire.Answer | None:
        frame = self._decode(ws, message)
        if isinstance(frame, wire.Error):
            return wire.error_response(frame.request_id, frame.code, frame.message)
        assert frame is None or isinstance(frame, wire.Answer), frame
        return frame

    def _decode(self, ws: Any, message: bytes) -> wire.Frame | None:
        frame = codec.decode_frame(message).frame
        if isinstance(frame, wire.Ping):
            ws.send(codec.encode_frame(wire.Pong(frame.n)), self.opcode)
            return None
        return None if isinstance(frame, wire.Drain) else frame
