"""What a load balancer asks, driven as a server drives an ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from meshweb import health
from meshweb.health import Health
from relay.hub import hub
from tracker import readiness

WELL = {"database": None, "migrations": None, "tick": None}


async def elsewhere(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def ask(application: Health, path: str, method: str = "GET") -> tuple[int, Any, dict[bytes, bytes]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application({"type": "http", "path": path, "method": method, "headers": []}, None, send)
    body = sent[1]["body"]
    return sent[0]["status"], json.loads(body) if body else None, dict(sent[0]["headers"])


class Looks:
    """In the place of the database's part; how often it was asked."""

    def __init__(self, found: dict[str, str | None]) -> None:
        self.found, self.count = found, 0

    def __call__(self, now: datetime, up_for: timedelta) -> dict[str, str | None]:
        self.count += 1
        return self.found


@pytest.fixture
def looks(db: None, monkeypatch: pytest.MonkeyPatch) -> Looks:
    """With the database: the thread that looks may be one that a test before has left a connection in."""
    made = Looks(dict(WELL))
    monkeypatch.setattr(readiness, "problems", made)
    return made


@pytest.fixture
def draining() -> Iterator[None]:
    hub.switchboard.draining = True
    yield
    hub.switchboard.draining = False


async def test_a_living_process_says_so_and_looks_at_nothing(looks: Looks) -> None:
    assert (await ask(Health(elsewhere), "/healthz"))[:2] == (200, {"status": "alive"})
    assert looks.count == 0


async def test_a_process_that_has_all_it_needs_is_ready(looks: Looks) -> None:
    status, told, headers = await ask(Health(elsewhere), "/readyz")
    assert (status, told["status"], headers[b"cache-control"]) == (200, "ready", b"no-store")
    assert told["checks"] == {name: {"ok": True} for name in ("process", "database", "migrations", "tick")}


async def test_one_that_lacks_something_says_what_in_words(looks: Looks) -> None:
    looks.found["tick"] = "nobody has done it yet"
    status, told, _ = await ask(Health(elsewhere), "/readyz")
    assert (status, told["status"]) == (503, "not ready")
    assert told["checks"]["tick"] == {"ok": False, "problem": "nobody has done it yet"}
    assert told["checks"]["database"] == {"ok": True}


async def test_one_that_stops_is_not_ready_and_alive(looks: Looks, draining: None) -> None:
    status, told, _ = await ask(Health(elsewhere), "/readyz")
    assert (status, told["checks"]["process"]["problem"]) == (503, "it is stopping")
    assert (await ask(Health(elsewhere), "/healthz"))[0] == 200


async def test_many_who_ask_at_once_cost_one_look_and_a_later_one_another(looks: Looks) -> None:
    now = 0.0
    application = Health(elsewhere, lambda: now)
    assert {answer[0] for answer in await asyncio.gather(*(ask(application, "/readyz") for _ in range(50)))} == {200}
    assert looks.count == 1
    now = health.KEPT_S + 0.1
    await ask(application, "/readyz")
    assert looks.count == 2


async def test_a_database_that_does_not_answer_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any) -> dict[str, str | None]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(health, "in_thread", never)
    monkeypatch.setattr(health, "LOOK_S", 0.01)
    status, told, _ = await ask(Health(elsewhere), "/readyz")
    assert (status, told["checks"]["database"]["ok"]) == (503, False)
    assert "has not answered" in told["checks"]["database"]["problem"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_it_is_only_read(looks: Looks, path: str) -> None:
    status, _, headers = await ask(Health(elsewhere), path, "POST")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD")
    assert (await ask(Health(elsewhere), path, "HEAD"))[:2] == (200, None)


async def test_whatever_else_is_asked_goes_on_to_the_site(looks: Looks) -> None:
    assert (await ask(Health(elsewhere), "/healthz/x"))[0] == 404
