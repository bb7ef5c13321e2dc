from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from meshweb.asgi import application
from tests.tracker.conftest import MakeNode
from tests.tracker.people import client_of
from tracker import consumers, figures
from tracker.dashboard import watching

pytestmark = pytest.mark.django_db(transaction=True)
DEADLINE_S = 20
OURS = "http://127.0.0.1:8000"


class Socket:
    """A page's socket, as its browser opens it."""

    def __init__(self, client: Client | None = None, *, origin: str = OURS, host: str = "127.0.0.1:8000") -> None:
        cookies: Any = client.cookies if client else {}
        headers = {"host": host, "cookie": "; ".join(f"{name}={cookies[name].value}" for name in cookies)}
        headers |= {"origin": origin} if origin else {}
        scope: dict[str, Any] = {
            "type": "websocket",
            "path": "/live",
            "scheme": "ws",
            "client": ["192.0.2.1", 1],
            "subprotocols": [],
        }
        scope |= {"headers": [(name.encode(), value.encode()) for name, value in headers.items()], "extensions": {}}
        self._asgi: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Socket:
        await self._asgi.send_input({"type": "websocket.connect"})
        assert (await self._event())["type"] == "websocket.accept"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._asgi.send_input({"type": "websocket.disconnect", "code": 1001})
        await self._asgi.wait(DEADLINE_S)

    async def _event(self) -> dict[str, Any]:
        return dict(await self._asgi.receive_output(DEADLINE_S))

    async def say(self, text: str) -> None:
        await self._asgi.send_input({"type": "websocket.receive", "text": text})

    async def watch(self, path: str) -> None:
        await self.say(json.dumps({"watch": path}))

    async def hear(self) -> dict[str, str]:
        event = await self._event()
        assert event["type"] == "websocket.send", event
        return dict(json.loads(event["text"]))

    async def refusal(self) -> tuple[int, str]:
        """The code it is closed with, and the words before."""
        words = ""
        while (event := await self._event())["type"] == "websocket.send":
            words = json.loads(event["text"]).get("error", words)
        assert event["type"] == "websocket.close"
        return event["code"], words


async def refused(client: Client | None = None, path: str = "/", **fields: str) -> tuple[int, str]:
    async with Socket(client, **fields) as socket:
        await socket.watch(path)
        return await socket.refusal()


async def test_a_page_is_told_what_it_shows_and_then_what_changes(make_node: MakeNode) -> None:
    async with Socket(await sync_to_async(client_of)("viewer")) as socket:
        await socket.watch("/?q=1")
        before = (await socket.hear())["html"]
        await sync_to_async(make_node)("<new>")
        after = (await socket.hear())["html"]
    assert "&lt;new&gt;" not in before
    assert "&lt;new&gt;" in after


@pytest.mark.parametrize(
    ("group", "outcome"),
    [("anonymous", (4401, "log in to see this")), ("nobody", (4403, "you may not see this"))],
)
async def test_who_may_not_see_a_page_may_not_watch_it(group: str, outcome: Any) -> None:
    assert await refused(await sync_to_async(client_of)(group)) == outcome


async def test_a_strangers_socket_is_shown_what_is_public_and_no_more(make_node: MakeNode, settings: Settings) -> None:
    settings.DASHBOARD_PUBLIC = True
    await sync_to_async(make_node)("hidden-name")
    async with Socket() as socket:
        await socket.watch("/")
        html = (await socket.hear())["html"]
    assert "tiny" in html
    assert "hidden-name" not in html
    async with Socket(await sync_to_async(client_of)("viewer")) as socket:
        await socket.watch("/")
        assert "hidden-name" in (await socket.hear())["html"]


@pytest.mark.parametrize(
    "fields",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9000"},
        {"origin": "https://127.0.0.1:8000"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://evil.example", "host": "evil.example"},
    ],
)
async def test_only_pages_of_this_site_may_watch_it(fields: dict[str, str]) -> None:
    code, words = await refused(await sync_to_async(client_of)("superuser"), **fields)
    assert code == 4403
    assert "may not watch this one" in words


async def test_behind_a_proxy_the_public_address_is_the_sites(settings: Settings) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://mesh.example"]
    async with Socket(await sync_to_async(client_of)("viewer"), origin="https://mesh.example") as socket:
        await socket.watch("/")
        assert "html" in await socket.hear()


@pytest.mark.parametrize("path", ["/docs", "/nowhere", "/v1/models", "/admin/", "/%00", "/?" + "a&" * 1500])
async def test_what_is_no_live_page_cannot_be_watched(path: str) -> None:
    assert await refused(await sync_to_async(client_of)("superuser"), path) == (4400, "no live page has this address")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"watch": 7}', '{"watch": "http://a/"}', '{"watch": "/' + "a" * 5000 + '"}', "[" * 4000],
)
async def test_a_first_message_that_names_no_page_is_refused(text: str) -> None:
    async with Socket() as socket:
        await socket.say(text)
        code, words = await socket.refusal()
    assert code == 4400
    assert "the first message must be" in words


async def test_a_socket_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "FIRST_S", 0.05)
    async with Socket() as socket:
        assert (await socket.refusal())[0] == 4400


async def test_a_socket_watches_one_page() -> None:
    async with Socket(await sync_to_async(client_of)("viewer")) as socket:
        await socket.watch("/")
        await socket.hear()
        await socket.watch("/")
        assert (await socket.refusal())[0] == 4400


@pytest.fixture
def looked_up_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "CHECK_S", 0.05)
    monkeypatch.setattr(watching, "RECHECK_S", 0.0)


async def ends_when(viewer: Client, happens: Callable[[], object]) -> tuple[int, str]:
    async with Socket(viewer) as socket:
        await socket.watch("/")
        assert "html" in await socket.hear()
        await sync_to_async(happens)()
        return await socket.refusal()


async def test_who_logs_out_watches_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "CHECK_S", 0.05)
    viewer = await sync_to_async(client_of)("viewer")
    assert await ends_when(viewer, lambda: viewer.post("/logout")) == (4401, "you are logged out")


@pytest.mark.usefixtures("looked_up_often")
async def test_who_is_switched_off_or_gets_another_password_watches_no_longer() -> None:
    viewer = await sync_to_async(client_of)("viewer")
    assert (await ends_when(viewer, lambda: User.objects.update(is_active=False)))[0] == 4401
    operator = await sync_to_async(client_of)("operator")
    assert (await ends_when(operator, lambda: User.objects.update(password="another")))[0] == 4401


@pytest.mark.usefixtures("looked_up_often")
async def test_who_loses_a_group_is_asked_to_look_again() -> None:
    viewer = await sync_to_async(client_of)("viewer")
    code, words = await ends_when(viewer, lambda: User.objects.get().groups.clear())
    assert (code, words) == (4403, "what you may do here has changed")


async def test_a_gone_socket_leaves_nothing_behind() -> None:
    async with Socket(await sync_to_async(client_of)("viewer")) as socket:
        await socket.watch("/")
        await socket.hear()
        assert len(list(watching.watching.watchers())) == 1
        assert b"meshnet_live_pages 1.0" in figures.exposed()
    async with asyncio.timeout(DEADLINE_S):
        while list(watching.watching.watchers()):
            await asyncio.sleep(0.01)
    assert b"meshnet_live_pages 0.0" in figures.exposed()
