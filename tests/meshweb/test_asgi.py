"""The whole site as it is served: behind a proxy that is trusted, seen by Prometheus, its log read by a machine."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import requests

from meshweb import asgi
from relay import codec, wire
from tests.lab.site import Site
from tests.lab.websockets import connect
from tests.tracker.views.test_nodes import WANTED
from tracker import news, readings

TOKEN = "a-token-of-the-operator"
FORWARDED = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = {"LOG_FORMAT": "json", "TRUSTED_PROXIES": "127.0.0.0/8", "METRICS_TOKEN": TOKEN}
    with Site(tmp_path_factory.mktemp("site"), **settings) as site:
        yield site


def lines(site: Site, message: str) -> list[dict[str, Any]]:
    """Those of the log whose message begins so, once there is one."""
    site.process.wait_for(json.dumps(message).strip('"'))  # type: ignore[union-attr]
    entries = [json.loads(line) for line in site.log().splitlines()]
    return [entry for entry in entries if entry["message"].startswith(message)]


def metrics(site: Site) -> str:
    answer = requests.get(f"{site.local_url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10)
    assert answer.status_code == 200
    return answer.text


def register(site: Site) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {site.join_token}", **FORWARDED}
    answer = requests.post(f"{site.local_url}/api/nodes/register", json=WANTED, headers=headers, timeout=10)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_node_behind_a_proxy_is_known_counted_and_logged_by_its_own_address(site: Site) -> None:
    node = register(site)
    header = [f"Authorization: Bearer {node['node_key']}", *(f"{name}: {value}" for name, value in FORWARDED.items())]
    url = f"ws://127.0.0.1:{site.port}/ws"
    ws = connect(url, header=header, subprotocols=[wire.SUBPROTOCOL], timeout=10)
    try:
        ws.send_binary(codec.encode_frame(wire.Hello(node["peer_id"])))
        opcode, data = ws.recv_data()
        assert isinstance(codec.decode_frame(data).frame, wire.Welcome), opcode
        [entry] = lines(site, f"peer {node['peer_id']} is here from 203.0.113.9")
        assert (entry["logger"], entry["level"], entry["version"]) == ("relay.consumers", "INFO", 2)
        assert (entry["peer_id"], entry["address"]) == (node["peer_id"], "203.0.113.9")
        shown = metrics(site)
        for line in (
            'meshnet_relay_connections{version="2"} 1.0',
            "meshnet_relay_peers 1.0",
            "meshnet_relay_registered_total 1.0",
            'meshnet_relay_bytes_total{direction="in"}',
            'meshnet_event_loop_lag_seconds_bucket{le="+Inf"}',
            "process_resident_memory_bytes",
        ):
            assert line in shown
    finally:
        ws.close()
    [entry] = lines(site, f"peer {node['peer_id']} has left")
    assert entry["bytes_in"] > 0
    assert 'meshnet_relay_connections{version="2"} 0.0' in metrics(site)


def test_a_refused_socket_is_logged_with_its_reason_and_without_its_credential(site: Site) -> None:
    header = [f"Authorization: Bearer node_0123456789ab.{'s' * 43}"]
    ws = connect(f"ws://127.0.0.1:{site.port}/ws", header=header, timeout=10)
    ws.recv()
    ws.close()
    [entry] = lines(site, "refused '/ws' from 127.0.0.1")
    assert (entry["code"], entry["path"], entry["address"]) == ("unauthorized", "/ws", "127.0.0.1")
    assert "s" * 43 not in site.log()
    assert 'meshnet_relay_refused_total{code="unauthorized"} 1.0' in metrics(site)


def test_the_proxys_word_makes_a_request_secure(site: Site) -> None:
    """Django's CSRF check of a form compares schemes: over plain http this origin would be refused."""
    login = f"{site.local_url}/admin/login/"
    with requests.Session() as session:
        session.headers.update(FORWARDED)
        token = session.get(login, timeout=10).cookies["csrftoken"]
        form = {"csrfmiddlewaretoken": token, "username": "nobody", "password": "x"}
        origin = {"Origin": f"https://127.0.0.1:{site.port}"}
        assert session.post(login, data=form, headers=origin, timeout=10).status_code == 200
        del session.headers["X-Forwarded-Proto"]
        assert session.post(login, data=form, headers=origin, timeout=10).status_code == 403


def test_beside_answering_it_ticks_and_gives_news(site: Site) -> None:
    until = time.monotonic() + 30
    with closing(sqlite3.connect(site.folder / "site" / "meshnet.sqlite3", timeout=20)) as database:
        while not database.execute("SELECT holder FROM tracker_lease WHERE name = 'tick'").fetchall():
            assert time.monotonic() < until, site.log()[-3000:]
            requests.get(f"{site.local_url}/metrics", timeout=10)  # it begins with the first request
            time.sleep(0.2)
    assert {news.giver.start, readings.reader.start} <= {chore.do for chore in asgi._chores}
