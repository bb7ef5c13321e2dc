"""A chat over private networks behind real NAT, whose nodes nobody can reach, and which goes on when that NAT fails.

Three homes on a small internet (tests/lab/internet.py). One has the head, one the two other nodes behind the same
address; the third a second head. What goes wrong goes wrong in the middle of a generation, on a mesh that all tests
share, and the text must be what it is without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.internet import Home, Internet, reaches
from tests.lab.namespaces import refusal
from tests.lab.publicsite import PublicSite
from tests.lab.site import Answer, assemble, events

PORT = 7002
PROMPT = "Tell me about the sea."
NUM_TOKENS = 300
FAULT_AT = 20  # tokens that the client has seen by then
PING_S = 1.0  # the shipped one is ten times that


@dataclass
class Mesh:
    site: PublicSite
    model: str
    homes: dict[str, Home]  # by the node that lives there

    def chat(self, disturb: Callable[[], None] | None = None) -> Answer:
        """`disturb` is called when some tokens have come, and the answer isn't complete when it returns."""
        body = {"model": self.model, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0}
        body |= {"max_tokens": NUM_TOKENS, "stream": True, "meshnet": {"trace": True}}
        with self.site.post("/v1/chat/completions", body, stream=True) as response:
            assert response.status_code == 200, response.text
            return assemble(disturbed(events(response), disturb))


def disturbed(stream: Iterator[dict[str, Any]], disturb: Callable[[], None] | None) -> Iterator[dict[str, Any]]:
    num_tokens = 0
    for event in stream:
        yield event
        num_tokens += len(event.get("meshnet", {}).get("ids", []))
        if disturb and num_tokens >= FAULT_AT:
            assert num_tokens < NUM_TOKENS / 2
            disturb()
            disturb = None


@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    if reason := refusal():
        pytest.skip(reason)
    with Internet() as made:
        yield made


@contextmanager
def mesh(internet: Internet, folder: Path, model: Path, *, tls: bool = False) -> Iterator[Mesh]:
    site = PublicSite(folder, internet, tls=tls, RELAY_PING_S=str(PING_S), TRUSTED_PROXIES="127.0.0.1")
    family = internet.home()
    homes = {"head": internet.home(), "middle": family, "tail": family}
    with site:
        site.model(model.name, wire_dtype="float32")
        nodes = []
        for name, layers in (("head", "0:3"), ("middle", "3:5"), ("tail", "5:7")):
            site.places[name] = homes[name].machine()
            reach = ("--relay-only",) if name == "head" else ("--listen", f"0.0.0.0:{PORT}")
            options = (*reach, "--dtype", "float32", "--drafts", "off", *site.trust)
            nodes.append(site.start_node(name, model, layers, *options, MESHNET_RELAY_PING_S=str(PING_S)))
        with site.serving(model.name, nodes):
            yield Mesh(site, model.name, homes)


@pytest.fixture(scope="module")
def private(internet: Internet, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with mesh(internet, tmp_path_factory.mktemp("private"), tiny) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(private: Mesh) -> Answer:
    return private.chat()


def test_it(private: Mesh, undisturbed: Answer) -> None:
    print(undisturbed)
    import time
    t = time.time()
    print(private.chat().finish_reason, time.time() - t)
    for n in private.site.nodes:
        print(n.output)
    print(private.site.log())
    print(private.homes["tail"].connections())
    assert 0
