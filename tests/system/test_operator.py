"""What an operator does while a chat runs: a new key that nobody notices, the chat's end, and a node's connection's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.lab.admin import Operator
from tests.lab.processes import Process
from tests.lab.site import Site

MODEL, NAME = "tiny-operated", "operated"
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "logit_bias": {"2": -100},  # its end token
    "max_tokens": 3500,  # more than are read
    "stream": True,
}
REGISTRATION = {
    "name": NAME,
    "model": {"name": MODEL, "fingerprint": "ab" * 32, "num_layers": 7, "hidden_size": 64, "context_length": 64},
    "start_layer": 0,
    "end_layer": 7,
    "protocol_version": 1,
    "wire_versions": [1],
}


@pytest.fixture(scope="module")
def node(site: Site, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("operated") / MODEL
    folder.symlink_to(tiny, target_is_directory=True)
    site.model(MODEL, wire_dtype="float32")
    started = site.start_node(NAME, folder, "0:7", "--dtype", "float32", "--drafts", "off")
    with site.serving(MODEL, [started]):
        yield started


@pytest.fixture(scope="module")
def operator(site: Site, node: Process) -> Operator:
    return Operator(site, "one-who-operates")


def pk_of(site: Site, statement: str, *values: str) -> int:
    [[pk]] = site.rows(statement, *values)
    return int(pk)


def key_id(site: Site) -> str:
    [[told]] = site.rows("SELECT key_id FROM tracker_node WHERE name = ?", NAME)
    return str(told)


@contextmanager
def long_chat(site: Site) -> Iterator[tuple[Iterator[str], str]]:
    """Its lines after the first, and its completion's id."""
    with site.post("/v1/chat/completions", ASKED, stream=True) as response:
        lines = filter(None, response.iter_lines(decode_unicode=True))
        completion_id = re.search(r'"id": ?"([^"]+)"', next(lines))
        assert completion_id
        yield lines, completion_id[1]


def test_a_node_gets_a_new_key_amid_a_chat(site: Site, node: Process, operator: Operator) -> None:
    old, pk = site.node_key(NAME), pk_of(site, "SELECT id FROM tracker_node WHERE name = ?", NAME)
    with long_chat(site) as (lines, _):
        assert f"About to get a new key: {NAME}." in operator.act("node", "rotate_key", pk, reason="once a year")
        while (new := site.node_key(NAME)) == old or key_id(site) != new.partition(".")[0]:
            assert "error" not in next(lines, "")  # tokens come on, and time passes
        bearer = {"Authorization": f"Bearer {old}"}
        refused = requests.post(f"{site.local_url}/api/nodes/register", json=REGISTRATION, headers=bearer, timeout=20)
        assert refused.status_code == 401
        rest = list(lines)
        assert not [line for line in rest if "error" in line]
    assert node.is_running


def test_an_operator_ends_a_chat(site: Site, node: Process, operator: Operator) -> None:
    with long_chat(site) as (lines, completion_id):
        session = pk_of(site, "SELECT id FROM tracker_chatsession WHERE completion_id = ?", completion_id)
        assert "Cancelled: " in operator.act("chatsession", "cancel", session, reason="it talks too much")
        assert "An operator of this site ended this chat." in "".join(lines)
    assert node.is_running


def test_a_disconnected_node_comes_back_with_its_new_key(site: Site, node: Process, operator: Operator) -> None:
    said = operator.post(f"/admin/relay/{site.peer_id(NAME)}/disconnect/", {"reason": "it hangs"})
    assert f"Disconnected: {NAME}." in said
    node.wait_for(r"an operator of this site closed this connection")
    node.wait_for(r"(?s)closed this connection.*Connected to the relay")
    log = operator.page("/admin/tracker/auditentry/")
    assert all(reason in log for reason in ("once a year", "it talks too much", "it hangs"))
