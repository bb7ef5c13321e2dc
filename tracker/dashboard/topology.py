"""Topology: the relay and the nodes drawn, who is connected how, who sends steps to whom, and how long that takes."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from tracker.dashboard import mesh, mesh_layout
from tracker.dashboard.mesh import Link, MeshNode
from tracker.dashboard.mesh_layout import BAR, BOX_HEIGHT, BOX_WIDTH, BRANCH, MARGIN, Box, Layout
from tracker.dashboard.pages import Ask, Context, Page
from tracker.models import LanguageModel
from tracker.templatetags.meshnet import ms

MAX_DRAWN, MAX_LISTED, FEW = 60, 100, 12  # links; of few each says on the picture how long it takes
NAME_CHARS = 15  # that a box has room for
LOWER = {"tunnel": -9.0, "relay": 6.0, "direct": 12.0}  # than the middle of a box, lines of each path begin
SMALLEST = 0.85  # of its size; narrower pages scroll it


def context(ask: Ask) -> Context:
    nodes, num_more = mesh.nodes_of(ask.now, ask.param("model"))
    links = mesh.links_of(ask.now, nodes)
    sections = mesh.sections_of(nodes)
    by_key = {node.pk: node for node in nodes}
    told = [_link(link, by_key) for link in links[:MAX_LISTED]]
    return {
        "nodes": nodes,
        "num_more": num_more,
        "links": told,
        "num_more_links": max(0, len(links) - MAX_DRAWN),
        "picture": picture_of(mesh_layout.layout(sections), nodes, told),
        "has_several_processes": len({node.process for node in nodes if node.process}) > 1,
        "models": LanguageModel.objects.values_list("name", flat=True),
        "chosen_model": ask.param("model"),
        "max_sessions": mesh.MAX_SESSIONS,
    }


def picture_of(places: Layout, nodes: list[MeshNode], links: list[dict[str, Any]]) -> dict[str, Any]:
    """What the template draws, each thing with its place."""
    return {
        "width": places.width,
        "height": places.height,
        "least_width": places.width * SMALLEST,
        "relays": [{"text": _relay(title.text, nodes), "y": title.y} for title in places.relays],
        "models": places.models,
        "trunks": places.trunks,
        "boxes": [_box(node, places.boxes[node.pk]) for node in nodes],
        "links": [_curve(link, places, len(links) <= FEW) for link in links[:MAX_DRAWN]],
        "bar": {"x": MARGIN, "width": places.width - 2 * MARGIN, "height": BAR},
        "box": {"width": BOX_WIDTH, "height": BOX_HEIGHT},
    }


def in_short(node: MeshNode) -> str:
    """The second line of a box: its layers, and its round trip or what keeps it."""
    layers = node.layers.removeprefix("layers ")
    if node.state != "online":
        return f"{layers} · {node.state}"
    if node.wire:
        return f"{layers} · {ms(node.rtt_ms) if node.rtt_ms is not None else node.wire}"
    return f"{layers} · direct"


def _relay(url: str, nodes: list[MeshNode]) -> str:
    here = [node for node in nodes if node.relay == url]
    num_connected = sum(bool(node.wire) for node in here)
    return f"Relay {urlsplit(url).netloc}: {num_connected} of {len(here)} nodes connected"


def _box(node: MeshNode, box: Box) -> dict[str, Any]:
    room = NAME_CHARS - 2 if node.is_direct else NAME_CHARS  # whoever is reached directly has a mark beside its name
    name = node.name if len(node.name) <= room else node.name[: room - 1] + "…"
    return {"node": node, "x": box.x, "y": box.y, "trunk_x": box.x - BRANCH, "name": name, "short": in_short(node)}


def _link(link: Link, by_key: dict[int, MeshNode]) -> dict[str, Any]:
    head, hop = by_key[link.head], by_key[link.hop]
    return {
        "head": head,
        "hop": hop,
        "path": link.path,
        "words": mesh.WORDS.get(link.path, link.path),
        "network_ms": link.network_ms,
        "num_sessions": link.num_sessions,
        "num_running": link.num_running,
    }


def _curve(link: dict[str, Any], places: Layout, is_labelled: bool) -> dict[str, Any]:
    start, end = places.boxes[link["head"].pk], places.boxes[link["hop"].pk]
    label = ms(link["network_ms"]) if is_labelled and link["network_ms"] is not None else ""
    return link | {"curve": mesh_layout.curve(places, start, end, LOWER.get(link["path"], 0.0)), "label": label}


page = Page("topology", "Topology", context, every_s=3.0)
