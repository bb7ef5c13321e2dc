"""Programs' requests: answered as Django answers them, but for what only pages need."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.utils.deprecation import MiddlewareMixin

from meshweb.handlers import OF_PAGES, ProgramsHandler, by_path, in_place

Told = list[dict[str, Any]]


async def ask(application: Any, path: str, host: bytes = b"127.0.0.1", **scope: Any) -> Told:
    told: Told = []
    over = asyncio.Event()
    parts = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    asked = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", host)]}
    await application(asked | scope, receive, send)
    return told


async def answer(application: Any, path: str, **asked: Any) -> tuple[int, dict[str, str]]:
    opening = (await ask(application, path, **asked))[0]
    return opening["status"], {name.decode().lower(): value.decode() for name, value in opening["headers"]}


def test_what_programs_go_past_is_in_the_settings() -> None:
    assert set(settings.MIDDLEWARE) > OF_PAGES


@override_settings(ALLOWED_HOSTS=["127.0.0.1"])
@pytest.mark.parametrize("asked", [{"host": b"another.example"}, {"path": "/v1/chat/completions"}])
@pytest.mark.django_db(transaction=True)
async def test_programs_get_what_django_itself_answers(asked: dict[str, Any]) -> None:
    """Headers of security, the host that is checked, methods that are refused."""
    path = asked.pop("path", "/v1/nowhere")
    ours, theirs = [await answer(handler(), path, **asked) for handler in (ProgramsHandler, ASGIHandler)]
    varying = {"x-request-id", "server-timing", "vary", "content-length"}
    assert ours[0] == theirs[0] >= 400
    for name in theirs[1].keys() - varying:
        assert ours[1][name] == theirs[1][name]
    if ours[0] != 400:
        assert "x-content-type-options" in ours[1]


async def test_a_middleware_of_djangos_is_called_where_it_is() -> None:
    threads = []

    class Noting(MiddlewareMixin):
        def process_request(self, request: HttpRequest) -> None:
            threads.append(threading.current_thread())

        def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
            threads.append(threading.current_thread())
            response["x-noted"] = "yes"
            return response

    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    response = await in_place(Noting(view), view)(HttpRequest())
    assert response["x-noted"] == "yes"
    assert threads == [threading.current_thread()] * 2


async def test_a_middleware_may_answer_itself() -> None:
    class Closed(MiddlewareMixin):
        def process_request(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(status=503)

    async def never(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    response = await in_place(Closed(never), never)(HttpRequest())
    assert response.status_code == 503


@pytest.mark.parametrize(
    ("path", "root_path", "whose"),
    [
        ("/v1/models", "", "programs"),
        ("/api/nodes/heartbeat", "", "programs"),
        ("/mesh/v1/models", "/mesh", "programs"),
        ("/admin/", "", "pages"),
        ("/v1x", "", "pages"),
        ("/", "", "pages"),
    ],
)
async def test_a_request_goes_to_whom_it_is_for(path: str, root_path: str, whose: str) -> None:
    asked: list[str] = []

    def named(name: str) -> Any:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            asked.append(name)

        return application

    await ask(by_path(named("programs"), named("pages")), path, root_path=root_path)
    assert asked == [whose]
