"""The ways to another node: `TunnelHop` on this node's own connection, `RelayHop` on one for each hop, `DirectHop`.

Each asks one thing at a time and is used by one thread. The last two keep their connection for the session's next steps
and open it anew when it has ended. Steps are numbered, so a request may be sent twice.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from nodes.connection import Connection, ConnectionFailed, origin_of
from nodes.deadline import Deadline
from nodes.keys import Key
from nodes.options import DEFAULT_PATIENCE_S
from nodes.sockets import DeadlineSocket, dial
from nodes.tunnel import Tunnel
from relay import envelope, wire
from relay.headers import Hop

CONNECT_DEADLINE_S = 5.0


class HopError(Exception):
    """This path to the node failed; another may work. `is_cut`: the connection ended, a new one may serve.
    `is_late`: there was no answer in time. `code`: of an answer that says so."""

    def __init__(self, cause: str, *, is_cut: bool = False, is_late: bool = False, code: str = "") -> None:
        super().__init__(cause)
        self.cause, self.is_cut, self.is_late, self.code = cause, is_cut, is_late, code


@dataclass(frozen=True, slots=True)
class HopAnswer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class Path(Protocol):
    """One way to one node."""

    name: str  # as it is recorded: "tunnel", "relay" or "direct"

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline
    ) -> HopAnswer: ...

    def close(self) -> None: ...


class TunnelHop:
    name = "tunnel"

    def __init__(self, tunnel: Tunnel, peer_id: str) -> None:
        self._tunnel, self._peer_id = tunnel, peer_id

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> HopAnswer:
        """The node's answer, or the relay's about it. Raises HopError when there is none."""
        _check_size(body)
        try:
            answer = self._tunnel.ask(self._peer_id, method, target, headers, body, deadline)
        except TimeoutError:
            raise HopError("no answer through the tunnel in time", is_late=True) from None
        except ConnectionFailed as error:
            raise HopError(error.cause, is_cut=True) from None
        except wire.WireError as error:
            raise HopError(f"{error.code}: {error.message}") from None
        return HopAnswer(answer.status, answer.headers, answer.body)

    def close(self) -> None:
        """The connection is the node's own and stays."""


class RelayHop:
    name = "relay"

    def __init__(self, relay_addr: str, node_key: Key, tls: ssl.SSLContext) -> None:
        self._relay_addr, self._node_key, self._tls = relay_addr, node_key, tls
        self._connection: Connection | None = None
        self._num_asked = 0

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> HopAnswer:
        """The node's answer, or the relay's about it. Raises HopError when there is none."""
        _check_size(body)
        self._num_asked += 1
        request_id = f"{self._num_asked:x}"
        deadline_ms = max(1, int(deadline.left_s() * 1000))
        request = wire.Request(request_id, method, target, headers, body, deadline_ms=deadline_ms)
        try:
            connection = self._kept() or self._opened(deadline)
            connection.send(envelope.encode(request), deadline)
            return self._answer(connection, request_id, deadline)
        except TimeoutError:
            self.close()  # which cancels the request at the node: the attempt has ended
            raise HopError("no answer through the relay in time", is_late=True) from None
        except ConnectionFailed as error:
            self.close()
            raise HopError(error.cause, is_cut=True) from None
        except wire.WireError as error:
            self.close()
            raise HopError(f"the relay's answer can't be read: {error.message}") from None

    def close(self) -> None:
        if self._connection:
            self._connection.shut_down()
            self._connection.close()
            self._connection = None

    def _kept(self) -> Connection | None:
        """The connection of the last step if it is still there; pings that came in between are answered."""
        connection = self._connection
        try:
            while connection and connection.has_input():
                connection.receive(Deadline.after(1))
        except (ConnectionFailed, TimeoutError):
            self.close()
            return None
        return connection

    def _opened(self, deadline: Deadline) -> Connection:
        connection = Connection(self._relay_addr, str(self._node_key), self._tls)
        connection.open(deadline.at_most(CONNECT_DEADLINE_S))
        self._connection = connection
        return connection

    def _answer(self, connection: Connection, request_id: str, deadline: Deadline) -> HopAnswer:
        while True:
            text = connection.receive(deadline)
            if not isinstance(text, str):
                continue
            answer = envelope.decode_answer(text)
            if answer.request_id == "" and isinstance(answer, wire.Response):  # of the socket as a whole
                raise ConnectionFailed(": ".join(wire.error_of(answer.status, answer.body)), answer.status)
            if answer.request_id == request_id and isinstance(answer, wire.Response):
                return HopAnswer(answer.status, answer.headers, answer.body)


