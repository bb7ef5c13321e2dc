from __future__ import annotations

import base64
import hashlib
import socket
import struct
import threading

from tests.lab.websockets import connect

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
CLOSE = 0x88


def answer(listener: socket.socket) -> socket.socket:
    """A server's end, once it has taken the handshake."""
    end, _ = listener.accept()
    asked = end.recv(4096)
    key = next(line.split()[1] for line in asked.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    accepted = base64.b64encode(hashlib.sha1(key + GUID).digest())
    end.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
    end.sendall(b"Sec-WebSocket-Accept: " + accepted + b"\r\n\r\n")
    return end


def test_a_close_is_heard_though_the_other_side_has_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends: list[socket.socket] = []
        server = threading.Thread(target=lambda: ends.append(answer(listener)))
        server.start()
        ws = connect(f"ws://127.0.0.1:{listener.getsockname()[1]}", timeout=10)
        server.join(10)
        [end] = ends
        end.sendall(struct.pack("!BBH", CLOSE, 2, 4409))
        end.close()
        assert ws.sock
        ws.sock.shutdown(socket.SHUT_WR)  # whatever is sent from now on fails
        assert struct.unpack("!H", ws.recv_data()[1])[0] == 4409
        ws.shutdown()  # type: ignore[no-untyped-call]
