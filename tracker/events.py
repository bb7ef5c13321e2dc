"""The head's event stream, read: bytes in, typed events out. Pure; whatever a node may send is well-formed after it.

: keepalive                                                         each second in which nothing else comes
data: {"choices": [{delta | text, finish_reason}], "meshnet": {"ids", "position", "prompt_ids"?, "logprobs"?, "calls"?}}
                                                                  "calls": the markup that tool calls in the text have
data: {"meshnet": {"done": true, "usage": {…}, "hops": [{…}], "left"?: [{…, "epoch"}], "failovers"?: [{…}]}}
                                                                  once, also before an error where possible
data: {"error": {"code", "message", "param"?}}
data: [DONE]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracker import logprobs
from tracker.calls import Markup
from tracker.logprobs import TokenLogprobs

MAX_EVENT_BYTES = 4 * 1024 * 1024  # the first carries the prompt's ids
MAX_HOPS = 64
MAX_FAILOVERS = 1024
MAX_LEFT = 1024
FINISH_REASONS = frozenset({"stop", "length"})


class BadStream(Exception):
    """The head's stream breaks a rule."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    pass


@dataclass(frozen=True, slots=True)
class Delta:
    text: str
    role: str | None = None
    finish_reason: str | None = None
    ids: tuple[int, ...] = ()
    position: int | None = None
    prompt_ids: tuple[int, ...] | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    calls: Markup | None = None


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
    prompt_tokens: int | None
    completion_tokens: int | None
    hops: tuple[HopReport, ...] = ()
    failovers: tuple[FailoverReport, ...] = ()
    left: tuple[HopReport, ...] = ()  # hops that the session has gone on without

    @property
    def all_hops(self) -> tuple[HopReport, ...]:
        return self.hops + self.left


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    message: str
    param: str | None = None  # what the client should mend


@dataclass(frozen=True, slots=True)
class Done:
    pass


Event = Keepalive | Delta | Report | Failure | Done


@dataclass(slots=True)
class EventReader:
    """Cuts a stream of bytes into events, wherever its pieces were cut."""

    _rest: bytes = field(default=b"", init=False)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Raises BadStream."""
        *blocks, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BadStream(f"an event is over {MAX_EVENT_BYTES} bytes")
        for block in blocks:
            yield from _read_block(block)


def _read_block(block: bytes) -> Iterator[Event]:
    lines = block.split(b"\n")
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    if data == b"[DONE]":
        yield Done()
    elif data:
        yield from _read_data(data)
    elif any(line.startswith(b":") for line in lines):
        yield Keepalive()


def _read_data(data: bytes) -> Iterator[Event]:
    try:
        fields = json.loads(data)
        own = fields.get("meshnet") or {}
        if fields.get("choices"):
            yield _delta(fields["choices"][0], own)
        if own.get("done") is True:
            yield _report(own)
        if fields.get("error"):
            yield _failure(fields["error"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BadStream("an event can't be read") from error


def _delta(choice: dict[str, Any], own: dict[str, Any]) -> Delta:
    said: dict[str, Any] = choice["delta"] if "delta" in choice else {"content": choice["text"]}
    reason, position = choice.get("finish_reason"), own.get("position")
    if reason is not None and reason not in FINISH_REASONS:
        raise ValueError(f"finish_reason {reason!r}")
    if said.get("role") not in (None, "assistant"):
        raise ValueError("role")
    prompt_ids = _ids(own["prompt_ids"]) if "prompt_ids" in own else None
    at = None if position is None else _whole(position)
    ids, told = _ids(own.get("ids", [])), logprobs.read(own.get("logprobs", []))
    calls = Markup.read(own["calls"]) if own.get("calls") is not None else None
    return Delta(_text(said.get("content") or ""), said.get("role"), reason, ids, at, prompt_ids, told, calls)


def _report(own: dict[str, Any]) -> Report:
    usage = own.get("usage") or {}
    hops, failovers, left = (own.get(name) or [] for name in ("hops", "failovers", "left"))
    if len(hops) > MAX_HOPS or len(failovers) > MAX_FAILOVERS or len(left) > MAX_LEFT:
        raise ValueError("too many hops or failovers")
    prompt, completion = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
    return Report(
        None if prompt is None else _whole(prompt),
        None if completion is None else _whole(completion),
        tuple(_hop(hop) for hop in hops),
        tuple(_failover(failover) for failover in failovers),
        tuple(_hop(hop) for hop in left),
    )


def _failure(error: dict[str, Any]) -> Failure:
    param = error.get("param")
    return Failure(_text(error["code"]), _text(error["message"]), None if param is None else _text(param))


def _failover(failover: dict[str, Any]) -> FailoverReport:
    tokens, resume_ms, compute_ms = (
        failover.get(name) for name in ("replayed_tokens", "resume_ms", "replay_compute_ms")
    )
    return FailoverReport(
        _whole(failover["epoch"]),
        _text(failover.get("kept") or ""),
        None if tokens is None else _whole(tokens),
        None if resume_ms is None else _time(resume_ms),
        None if compute_ms is None else _time(compute_ms),
    )


def _hop(hop: dict[str, Any]) -> HopReport:
    return HopReport(
        _text(hop["peer_id"]),
        _whole(hop["start_layer"]),
        _whole(hop["end_layer"]),
        _text(hop["path"]),
        _whole(hop["steps"]),
        _time(hop["ms_total"]),
        _time(hop["compute_ms"]),
        _time(hop["queue_ms"]),
        _whole(hop.get("drafted", 0)),
        _whole(hop.get("accepted", 0)),
        None if hop.get("tokens") is None else _whole(hop["tokens"]),
        None if hop.get("epoch") is None else _whole(hop["epoch"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    value.encode()  # half a surrogate pair raises here, not where the client is written to
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise TypeError("a whole number was expected")
    return value


def _time(value: Any) -> float:
    """Milliseconds. A clock that jumped gives no negative time."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("milliseconds were expected")
    return max(0.0, float(value))


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(_whole(one) for one in value)
