"""Who is in the mesh and who reaches whom how: what the topology page draws, read from the rows. Plain values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from django.conf import settings
from django.db.models import F

from relay import report
from relay.report import Row
from tracker.candidates import loaded
from tracker.dashboard.mesh_layout import Band, Machine, Section
from tracker.dashboard.node_rows import rtt_of, state_of
from tracker.errors import writable
from tracker.models import ChatSession, Node, SessionHop
from tracker.models.sessions import LOST_AFTER
from tracker.relays import relay_of

MAX_NODES = 400
FORGOTTEN = timedelta(days=1)  # a node that wasn't heard of for so long isn't drawn
WITHIN = timedelta(hours=1)  # sessions that began then say who reaches whom
MAX_SESSIONS = 200
WORDS = {"tunnel": "tunnel", "relay": "relay", "direct": "direct", "": "not told yet"}


@dataclass(frozen=True, slots=True)
class MeshNode:
    pk: int
    name: str
    state: str
    kind: str  # good, bad, busy, off
    why: str
    model: str
    num_layers: int
    layers: str  # "layers 0–19"
    start_layer: int
    relay: str  # to which nodes of its model connect
    process: str | None  # of the relay to which it is connected
    wire: str  # how, in a word of WORDS; empty: not at all
    is_direct: bool  # its endpoint has proved itself
    rtt_ms: float | None

    @property
    def ways(self) -> str:
        """How it is reached, in words."""
        ways = [WORDS[self.wire]] if self.wire else []
        return " and ".join([*ways, *(["direct"] if self.is_direct else [])]) or "not at all"


@dataclass(frozen=True, slots=True)
class Link:
    """A head has sent steps to another node of its routes this way."""

    head: int  # keys of the nodes
    hop: int
    path: str
    network_ms: float | None  # of half of the decode steps, there and back
    num_sessions: int
    num_running: int


def nodes_of(now: datetime, model: str = "") -> tuple[list[MeshNode], int]:
    """Those to be drawn, by model and name, and how many there are beyond."""
    found = Node.objects.filter(last_seen__gt=now - FORGOTTEN).exclude(status=Node.Status.REVOKED)
    if model:
        found = found.filter(model__name=writable(model))
    nodes = loaded(found.select_related("model", "shard").order_by("model__name", "name")[: MAX_NODES + 1], now)
    more = found.count() - MAX_NODES if len(nodes) > MAX_NODES else 0
    peers = {row.peer_id: row for row in report.rows()}
    return [_node(node, peers.get(node.peer_id), now) for node in nodes[:MAX_NODES]], more


def links_of(now: datetime, nodes: Iterable[MeshNode]) -> list[Link]:
    """Those of running sessions first, then those that many sessions took."""
    drawn = {node.pk for node in nodes}
    told: defaultdict[tuple[int, int, str], list[tuple[float | None, bool]]] = defaultdict(list)
    for head, hop, path, network_ms, is_running in _hops(now):
        if head in drawn and hop in drawn:
            told[head, hop, path].append((network_ms, is_running))
    _join_untold(told)
    links = [
        Link(
            *way,
            median(known) if (known := [ms for ms, _ in took if ms is not None]) else None,
            len(took),
            sum(is_running for _, is_running in took),
        )
        for way, took in told.items()
    ]
    return sorted(links, key=lambda link: (-link.num_running, -link.num_sessions, link.head, link.hop, link.path))


def sections_of(nodes: Iterable[MeshNode]) -> list[Section]:
    """Relays by their URLs, with the models whose nodes share them."""
    bands: defaultdict[str, dict[str, list[MeshNode]]] = defaultdict(dict)
    for node in nodes:
        bands[node.relay].setdefault(node.model, []).append(node)
    return [Section(relay, [_band(model, its) for model, its in bands[relay].items()]) for relay in sorted(bands)]


def _join_untold(told: dict[tuple[int, int, str], list[tuple[float | None, bool]]]) -> None:
    """Sessions whose heads haven't told the path yet take the one that others take between the same two."""
    for head, hop, path in [way for way in told if not way[2]]:
        others = [way for way in told if way[:2] == (head, hop) and way[2]]
        if others:
            told[max(others, key=lambda way: len(told[way]))] += told.pop((head, hop, path))


def _band(model: str, nodes: list[MeshNode]) -> Band:
    machines = [Machine(node.pk, node.start_layer, bool(node.wire)) for node in nodes]
    return Band(model, max(node.num_layers for node in nodes), machines)


def _node(node: Node, peer: Row | None, now: datetime) -> MeshNode:
    state, kind, why = state_of(node, peer, now)
    shard = getattr(node, "shard", None)
    return MeshNode(
        pk=node.pk,
        name=node.name,
        state=state,
        kind=kind,
        why=why,
        model=node.model.name,
        num_layers=node.model.num_layers or (shard.end_layer if shard else 0),
        layers=str(shard or "no layers"),
        start_layer=shard.start_layer if shard else 0,
        relay=relay_of(node.model.name, settings.RELAY_URLS),
        process=peer.process if peer else None,
        wire="" if peer is None else "tunnel" if peer.version > 1 else "relay",
        is_direct=node.is_endpoint_proved(now),
        rtt_ms=rtt_of(node, peer),
    )


def _hops(now: datetime) -> Iterable[tuple[int, int, str, float | None, bool]]:
    """(head, hop, path, network ms, whether its session runs) of the newest sessions' routes as they are now."""
    begun = ChatSession.objects.filter(started__gt=now - WITHIN).order_by("-started")
    newest = list(begun.values_list("pk", flat=True)[:MAX_SESSIONS])
    hops = SessionHop.objects.filter(session__in=newest, epoch=F("session__epoch")).order_by("session", "position")
    fields = ("session", "position", "node", "path", "network_p50_ms", "session__state", "session__last_news")
    heads: dict[int, int | None] = {}
    for session, position, node, path, network_ms, state, last_news in hops.values_list(*fields):
        if position == 0:
            heads[session] = node
        elif node is not None and (head := heads.get(session)) is not None:
            yield head, node, path, network_ms, state == ChatSession.State.RUNNING and last_news > now - LOST_AFTER
