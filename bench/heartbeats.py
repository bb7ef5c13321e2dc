"""A site on SQLite whose nodes send 50 heartbeats a second while people look at its overview.

    python -m bench.heartbeats [--quick] [--json]

Each heartbeat names a session that the node holds. Where one is refused because its lease is over, a lease was lost.
"""

from __future__ import annotations

import http.client
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from bench.report import finish, options
from tests.lab.site import Site

PER_S = 50
NUM_NODES, NUM_SESSIONS = 250, 50
NUM_READERS, READ_EACH_S = 3, 2.0  # as tracker/static/tracker/refresh.js
NUM_THREADS = 25
PASSWORD = "only-for-this-benchmark"
MODEL = {"name": "beating", "fingerprint": "ab" * 32, "num_layers": 12, "hidden_size": 64, "context_length": 256}
_BEGIN = """
from datetime import timedelta
from django.utils import timezone
User.objects.create_superuser("reader", password="{password}")
now, model = timezone.now(), LanguageModel.objects.get(name="beating")
for number in range({num_sessions}):
    session = ChatSession.objects.create(session_id=f"{{number:032x}}", completion_id=f"chatcmpl-{{number}}",
        model=model, seed=1, started=now, last_news=now + timedelta(hours=1))
    for position, name in enumerate((f"node-{{2 * number}}", f"node-{{2 * number + 1}}")):
        SessionHop.objects.create(session=session, position=position, node=Node.objects.get(name=name), node_name=name,
            start_layer=6 * position, end_layer=6 * position + 6)
"""


@dataclass(slots=True)
class Beating:
    """One node: what it registers with, and what it says."""

    wanted: dict[str, object]
    session_id: str
    key: str = ""
    registration: str = ""
    number: int = 0

    def register(self, connection: http.client.HTTPConnection, join_token: str = "") -> None:
        status, answer = post(connection, "register", self.key or join_token, self.wanted)
        assert status == 200, answer
        self.key, self.registration, self.number = answer.get("node_key", self.key), answer["registration"], 0

    def news(self) -> dict[str, object]:
        self.number += 1
        figures = {"state": "serving", "sessions": 1, "cached_tokens": self.number, "max_cached_tokens": 4096}
        held = {"session_epochs": {self.session_id: 0}}
        return {"registration": self.registration, "number": self.number} | figures | held


@dataclass(slots=True)
class Seen:
    """What the site answered. Lists only grow, each by one append: threads may share them."""

    beats_s: list[float] = field(default_factory=list)  # how long each took
    pages_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0


def main() -> None:
    chosen = options(__doc__)
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder)) as site:
        nodes = join(site, NUM_NODES, NUM_SESSIONS)
        seen = measure(site, nodes, seconds=20 if chosen.quick else 120)
    for error in [*seen.errors[:5], *seen.lost[:5]]:
        print(error)
    print(f"heartbeats, p99: {percentile(seen.beats_s, 99) * 1000:.0f} ms; {len(seen.pages_s)} pages")
    figures = {
        "heartbeats_per_s": round(len(seen.beats_s) / seen.elapsed_s, 1),
        "errors": len(seen.errors),
        "lost_leases": len(seen.lost),
        "page_p99_ms": round(percentile(seen.pages_s, 99) * 1000, 1),
    }
    finish(figures, chosen.json)


def join(site: Site, num_nodes: int, num_sessions: int) -> list[Beating]:
    """Nodes in pairs, each a route; the first `num_sessions` pairs have a session. And somebody who may look on."""
    versions = {"protocol_version": 1, "wire_versions": [1, 2], "model": MODEL}
    nodes = [
        Beating(versions | {"name": f"node-{number}"} | layers(number % 2), f"{number // 2:032x}")
        for number in range(num_nodes)
    ]
    with connected(site) as connection:
        for node in nodes:
            node.register(connection, site.join_token)
    site.manage("shell", "-c", _BEGIN.format(password=PASSWORD, num_sessions=num_sessions))
    return nodes


