from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nodes.deadline import Deadline
from nodes.reroute import Loss, NextRoute, NoAnswer, NotNow, NotOurs, Refused, TrackerRerouter
from relay.headers import Hop
from tests.nodes.meshes import shared_tls

SESSION = "5e" * 16
LOSS = Loss("ab" * 16, 4, 6, "node_failed", "pipeline error: cut")
HOP = {"endpoint": None, "start_layer": 2, "end_layer": 6, "peer_id": "cd" * 16, "relay_addr": "ws://r/rpc/cd"}
GRANTED = {"epoch": 1, "ticket": "t.s", "route": [HOP], "now": 1_700_000_000.5}


class Asked:
    def __init__(self, url: str, requests: list[tuple[str, str, Any]], rerouter: TrackerRerouter) -> None:
        self.url, self.requests, self.rerouter = url, requests, rerouter

    def ask(self, deadline_s: float = 10) -> NextRoute:
        return self.rerouter.ask(SESSION, 0, LOSS, 42, ["ef" * 16], Deadline.after(deadline_s))


Tracker = Callable[..., Asked]


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    """A tracker that answers every request the same."""
    servers = []

    def make(
        status: int, content: Any, headers: dict[str, str] | None = None, path: str = "", delay_s: float = 0
    ) -> Asked:
        requests: list[tuple[str, str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                requests.append((self.path, self.headers["authorization"], json.loads(body)))
                answer = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                time.sleep(delay_s)
                self.wfile.write(answer)

            def log_message(self, *arguments: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        url = f"http://127.0.0.1:{server.server_address[1]}{path}"
        return Asked(url, requests, TrackerRerouter(url, "node_1.secret", shared_tls()))

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_tracker_is_told_what_was_lost_and_answers_the_next_route(tracker: Tracker) -> None:
    asked = tracker(200, GRANTED)

    assert asked.ask() == NextRoute(1, "t.s", (Hop("cd" * 16, 2, 6, None, "ws://r/rpc/cd"),))
    lost = {"peer_id": "ab" * 16, "start_layer": 4, "end_layer": 6, "code": "node_failed", "cause": LOSS.cause}
    [(path, credential, message)] = asked.requests
    assert path == f"/api/sessions/{SESSION}/reroute"
    assert credential == "Bearer node_1.secret"
    assert message == {"epoch": 0, "lost": lost, "position": 42, "failed": ["ef" * 16]}


def test_an_answer_that_comes_after_its_headers_on_a_connection_that_ends_is_read(tracker: Tracker) -> None:
    asked = tracker(200, GRANTED, delay_s=0.05)

    assert asked.ask().epoch == 1


def test_a_site_below_a_path_is_asked_there(tracker: Tracker) -> None:
    asked = tracker(200, GRANTED, path="/mesh")
    asked.ask()

    assert asked.requests[0][0] == f"/mesh/api/sessions/{SESSION}/reroute"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "unauthorized", Refused),
        (403, "forbidden", NotOurs),
        (404, "not_found", NotOurs),
        (409, "stale", NotOurs),
        (400, "bad_request", Refused),
        (429, "rate_limited", NotNow),
        (503, "no_route", NotNow),
        (503, "draining", NoAnswer),
        (500, "internal", NoAnswer),
    ],
)
def test_each_refusal_says_what_to_do(tracker: Tracker, status: int, code: str, kind: type[Exception]) -> None:
    asked = tracker(status, {"error": {"code": code, "message": "layers 4–5 have no node online"}})

    with pytest.raises(kind, match="layers 4–5 have no node online"):
        asked.ask()


def test_a_site_that_knows_nothing_of_reroutes_isnt_taken_for_one_that_has_ended_the_session(tracker: Tracker) -> None:
    with pytest.raises(Refused, match="HTTP 404"):
        tracker(404, b"<html>Not Found</html>").ask()


@pytest.mark.parametrize(("told", "pause_s"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("99999", 60.0)])
def test_when_to_ask_again_is_told(tracker: Tracker, told: str, pause_s: float) -> None:
    content = {"error": {"code": "rate_limited", "message": "three a minute"}}

    with pytest.raises(NotNow) as refused:
        tracker(429, content, {"retry-after": told}).ask()
    assert refused.value.pause_s == pause_s


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON",
        [],
        {},
        GRANTED | {"epoch": "1"},
        GRANTED | {"epoch": True},
        GRANTED | {"ticket": None},
        GRANTED | {"route": [{"peer_id": 7}]},
        GRANTED | {"route": None},
    ],
)
def test_what_isnt_a_route_is_no_answer(tracker: Tracker, content: Any) -> None:
    with pytest.raises(NoAnswer, match="can't be read"):
        tracker(200, content).ask()


def test_a_tracker_that_isnt_there_is_no_answer() -> None:
    rerouter = TrackerRerouter("http://127.0.0.1:1", "k", shared_tls())

    with pytest.raises(NoAnswer, match="the tracker can't be asked"):
        rerouter.ask(SESSION, 0, LOSS, 1, [], Deadline.after(5))


def test_a_tracker_that_is_silent_is_given_up_at_the_deadline() -> None:
    class Silent(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    rerouter = TrackerRerouter(f"http://127.0.0.1:{server.server_address[1]}", "k", shared_tls())
    try:
        with pytest.raises(NoAnswer, match="in time"):
            rerouter.ask(SESSION, 0, LOSS, 1, [], Deadline.after(0.2))
    finally:
        server.shutdown()
        server.server_close()
