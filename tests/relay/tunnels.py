"""The node's end of a version 2 socket, written from relay/wire.py's page: HELLO, PONG, and frames as they come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import websocket

from relay import codec, wire
from relay.codec import Addressed
from relay.wire import Hello, Ping, Pong, Request, Welcome

if TYPE_CHECKING:
    from tests.relay.conftest import Relay


class Tunnel:
    """One socket. `hear` answers PINGs on the way; nothing reads while nobody calls it."""

    def __init__(self, relay: Relay, path: str, peer_id: str, **options: Any) -> None:
        self.peer_id = peer_id
        self.ws = relay.connect(path, relay.credential(peer_id), subprotocols=[wire.SUBPROTOCOL], **options)
        assert self.ws.subprotocol == wire.SUBPROTOCOL
        self.pings: list[int] = []
        self.welcome = Welcome("", 0, {}, "")

    @classmethod
    def register(cls, relay: Relay, peer_id: str) -> Tunnel:
        tunnel = cls(relay, "/ws", peer_id)
        tunnel.say(Hello(peer_id))
        tunnel._take_welcome()
        return tunnel

    @classmethod
    def rpc(cls, relay: Relay, to: str, peer_id: str) -> Tunnel:
        tunnel = cls(relay, f"/rpc/{to}", peer_id)
        tunnel._take_welcome()
        return tunnel

    def say(self, frame: wire.Frame, to: str = "") -> None:
        self.ws.send_binary(codec.encode_frame(frame, to=to))

    def ask(self, request_id: str, to: str = "", body: bytes = b"", **fields: Any) -> None:
        self.say(Request(request_id, "POST", "/forward", {}, body, **fields), to)

    def hear(self) -> Any:
        return self.addressed().frame

    def addressed(self) -> Addressed:
        while True:
            heard = self.next()
            if not isinstance(heard.frame, Ping):
                return heard
            self.pings.append(heard.frame.n)
            self.say(Pong(heard.frame.n))

    def next(self) -> Addressed:
        """Whatever comes; a PING isn't answered."""
        data = self.ws.recv()
        assert isinstance(data, bytes), data
        return codec.decode_frame(data)

    def take(self) -> Request:
        """The next request that the peer is asked."""
        frame = self.hear()
        assert isinstance(frame, Request), frame
        return frame

    def end(self) -> tuple[wire.Error, int]:
        """The error and the close code with which the socket ends, whatever came before."""
        while not isinstance(frame := self.hear(), wire.Error) or frame.request_id:
            pass
        return frame, int.from_bytes(self.ws.recv_data()[1][:2], "big")

    def listen_for(self, seconds: float) -> None:
        """Answers PINGs for so long; anything else is an error."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.ws.settimeout(left)
            try:
                frame = self.next().frame
            except websocket.WebSocketTimeoutException:
                break
            assert isinstance(frame, Ping), frame
            self.pings.append(frame.n)
            self.say(Pong(frame.n))
        self.ws.settimeout(10)

    def _take_welcome(self) -> None:
        frame = self.hear()
        assert isinstance(frame, Welcome), frame
        self.welcome = frame
