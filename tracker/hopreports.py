"""What a head reports of its session's route, read: each hop's figures, failovers, the last steps. Pure.

Whatever a node may send is well-formed after it; else one of `WRONG` is raised, which events.py turns into BadStream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

MAX_HOPS = 64
MAX_FAILOVERS = 1024
MAX_LEFT = 1024
MAX_STEPS = 32
KINDS = ("compute", "network", "queue")  # of which a step's time at a hop consists
PERCENTILES = tuple(f"{kind}_{name}_ms" for kind in KINDS for name in ("p50", "p95"))
WRONG = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)

Step = dict[str, Any]  # {"step", "epoch", "position", "tokens", "at_ms", "hops": [[ms of each of KINDS]]}


@dataclass(frozen=True, slots=True)
class HopReport:
    peer_id: str
    start_layer: int
    end_layer: int
    path: str
    steps: int
    ms_total: float
    compute_ms: float
    queue_ms: float
    drafted: int = 0
    accepted: int = 0
    tokens: int | None = None  # of prompt and answer that have been through it; None: its head doesn't count them
    epoch: int | None = None  # the last of its routes that it was on; None: the session's
    percentiles: dict[str, float] = field(default_factory=dict)  # of PERCENTILES; empty before the first decode step


@dataclass(frozen=True, slots=True)
class FailoverReport:
    """What it took to go on in this epoch."""

    epoch: int
    kept: str
    replayed_tokens: int | None
    resume_ms: float | None
    replay_compute_ms: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The last word on a session, or how it goes while it runs."""

    prompt_tokens: int | None
    completion_tokens: int | None
    hops: tuple[HopReport, ...] = ()
    failovers: tuple[FailoverReport, ...] = ()
    left: tuple[HopReport, ...] = ()  # hops that the session has gone on without
    steps: tuple[Step, ...] = ()

    @property
    def all_hops(self) -> tuple[HopReport, ...]:
        return self.hops + self.left


def read_report(own: dict[str, Any]) -> Report:
    usage = own.get("usage") or {}
    failovers = own.get("failovers") or []
    if len(failovers) > MAX_FAILOVERS:
        raise ValueError("too many failovers")
    prompt, completion = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
    return Report(
        None if prompt is None else whole(prompt),
        None if completion is None else whole(completion),
        _hops(own.get("hops"), MAX_HOPS),
        tuple(_failover(failover) for failover in failovers),
        _hops(own.get("left"), MAX_LEFT),
        _steps(own.get("steps")),
    )


def _hops(told: list[dict[str, Any]] | None, most: int) -> tuple[HopReport, ...]:
    if told and len(told) > most:
        raise ValueError("too many hops")
    return tuple(_hop(hop) for hop in told or ())


def _hop(hop: dict[str, Any]) -> HopReport:
    return HopReport(
        text(hop["peer_id"]),
        whole(hop["start_layer"]),
        whole(hop["end_layer"]),
        text(hop["path"]),
        whole(hop["steps"]),
        time_ms(hop["ms_total"]),
        time_ms(hop["compute_ms"]),
        time_ms(hop["queue_ms"]),
        whole(hop.get("drafted", 0)),
        whole(hop.get("accepted", 0)),
        None if hop.get("tokens") is None else whole(hop["tokens"]),
        None if hop.get("epoch") is None else whole(hop["epoch"]),
        {name: time_ms(hop[name]) for name in PERCENTILES if hop.get(name) is not None},
    )


def _steps(told: list[dict[str, Any]] | None) -> tuple[Step, ...]:
    if told and len(told) > MAX_STEPS:
        raise ValueError("too many steps")
    return tuple(_step(step) for step in told or ())


def _step(step: dict[str, Any]) -> Step:
    hops = step["hops"]
    if len(hops) > MAX_HOPS or any(len(times) != len(KINDS) for times in hops):
        raise ValueError("a step's hops")
    counts = {name: whole(step[name]) for name in ("step", "position", "tokens")} | {
        "epoch": whole(step.get("epoch", 0))
    }
    return counts | {"at_ms": time_ms(step["at_ms"]), "hops": [[time_ms(ms) for ms in times] for times in hops]}


def _failover(failover: dict[str, Any]) -> FailoverReport:
    tokens, resume_ms, compute_ms = (
        failover.get(name) for name in ("replayed_tokens", "resume_ms", "replay_compute_ms")
    )
    return FailoverReport(
        whole(failover["epoch"]),
        text(failover.get("kept") or ""),
        None if tokens is None else whole(tokens),
        None if resume_ms is None else time_ms(resume_ms),
        None if compute_ms is None else time_ms(compute_ms),
    )


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    value.encode()  # half a surrogate pair raises here, not where the client is written to
    return value


def whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise TypeError("a whole number was expected")
    return value


def time_ms(value: Any) -> float:
    """A clock that jumped gives no negative time."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("milliseconds were expected")
    return max(0.0, float(value))