def layers(half: int) -> dict[str, object]:
    return {"start_layer": 6 * half, "end_layer": 6 * half + 6}


def measure(site: Site, nodes: Sequence[Beating], seconds: float) -> Seen:
    """Each node's heartbeats at even distances, all together PER_S, and the pages' readers beside them."""
    seen, over, ready = Seen(), threading.Event(), threading.Barrier(NUM_THREADS + 1)
    with ThreadPoolExecutor(NUM_THREADS + NUM_READERS) as threads:
        shares = [
            threads.submit(beat, site, nodes[number::NUM_THREADS], number, ready, seconds, seen)
            for number in range(NUM_THREADS)
        ]
        ready.wait(120)
        began = time.perf_counter()
        readers = [threads.submit(read, site, seen, over) for _ in range(NUM_READERS)]
        for share in shares:
            share.result()
        seen.elapsed_s = time.perf_counter() - began
        over.set()
        for reader in readers:
            reader.result()
    return seen


def beat(
    site: Site, nodes: Sequence[Beating], number: int, ready: threading.Barrier, seconds: float, seen: Seen
) -> None:
    """Heartbeats of some of the nodes, one after another in turn."""
    with connected(site) as connection:
        for node in nodes:
            node.register(connection)  # again: what was made meanwhile took longer than a lease
        ready.wait(120)
        began = time.perf_counter()
        pause_s, due = NUM_THREADS / PER_S, began + number / PER_S
        for node in in_turn(nodes):
            if due >= began + seconds:
                return
            time.sleep(max(0.0, due - time.perf_counter()))
            sent = time.perf_counter()
            status, answer = post(connection, "heartbeat", node.key, node.news())
            seen.beats_s.append(time.perf_counter() - sent)
            if status == 409:
                seen.lost.append(f"a heartbeat came too late: {answer}")
            elif status != 200:
                seen.errors.append(f"a heartbeat got HTTP {status}: {answer}")
            due = max(due + pause_s, time.perf_counter())


def connected(site: Site) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=30))


def in_turn(nodes: Sequence[Beating]) -> Iterator[Beating]:
    while True:
        yield from nodes


def read(site: Site, seen: Seen, over: threading.Event) -> None:
    """The page once and then its live part again and again, as a browser does."""
    with connected(site) as connection:
        cookie, path = log_in(connection), "/"
        while True:
            began = time.perf_counter()
            connection.request("GET", path, headers={"Cookie": cookie})
            response = connection.getresponse()
            page = response.read().decode()
            seen.pages_s.append(time.perf_counter() - began)
            if response.status != 200 or "node-0" not in page:
                seen.errors.append(f"the overview got HTTP {response.status}")
            path = "/?live"
            if over.wait(READ_EACH_S):
                return


def log_in(connection: http.client.HTTPConnection) -> str:
    """The cookie of somebody who may see the pages."""
    connection.request("GET", "/admin/login/")
    response = connection.getresponse()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', response.read().decode())
    assert token
    cookie = (response.getheader("set-cookie") or "").partition(";")[0]
    form = {"csrfmiddlewaretoken": token[1], "username": "reader", "password": PASSWORD}
    headers = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/admin/login/?next=/", urlencode(form), headers)
    response = connection.getresponse()
    response.read()
    assert response.status == 302, response.status
    found = re.search(r"sessionid=[^;]+", str(response.headers))
    assert found
    return found[0]


def post(
    connection: http.client.HTTPConnection, verb: str, credential: str, message: object
) -> tuple[int, dict[str, str]]:
    headers = {"Authorization": f"Bearer {credential}", "Content-Type": "application/json"}
    connection.request("POST", f"/api/nodes/{verb}", json.dumps(message), headers)
    response = connection.getresponse()
    body = response.read()
    return response.status, json.loads(body) if body[:1] == b"{" else {"body": body[:200].decode()}


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


if __name__ == "__main__":
    main()
