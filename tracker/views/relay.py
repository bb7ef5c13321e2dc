"""The relay's page of the admin: who is connected where, and how it goes. It refreshes itself."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from relay import report
from relay.report import Row
from tracker.models import Node


@require_GET
def relay_page(request: HttpRequest) -> HttpResponse:
    """The whole page, or with ?live only the part that changes. Behind the admin's door, which forbids keeping it."""
    peers = peer_stories()
    context: dict[str, Any] = {
        "title": "Relay",
        "peers": peers,
        "has_several_processes": bool(settings.REDIS_URL) or len(settings.RELAY_URLS) > 1,
        "num_expected": Node.objects.filter(status=Node.Status.APPROVED, uses_relay=True, is_registered=True).count(),
        "has_nodes": bool(peers) or Node.objects.exists(),
        "public_url": settings.PUBLIC_URL,
    }
    if "live" not in request.GET:
        context = admin.site.each_context(request) | context
    return render(request, f"admin/relay{'_live' if 'live' in request.GET else ''}.html", context)


def peer_stories() -> list[dict[str, Any]]:
    """Each connected peer with the name of its node, by name."""
    rows = report.rows()
    nodes = Node.objects.filter(peer_id__in=[row.peer_id for row in rows]).values_list("peer_id", "pk", "name")
    known = {peer_id: (pk, name) for peer_id, pk, name in nodes}
    stories = [_story(row, *known.get(row.peer_id, (None, ""))) for row in rows]
    return sorted(stories, key=lambda story: (story["scope"], story["name"], story["peer_id"]))


def _story(row: Row, node_pk: int | None, name: str) -> dict[str, Any]:
    figures = row.figures
    return asdict(row) | {
        "name": name,
        "node_pk": node_pk,
        "since": datetime.fromtimestamp(row.since, UTC),
        "rtt_ms": None if figures is None or figures.rtt_s is None else figures.rtt_s * 1000,
    }
