"""The head's event stream, read: bytes in, typed events out. Pure; whatever a node may send is well-formed after it.

: keepalive                                                         each second in which nothing else comes
data: {"choices": [{delta | text, finish_reason}],
       "meshnet": {"ids", "position", "prompt_ids"?, "logprobs"?, "calls"?, "progress"?: {"hops", …}}}
                                                                  "calls": the markup that tool calls in the text have
                                                                  "progress": as at the end, at most each second
data: {"meshnet": {"done": true, "usage": {…}, "hops": [{…}],
                   "left"?: [{…, "epoch"}], "failovers"?: [{…}], "steps"?: [{…}]}}
                                                                  once, also before an error where possible
data: {"error": {"code", "message", "param"?}}
data: [DONE]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracker import logprobs
from tracker.calls import Markup
from tracker.hopreports import WRONG, Report, read_report, text, whole
from tracker.logprobs import TokenLogprobs

MAX_EVENT_BYTES = 4 * 1024 * 1024  # the first carries the prompt's ids
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
    progress: Report | None = None


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
            yield read_report(own)
        if fields.get("error"):
            yield _failure(fields["error"])
    except WRONG as error:
        raise BadStream("an event can't be read") from error


def _delta(choice: dict[str, Any], own: dict[str, Any]) -> Delta:
    said: dict[str, Any] = choice["delta"] if "delta" in choice else {"content": choice["text"]}
    reason, position = choice.get("finish_reason"), own.get("position")
    if reason is not None and reason not in FINISH_REASONS:
        raise ValueError(f"finish_reason {reason!r}")
    if said.get("role") not in (None, "assistant"):
        raise ValueError("role")
    prompt_ids = _ids(own["prompt_ids"]) if "prompt_ids" in own else None
    at = None if position is None else whole(position)
    ids, told = _ids(own.get("ids", [])), logprobs.read(own.get("logprobs", []))
    calls = Markup.read(own["calls"]) if own.get("calls") is not None else None
    progress = read_report(own["progress"]) if own.get("progress") is not None else None
    return Delta(text(said.get("content") or ""), said.get("role"), reason, ids, at, prompt_ids, told, calls, progress)


def _failure(error: dict[str, Any]) -> Failure:
    param = error.get("param")
    return Failure(text(error["code"]), text(error["message"]), None if param is None else text(param))


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(whole(one) for one in value)
