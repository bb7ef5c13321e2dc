"""The port that a node listens on, where its owner wants one, and the address by which others reach it."""

from __future__ import annotations

import logging

from nodes.facts import address_towards
from nodes.options import NodeOptions, UsageError
from nodes.server import NodeServer

logger = logging.getLogger(__name__)


class Listening:
    """`server` is None where the node only reaches out."""

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._bound = "", 0  # address and port of the server
        self.server: NodeServer | None = None

    def open(self) -> None:
        """Opens the port, if there is to be one. Raises UsageError."""
        if self._options.listen is None:
            return
        host, port = self._options.listen
        server = NodeServer(host, port)
        try:
            self._bound = server.start()
        except OSError as error:
            raise UsageError(f"--listen {host}:{port}: {error.strerror or error}") from None
        self.server = server
        logger.info("Listening on %s", self._own_address())
        if self._options.public_url:
            logger.info("Others reach it at %s", self._options.public_url)

    def endpoint(self) -> str | None:
        """Where others reach the port: as its owner says, else at this machine's address of now."""
        return (self._options.public_url or self._own_address()) if self.server else None

    def shut(self) -> None:
        """Whoever asks is told that the node is loading."""
        if self.server:
            self.server.api = None

    def close(self, deadline_s: float) -> None:
        if self.server:
            self.server.stop(deadline_s)

    def _own_address(self) -> str:
        host, port = self._bound
        if host in ("0.0.0.0", "::"):
            host = address_towards(self._options.tracker_url)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
