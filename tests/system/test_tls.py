"""The whole main path over https and wss, behind a TLS terminator whose certificate a private authority signed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from nodes.sockets import tls_context
from tests.lab.askers import ask_for
from tests.lab.processes import free_port
from tests.lab.site import Site, assemble, events
from tests.lab.terminator import Terminator


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Terminator]]:
    folder, port = tmp_path_factory.mktemp("tls"), free_port()
    site = Site(folder / "site", public_url=f"https://127.0.0.1:{port}", TRUSTED_PROXIES="127.0.0.1")
    with Terminator(folder / "tls", site.port, port) as terminator, site:
        yield site, terminator


def test_a_chat_over_https_through_nodes_connected_by_wss(
    secured: tuple[Site, Terminator], tmp_path: Path, smollm: Path
) -> None:
    site, tls = secured
    link = tmp_path / "smollm-tls"
    link.symlink_to(smollm, target_is_directory=True)
    with site.mesh(link, ["0:13", "13:30"], "--relay-only", "--ca-file", str(tls.ca_file)) as nodes:
        question = {"role": "user", "content": "What is the capital of France?"}
        body: dict[str, Any] = {"model": link.name, "messages": [question], "temperature": 0, "max_tokens": 20}
        body |= {"stream": True, "meshnet": {"trace": True}}
        with requests.post(
            f"{site.url}/v1/chat/completions",
            json=body,
            headers=site.headers,
            verify=str(tls.ca_file),
            stream=True,
            timeout=60,
        ) as response:
            answer = assemble(events(response))
    assert all("wss://" in node.output for node in nodes)
    assert "Paris" in answer.text
    assert answer.paths == ["local", "tunnel"]


def test_eight_askers_on_one_wss_tunnel_get_each_their_own_answers(secured: tuple[Site, Terminator]) -> None:
    """Where a reader and a writer in one TLS socket corrupt it, this fails."""
    site, tls = secured
    outcome = ask_for(site, tls_context(str(tls.ca_file)), num_askers=8, duration_s=3)
    assert outcome.failures == []
    assert outcome.num_wrong == 0
    assert len(outcome.took_ms) > 100


def test_a_node_that_does_not_trust_the_certificate_says_so_and_stops(
    secured: tuple[Site, Terminator], tiny: Path
) -> None:
    node = secured[0].start_node("doubting", tiny, "0:7")
    assert node.wait(60) == 1
    assert "certificate" in node.output.lower()
    assert "--ca-file" in node.output
