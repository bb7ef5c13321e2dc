"""What a caller and a peer read, typed: the tests say which kind they expect."""

from __future__ import annotations

import websocket

from relay import envelope, wire


def take(peer: websocket.WebSocket) -> wire.Request:
    """The next request that the peer is asked."""
    asked = told(peer)
    assert isinstance(asked, wire.Request)
    return asked


def told(peer: websocket.WebSocket) -> wire.Request | wire.Cancel:
    text = peer.recv()
    assert isinstance(text, str)
    return envelope.decode_peer(text)


def hear(ws: websocket.WebSocket) -> wire.Response:
    """The next message: an answer whole, or an error of the socket."""
    text = ws.recv()
    assert isinstance(text, str)
    return response(envelope.decode_answer(text))


def response(answer: object) -> wire.Response:
    assert isinstance(answer, wire.Response)
    return answer


def end(ws: websocket.WebSocket) -> tuple[int, int]:
    """The status of the error frame and the close code with which a socket ends."""
    return hear(ws).status, int.from_bytes(ws.recv_data()[1][:2], "big")


def die(peer: websocket.WebSocket) -> None:
    """As after kill -9: the connection ends without a word."""
    assert peer.sock is not None
    peer.sock.close()