class DirectHop:
    name = "direct"

    def __init__(self, endpoint: str, tls: ssl.SSLContext) -> None:
        self._endpoint, self._tls = endpoint, tls
        self._http: http.client.HTTPConnection | None = None
        self._socket: DeadlineSocket | None = None

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> HopAnswer:
        """The node's answer. Raises HopError."""
        _check_size(body)
        is_new = self._http is None
        try:
            return self._ask(method, target, headers, body, deadline)
        except TimeoutError:
            self.close()
            raise HopError(f"no answer from {self._endpoint} in time", is_late=True) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            if is_new:
                raise HopError(f"{self._endpoint}: {error or type(error).__name__}", is_cut=True) from None
        return self.ask(method, target, headers, body, deadline)  # the node had closed an idle connection

    def close(self) -> None:
        if self._http:
            self._http.close()
        self._http = self._socket = None

    def _ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> HopAnswer:
        if self._http is None or self._socket is None:
            self._http, self._socket = self._opened(deadline.at_most(CONNECT_DEADLINE_S))
        self._socket.read_deadline = self._socket.write_deadline = deadline
        self._http.request(method, target, body, dict(headers))
        response = self._http.getresponse()
        content = response.read(wire.MAX_BODY_BYTES + 1)
        if len(content) > wire.MAX_BODY_BYTES:
            raise ValueError(f"the answer has more than {wire.MAX_BODY_BYTES} bytes")
        if response.length:  # http.client says nothing when it was asked for a number of bytes
            raise ConnectionError("the answer ended before its length")
        if response.will_close:
            self.close()
        return HopAnswer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)

    def _opened(self, deadline: Deadline) -> tuple[http.client.HTTPConnection, DeadlineSocket]:
        """No proxy of the environment comes in between, and redirects aren't followed."""
        parts = urlsplit(self._endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an http:// or https:// address")
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        connection = http.client.HTTPConnection(parts.hostname, port)
        sock = dial(parts.hostname, port, self._tls if is_tls else None, deadline)
        connection.sock = sock  # has what http.client uses of one
        return connection, sock


@dataclass(frozen=True)
class Dialler:
    """Makes the paths to a hop. The node key goes to the relay this node registered with, and nowhere else."""

    relay_url: str | None
    node_key: Key
    tls: ssl.SSLContext
    tunnel: Tunnel | None = None  # where this node speaks version 2 of the wire
    prefer: str = "relay"  # options.PREFERENCES
    patience_s: float = DEFAULT_PATIENCE_S  # for one step of a node, while nothing says that it is slow

    def tunnel_hop(self, hop: Hop) -> TunnelHop | None:
        """None where the hop, this node or its connection of now speaks version 1 only. Its relay must be ours."""
        if self.tunnel is None or not self.tunnel.is_open or 2 not in hop.wire:
            return None
        return TunnelHop(self.tunnel, hop.peer_id)

    def relay_hop(self, relay_addr: str) -> RelayHop:
        try:
            is_ours = self.relay_url is not None and origin_of(relay_addr) == origin_of(self.relay_url)
        except ValueError as error:
            raise HopError(str(error)) from None
        if not is_ours:
            raise HopError("its relay isn't the one this node registered with")
        return RelayHop(relay_addr, self.node_key, self.tls)

    def direct_hop(self, endpoint: str) -> DirectHop:
        return DirectHop(endpoint, self.tls)


def _check_size(body: bytes) -> None:
    """Before anything is sent: far above the limit the relay would end the connection, and all that is on it."""
    if len(body) > wire.MAX_BODY_BYTES:
        raise HopError(f"too_large: the body has {len(body)} bytes; a node takes {wire.MAX_BODY_BYTES}")
