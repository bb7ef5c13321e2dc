"""One TLS socket under both directions at once: where a reader and a writer in one of them corrupt it, this fails."""

from __future__ import annotations

from pathlib import Path

from nodes.sockets import tls_context
from tests.lab.askers import ask_for
from tests.lab.processes import free_port
from tests.lab.site import Site
from tests.lab.terminator import Terminator


def test_eight_askers_on_one_wss_tunnel_get_each_their_own_answers(tmp_path: Path) -> None:
    port = free_port()
    site = Site(tmp_path / "site", public_url=f"https://127.0.0.1:{port}", TRUSTED_PROXIES="127.0.0.1")
    with Terminator(tmp_path / "tls", site.port, port) as terminator, site:
        outcome = ask_for(site, tls_context(str(terminator.ca_file)), num_askers=8, duration_s=3)
    assert outcome.failures == []
    assert outcome.num_wrong == 0
    assert len(outcome.took_ms) > 100
