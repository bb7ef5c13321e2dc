"""The last steps of a session as a picture: a lane for each hop, time from left to right. Pure.

In its lane a step is what it was there: computing high, waiting in the hop's queue half as high, the network a line on
both sides of these. The hops of a step work one after the other, so what isn't drawn in any lane passed at the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracker.templatetags.meshnet import ms
from tracker.words import counted

WIDTH, HEIGHT = 1000.0, 24.0  # of a lane's view box
_BANDS = {"compute": (2.0, 20.0), "queue": (7.0, 10.0), "network": (11.0, 2.0)}  # from the top, and how high
_LEAST = 0.4  # units: what is narrower is drawn so wide, or nobody would see it

Route = Sequence[Mapping[str, Any]]  # hops with "node" and "layers", the head first


@dataclass(slots=True)
class Lane:
    node: str
    layers: str
    paths: dict[str, str] = field(default_factory=lambda: dict.fromkeys(_BANDS, ""))  # of SVG, by kind of time


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: list[Lane]
    rows: list[dict[str, Any]]  # the steps as a table
    length_ms: float

    @property
    def in_words(self) -> str:
        num_steps, num_tokens = len(self.rows), sum(row["tokens"] for row in self.rows)
        steps = f"its last {num_steps} steps" if num_steps > 1 else "its only step"
        return f"{steps}, {counted(num_tokens, 'token')} in {ms(self.length_ms)}"


def timeline(steps: Sequence[Mapping[str, Any]], routes: Mapping[int, Route]) -> Timeline | None:
    """Of steps as heads tell them. `routes`: by epoch; the newest is that of now. None where there is no step."""
    if not steps:
        return None
    begin_ms = float(steps[0]["at_ms"])
    length_ms = max(_end_ms(step) for step in steps) - begin_ms or 1.0
    scale, lanes = WIDTH / length_ms, _lanes(routes)
    for step in steps:
        x = (step["at_ms"] - begin_ms) * scale
        for hop, (compute, network, queue) in zip(_hops(step, routes), step["hops"], strict=True):
            lane, way = lanes.setdefault(hop, Lane(*hop)), ("network", network / 2)
            for kind, took_ms in (way, ("queue", queue), ("compute", compute), way):
                lane.paths[kind] += _bar(kind, x, took_ms * scale)
                x += took_ms * scale
    drawn = [lane for lane in lanes.values() if any(lane.paths.values())]
    return Timeline(drawn, [_row(step, routes, begin_ms) for step in steps], length_ms)


def _end_ms(step: Mapping[str, Any]) -> float:
    return float(step["at_ms"] + sum(map(sum, step["hops"])))


def _lanes(routes: Mapping[int, Route]) -> dict[tuple[str, str], Lane]:
    """In the order of their layers; of hops of the same, that of now comes first."""
    hops = [hop for epoch in sorted(routes, reverse=True) for hop in routes[epoch]]
    hops.sort(key=lambda hop: int(hop["start_layer"]))
    return {(hop["node"], hop["layers"]): Lane(hop["node"], hop["layers"]) for hop in hops}


def _hops(step: Mapping[str, Any], routes: Mapping[int, Route]) -> list[tuple[str, str]]:
    """Which they were. A head may tell of a route that isn't written yet."""
    num_hops, route = len(step["hops"]), routes.get(step.get("epoch", 0), ())
    if len(route) != num_hops:
        route = next((one for one in routes.values() if len(one) == num_hops), ())
    if route:
        return [(hop["node"], hop["layers"]) for hop in route]
    return [(f"hop {number}", "") for number in range(1, num_hops + 1)]


def _bar(kind: str, x: float, width: float) -> str:
    if width <= 0:
        return ""
    top, height = _BANDS[kind]
    return f"M{x:.1f} {top:g}h{max(width, _LEAST):.1f}v{height:g}H{x:.1f}z"


def _row(step: Mapping[str, Any], routes: Mapping[int, Route], begin_ms: float) -> dict[str, Any]:
    names = _hops(step, routes)
    hops = [
        {"node": node, "compute_ms": compute, "network_ms": network, "queue_ms": queue}
        for (node, _), (compute, network, queue) in zip(names, step["hops"], strict=True)
    ]
    told = {name: step[name] for name in ("step", "position", "tokens")}
    return told | {"at_ms": step["at_ms"] - begin_ms, "took_ms": sum(map(sum, step["hops"])), "hops": hops}
