"""How long each page of the dashboard takes at 200 nodes and 10,000 sessions, over HTTP, and what it asks the database.

    python -m bench.pages [--quick] [--json]

A site on SQLite with rows made up (tests/tracker/crowd), asked one request after another by somebody who may see all.
Whole pages, as they are opened; `live` is the part that the live socket renders again while somebody looks.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.heartbeats import PASSWORD, connected, log_in
from bench.report import finish, median, options, spread, table
from tests.lab.site import Site

NUM_NODES, NUM_SESSIONS = 200, 10_000
MAX_PAGE_MS = 300
# What a visitor may ask of them that takes longest; {round} so that nothing is kept from one to the next.
ASKED = {
    "session-list-searched": "/sessions?q=node-00{round}",
    "session-list-last": "/sessions?page=200",
    "node-list-searched": "/nodes?q=node-1&page=2",
    "what-if-asked": "/placement/what-if?num_layers=80&layer_mb=500&head_mb=500&tail_mb=500&count1=8&memory1=16"
    "&count2=8&memory2=32&count3=8&memory3=12&rtt1=1{round}",
}
_MAKE = """
import json
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from tests.tracker.crowd import crowd
from tests.tracker.dashboard.sitemap import PAGES
crowd({num_nodes}, {num_sessions}, without_relay=True)
reader = User.objects.create_superuser("reader", password="{password}")
client, told = Client(SERVER_NAME="127.0.0.1"), {{}}
client.force_login(reader)
paths = {{str(place): place.path() for place in PAGES}} | {asked}
for name, path in paths.items():
    with CaptureQueriesContext(connection) as asked:
        assert client.get(path.replace("{{round}}", "0")).status_code == 200, path
    told[name] = [path, len(asked)]
print(json.dumps(told))
"""


def main() -> None:
    chosen = options(__doc__)
    rounds = 5 if chosen.quick else 40
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder), TICK="off") as site:
        code = _MAKE.format(num_nodes=NUM_NODES, num_sessions=NUM_SESSIONS, password=PASSWORD, asked=ASKED)
        places: dict[str, tuple[str, int]] = json.loads(site.manage("shell", "-c", code).splitlines()[-1])
        with connected(site) as connection:
            cookie = log_in(connection)
            whole = {name: timed(connection, cookie, path, rounds) for name, (path, _) in places.items()}
            live = {name: timed(connection, cookie, with_live(path), rounds) for name, (path, _) in places.items()}
    queries = {name: count for name, (_, count) in places.items()}
    show(whole, live, queries)
    figures = {f"{name.replace('-', '_')}_ms": round(median(times), 1) for name, times in whole.items()}
    figures["page_ms_max"] = max(round(median(times), 1) for name, times in whole.items() if name not in ASKED)
    figures["asked_ms_max"] = max(round(median(times), 1) for name, times in whole.items() if name in ASKED)
    figures["live_ms_max"] = round(max(median(times) for times in live.values()), 1)
    figures["queries_max"] = max(queries.values())
    finish(figures, chosen.json)


def with_live(path: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}live"


def timed(connection: http.client.HTTPConnection, cookie: str, path: str, rounds: int) -> list[float]:
    """Milliseconds of each request; the first isn't counted, templates are read then."""
    times = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        connection.request("GET", path.replace("{round}", str(number)), headers={"Cookie": cookie})
        response = connection.getresponse()
        response.read()
        times.append((time.perf_counter() - began) * 1000)
        assert response.status == 200, f"{path} got HTTP {response.status}"
    return times[1:]


def show(whole: Mapping[str, list[float]], live: Mapping[str, list[float]], queries: Mapping[str, int]) -> None:
    rows = [
        (name, spread(whole[name]), spread(live[name]), str(queries[name]))
        for name in sorted(whole, key=lambda name: -median(whole[name]))
    ]
    print(f"{NUM_NODES} nodes, {NUM_SESSIONS} sessions; at most {MAX_PAGE_MS} ms are wanted")
    print(table(("page", "ms", "live, ms", "queries"), rows))


if __name__ == "__main__":
    main()
