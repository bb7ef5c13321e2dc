"""The smallest site around the relay: /call/<peer_id> asks a peer as the tracker does, /figures counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.urls import path

from relay import auth, client, metrics, presence, report, wire
from relay.cluster import InCluster

application_of_http = get_asgi_application()


async def call(request: HttpRequest, peer_id: str) -> StreamingHttpResponse:
    """Each answer of the peer as one line: its kind, its status, its bytes."""
    asked = wire.Request(
        "1", "POST", request.GET.get("path", "/forward"), {"x-test": "yes", "cookie": "no"}, b"ask", "forged", 20_000
    )

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(client.call(peer_id, asked)) as answers:
            async for answer in answers:
                yield repr(answer).encode() + b"\n"

    return StreamingHttpResponse(lines())


async def figures(request: HttpRequest) -> JsonResponse:
    peers = {peer_id: presence.since(peer_id) for peer_id in presence.present()}
    where = {peer_id: presence.where(peer_id) for peer_id in peers}
    figures = {"outcomes": metrics.outcomes, "drops": metrics.drops, "peers": peers, "where": where}
    return JsonResponse(figures)


async def connected(request: HttpRequest) -> JsonResponse:
    return JsonResponse({row.peer_id: asdict(row) for row in report.rows()})


def revoke(request: HttpRequest, peer_id: str) -> JsonResponse:
    """Synchronous, as the admin's views are."""
    auth.forget(peer_id)
    return JsonResponse({})


def disconnect(request: HttpRequest, peer_id: str) -> JsonResponse:
    auth.disconnect(peer_id, "somebody closed it")
    return JsonResponse({})


urlpatterns = [
    path("call/<str:peer_id>", call),
    path("figures", figures),
    path("connected", connected),
    path("revoke/<str:peer_id>", revoke),
    path("disconnect/<str:peer_id>", disconnect),
]

from relay.urls import websocket_urlpatterns  # noqa: E402

application = InCluster(
    ProtocolTypeRouter({"http": application_of_http, "websocket": URLRouter(websocket_urlpatterns)})
)
