"""What pages tell of nodes: of each its state and why, what it has and how it goes. Plain values, few queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum

from relay import report
from relay.report import Row
from tracker.candidates import loaded
from tracker.dashboard import lines
from tracker.dashboard.lines import Line, Point
from tracker.models import Contribution, Node, NodeSample
from tracker.readings import rtt_ms_of
from tracker.standing import Standing
from tracker.tallies import day_of
from tracker.words import counted

CONTRIBUTED_DAYS = 30
SHOWN = timedelta(minutes=60)  # of samples, in a row


@dataclass(frozen=True, slots=True)
class Sample:
    at: datetime
    rtt_ms: float | None
    hop_ms: float | None
    bytes_in: int
    bytes_out: int
    sessions: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    pk: int
    name: str
    state: str
    kind: str  # of the state: good, bad, busy, off
    why: str
    model: str
    num_layers: int | None
    layers: str
    start_layer: int | None
    end_layer: int | None
    loaded_percent: int | None  # while it fetches its weights
    hardware: list[str]
    ms_per_layer: float | None
    rtt_ms: float | None
    load: int  # sessions that run through it, as the site knows
    cached_tokens: int
    reserved_tokens: int
    max_cached_tokens: int | None
    reserved_percent: int | None
    line: Line
    line_is: str  # what it shows
    sent_bytes: int  # by it, within SHOWN
    received_bytes: int
    token_layers: int  # within CONTRIBUTED_DAYS


def rows_of(nodes: Iterable[Node], now: datetime) -> list[NodeRow]:
    """Nodes with their models and shards, in this order. Three queries, however many there are."""
    here = loaded(nodes, now)
    peers = {row.peer_id: row for row in report.rows()}
    samples = samples_of([node.pk for node in here], now - SHOWN)
    contributed = contributions_of([node.pk for node in here], now)
    end = lines.newest([[(sample.at, None) for sample in some] for some in samples.values()], now)
    return [
        row_of(node, now, peers.get(node.peer_id), samples.get(node.pk, ()), end, contributed.get(node.pk, 0))
        for node in here
    ]


def row_of(
    node: Node, now: datetime, peer: Row | None, samples: Sequence[Sample], end: datetime, token_layers: int
) -> NodeRow:
    """Of a node whose load is told; `peer`: how the relay knows it, None where it doesn't."""
    word, kind, why = state_of(node, peer, now)
    shard = getattr(node, "shard", None)
    line, line_is = _latency(samples, end)
    room = node.max_cached_tokens
    return NodeRow(
        pk=node.pk,
        name=node.name,
        state=word,
        kind=kind,
        why=why,
        model=node.model.name,
        num_layers=node.model.num_layers or node.model_facts.get("num_layers"),
        layers=str(shard or ""),
        start_layer=shard.start_layer if shard else None,
        end_layer=shard.end_layer if shard else None,
        loaded_percent=loaded_percent(node),
        hardware=hardware_of(node),
        ms_per_layer=node.ms_per_layer,
        rtt_ms=rtt_of(node, peer),
        load=node.load,
        cached_tokens=node.cached_tokens,
        reserved_tokens=node.reserved_tokens,
        max_cached_tokens=room,
        reserved_percent=min(100, 100 * node.reserved_tokens // room) if room else None,
        line=line,
        line_is=line_is,
        sent_bytes=sum(sample.bytes_in for sample in samples),
        received_bytes=sum(sample.bytes_out for sample in samples),
        token_layers=token_layers,
    )


def state_of(node: Node, peer: Row | None, now: datetime) -> tuple[str, str, str]:
    """In a word; whether that is good, bad, busy or off; and why. `peer`: as for `row_of`."""
    standing = node.standing(now, is_present=peer is not None)
    word, kind = _state(node, standing, now)
    return word, kind, _why(standing, word)


def _state(node: Node, standing: Standing, now: datetime) -> tuple[str, str]:
    if node.status == Node.Status.REVOKED:
        return "revoked", "bad"
    if node.ban(now):
        return "banned", "bad"
    if node.status == Node.Status.PENDING:
        return "pending", "busy"
    if not standing.is_online:
        is_heard_of = node.lease_until is not None and node.lease_until > now
        if is_heard_of and node.state == "loading":
            return "loading", "busy"
        return ("offline", "bad") if node.is_registered else ("left", "off")
    if node.duty != Node.Duty.WORKS:
        return str(node.duty), "busy"
    if node.is_moving:
        return "moving", "busy"
    return ("left out", "busy") if node.closed_to_sessions(now) else ("online", "good")


def _why(standing: Standing, state: str) -> str:
    """What stands beside the state, without saying it again."""
    if standing.reason == "revoked":
        return "its key opens nothing any more"
    return standing.reason.removeprefix(f"{state} ")


def loaded_percent(node: Node) -> int | None:
    return 100 * node.progress[0] // node.progress[1] if node.progress else None


def hardware_of(node: Node) -> list[str]:
    """What it computes on and how it keeps its weights, as far as it has said."""
    memory = f"{node.memory_bytes / 1e9:.0f} GB" if node.memory_bytes else ""
    threads = counted(node.threads, "thread") if node.threads else ""
    weights = node.weights if node.weights != "dense" else ""
    return [said for said in (node.device, memory, threads, node.dtype, weights) if said]


def rtt_of(node: Node, peer: Row | None) -> float | None:
    """Of the relay's last ping, where its socket answers such; else what was measured last."""
    now_ms = rtt_ms_of(peer)
    return node.rtt_ms if now_ms is None else now_ms


def samples_of(pks: Sequence[int], since: datetime) -> Mapping[int, Sequence[Sample]]:
    """Of each node by its key, the oldest first."""
    fields = ("at", "rtt_ms", "hop_ms", "bytes_in", "bytes_out", "sessions", "cached_tokens")
    rows = NodeSample.objects.filter(node__in=pks, at__gt=since).order_by("node", "at").values_list("node", *fields)
    told: defaultdict[int, list[Sample]] = defaultdict(list)
    for pk, *values in rows:
        told[pk].append(Sample(*values))
    return told


def contributions_of(pks: Sequence[int], now: datetime) -> dict[int, int]:
    """Tokens times layers that each has served within CONTRIBUTED_DAYS, by its key."""
    since = day_of(now) - timedelta(days=CONTRIBUTED_DAYS)
    rows = Contribution.objects.filter(node__in=pks, day__gt=since).order_by().values_list("node")
    return dict(rows.annotate(sum=Sum("token_layers")))


def points(samples: Sequence[Sample], of: Callable[[Sample], float | None]) -> list[Point]:
    return [(sample.at, of(sample)) for sample in samples]


def _latency(samples: Sequence[Sample], end: datetime) -> tuple[Line, str]:
    """Steps through it, as heads saw them; where none went through, the relay's pings."""
    hops = lines.line(points(samples, lambda sample: sample.hop_ms), end, SHOWN)
    if hops.path:
        return hops, "a step"
    return lines.line(points(samples, lambda sample: sample.rtt_ms), end, SHOWN), "round trip"
