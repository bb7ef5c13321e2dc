"""The whole main path over https and wss, behind a TLS terminator whose certificate a private authority signed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import requests

from tests.lab.processes import free_port
from tests.lab.site import Site, assemble, events
from tests.lab.terminator import Terminator


def test_a_chat_over_https_through_nodes_connected_by_wss(tmp_path: Path, smollm: Path) -> None:
    port = free_port()
    site = Site(tmp_path / "site", public_url=f"https://127.0.0.1:{port}", TRUSTED_PROXIES="127.0.0.1")
    link = tmp_path / "smollm-tls"
    link.symlink_to(smollm, target_is_directory=True)
    with Terminator(tmp_path / "tls", site.port, port) as tls, site:
        ca_file = ("--ca-file", str(tls.ca_file))
        with site.mesh(link, ["0:13", "13:30"], "--relay-only", *ca_file) as nodes:
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


def test_a_node_that_does_not_trust_the_certificate_says_so_and_stops(tmp_path: Path, tiny: Path) -> None:
    port = free_port()
    site = Site(tmp_path / "site", public_url=f"https://127.0.0.1:{port}", TRUSTED_PROXIES="127.0.0.1")
    with Terminator(tmp_path / "tls", site.port, port), site:
        node = site.start_node("doubting", tiny, "0:7")
        assert node.wait(60) == 1
        assert "certificate" in node.output.lower()
        assert "--ca-file" in node.output
