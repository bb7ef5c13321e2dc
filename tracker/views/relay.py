"""The relay's page of the admin: who is connected where, and how it goes; and the end of one of these connections."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from relay import auth, report
from relay.report import Row
from tracker import audit, joining
from tracker.admin.parts import reason_of
from tracker.groups import OPERATE
from tracker.models import Node

SEE = "tracker.view_node"
CLOSED = "an operator of this site closed this connection"


@require_GET
@permission_required(SEE, raise_exception=True)
def relay_page(request: HttpRequest) -> HttpResponse:
    """The whole page, or with ?live only the part that changes. Behind the admin's door, which forbids keeping it."""
    peers = peer_stories()
    context: dict[str, Any] = {
        "title": "Relay",
        "peers": peers,
        "has_several_processes": bool(settings.REDIS_URL) or len(settings.RELAY_URLS) > 1,
        "num_expected": Node.objects.filter(status=Node.Status.APPROVED, uses_relay=True, is_registered=True).count(),
        "has_nodes": bool(peers) or Node.objects.exists(),
        "runnode_line": joining.runnode_line(),
        "may_disconnect": request.user.has_perm(OPERATE),
    }
    if "live" not in request.GET:
        context = admin.site.each_context(request) | context
    return render(request, f"admin/relay{'_live' if 'live' in request.GET else ''}.html", context)


@require_http_methods(["GET", "POST"])
@permission_required(OPERATE, raise_exception=True)
def disconnect(request: HttpRequest, peer_id: str) -> HttpResponse:
    """Asks why first. The node may come back, and does by itself: who is to stay away is banned."""
    node = Node.objects.filter(peer_id=peer_id).first()
    if node is None:
        raise Http404("No node has this peer id.")
    if request.method == "POST":
        auth.disconnect(peer_id, CLOSED)
        audit.record(request, "disconnect", node, reason_of(request))
        messages.success(request, f"Disconnected: {node.name}. It connects again by itself, in a few seconds.")
        return redirect("admin:relay")
    context = admin.site.each_context(request) | {"title": f"Disconnect {node.name}?", "node": node}
    return render(request, "admin/relay_disconnect.html", context)


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
