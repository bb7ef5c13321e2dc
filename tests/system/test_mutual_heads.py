"""Two nodes, each the head of one route and a hop of the other's, with as many chats as either takes: all finish.

Each holds all layers, so the site would send no chat over both. The routes are written here, with the site's own code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from nodes.api import MAX_CHATS
from relay import headers as names
from tests.lab.processes import free_port
from tests.lab.site import Site, events

NUM_TOKENS = 20
NODES = ("mutual-one", "mutual-two")
WRITE_SESSIONS = """
import json, secrets
from datetime import timedelta
from django.utils import timezone
from relay.headers import encode_route
from tracker import epochs
from tracker.models import ChatSession, LanguageModel, Node
from tracker.routing import RouteElement
now, told = timezone.now(), []
soon = now + timedelta(minutes=10)
model = LanguageModel.objects.get(name={model!r})
for route in {routes!r}:
    nodes = [Node.objects.get(name=name) for name in route]
    elements = [RouteElement(node.peer_id, *layers) for node, layers in zip(nodes, [(0, 3), (3, 7)])]
    hops = list(zip(nodes, elements))
    session = ChatSession.objects.create(
        session_id=secrets.token_hex(16), completion_id=secrets.token_hex(16), model=model, seed=1,
        max_tokens={num_tokens}, started=now, deadline=soon, last_news=soon,
    )
    epochs.write_hops(session, hops)
    after = encode_route([epochs.hop_of(node, element, now) for node, element in hops[1:]])
    told.append([session.session_id, epochs.ticket_for(session, hops), after])
print("TOLD", json.dumps(told))
"""


@dataclass(frozen=True)
class Order:
    """One chat at one of the nodes, as the tracker would ask it."""

    url: str
    prompt: str
    headers: dict[str, str]

    def text(self) -> str:
        body = {"messages": [{"role": "user", "content": self.prompt}], "max_tokens": NUM_TOKENS, "temperature": 0}
        url = f"{self.url}/v1/chat/completions"
        with requests.post(url, json=body, headers=self.headers, stream=True, timeout=60) as response:
            assert response.status_code == 200, response.text
            told = list(events(response))
        assert not [event for event in told if "error" in event]
        choices = [choice for event in told for choice in event.get("choices", [])]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


@dataclass(frozen=True)
class Pair:
    site: Site
    model: str
    urls: dict[str, str]

    def orders(self, asked: list[tuple[str, str]]) -> list[Order]:
        """`asked`: (which node is the head, prompt)."""
        routes = [(head, *[name for name in NODES if name != head]) for head, _ in asked]
        script = WRITE_SESSIONS.format(model=self.model, routes=routes, num_tokens=NUM_TOKENS)
        told = json.loads(self.site.manage("shell", "--no-imports", "-c", script).split("TOLD ")[1])
        return [Order(self.urls[head], prompt, headers(*one)) for (head, prompt), one in zip(asked, told, strict=True)]

    def held(self) -> list[int]:
        healths = [requests.get(f"{url}/health", timeout=5).json() for url in self.urls.values()]
        return [health["chats"] + health["cached_tokens"] + health["reserved_tokens"] for health in healths]


def headers(session: str, ticket: str, route: str) -> dict[str, str]:
    whose = {names.SESSION: session, names.EPOCH: "0", names.TICKET: ticket}
    return whose | {names.ROUTE: route, names.PREFILL_CHUNK: "8", names.DEADLINE_MS: "60000"}


@pytest.fixture
def pair(site: Site, tiny: Path, alias: Callable[[Path, str], Path]) -> Iterator[Pair]:
    folder = alias(tiny, "tiny-mutual")
    site.model(folder.name, wire_dtype="float32")
    addresses = {name: f"127.0.0.1:{free_port()}" for name in NODES}
    processes = [
        site.start_node(name, folder, "0:7", "--listen", address, "--dtype", "float32", "--drafts", "off")
        for name, address in addresses.items()
    ]
    with site.serving(folder.name, processes):
        yield Pair(site, folder.name, {name: f"http://{address}" for name, address in addresses.items()})


def test_two_nodes_that_are_each_others_hops_finish_as_many_chats_as_both_take(pair: Pair) -> None:
    asked = [(head, f"Hello {number}") for head in NODES for number in range(MAX_CHATS)]
    orders = pair.orders([*asked[:MAX_CHATS], *asked])
    alone = [order.text() for order in orders[:MAX_CHATS]]
    with ThreadPoolExecutor(len(asked)) as threads:
        together = list(threads.map(Order.text, orders[MAX_CHATS:]))
    assert together == [*alone, *alone]
    until = time.monotonic() + 20
    while any(held := pair.held()):
        assert time.monotonic() < until, f"the nodes still hold {held}"
        time.sleep(0.1)
