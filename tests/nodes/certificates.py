"""TLS for tests of nodes: a server's context and a client's that trusts it and nothing else."""

from __future__ import annotations

import ssl
from pathlib import Path

from nodes.sockets import tls_context
from tests.lab.terminator import make_certificates


def tls_pair(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(server's, client's)."""
    folder.mkdir(exist_ok=True)
    make_certificates(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    return server, tls_context(str(folder / "ca.pem"))
