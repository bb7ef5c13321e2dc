"""What happened to a session, in sentences and in order: its first text, the nodes that it lost, how it ended. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracker.words import counted

Story = Mapping[str, Any]  # as stories.session_story tells it


@dataclass(frozen=True, slots=True)
class Happening:
    after_s: float | None  # since the session began; None: not known
    said: str
    kind: str = ""  # good, bad, busy or off, where it is a matter of that
    more: str = ""


def happenings(story: Story, cancelled_by: str) -> list[Happening]:
    route = " → ".join(hop["node"] for hop in _first_route(story)) or "no node that is still known"
    told = [Happening(0.0, f"It began, over {route}.")]
    if story["ttft_ms"] is not None:
        told.append(Happening(story["ttft_ms"] / 1000, "The first text was there.", "good"))
    for failover in story["failovers"]:
        told += _of_failover(failover)
    told.sort(key=lambda one: one.after_s or 0.0)
    return [*told, *_end(story, cancelled_by)]


def _first_route(story: Story) -> Sequence[Mapping[str, Any]]:
    earlier = story["earlier_routes"]
    hops: Sequence[Mapping[str, Any]] = min(earlier, key=lambda one: one["epoch"])["hops"] if earlier else story["hops"]
    return hops


def _of_failover(failover: Mapping[str, Any]) -> Iterator[Happening]:
    node = f"{failover['node']}, {failover['layers']}" + (" (the head)" if failover["kind"] == "head" else "")
    by = f"Said by {failover['reported_by']}" if failover["reported_by"] else "Seen by the site"
    more = f"{by}{_place(failover)}."
    if failover["kind"] == "move":
        yield Happening(failover["after_s"], f"{node}, is being drained: the session leaves it.", "busy", more)
    else:
        why = f"{failover['code']}: {failover['cause']}" if failover["cause"] else failover["code"]
        yield Happening(failover["after_s"], f"{node}, was lost: {why.rstrip('.')}.", "bad", more)
    resume_ms = failover["resume_ms"]
    instead = ", ".join(failover["instead"])
    went_on = f"{instead} took over" if instead else "The session went on over the nodes that it had"
    if resume_ms is not None:
        after_s = failover["after_s"] + resume_ms / 1000
        yield Happening(
            after_s, f"{went_on}; the next token came {resume_ms:.0f} ms after the loss.", "good", _filled(failover)
        )
    elif instead:
        yield Happening(failover["after_s"], f"{went_on}.", "", _filled(failover))


def _place(failover: Mapping[str, Any]) -> str:
    if failover["answer_position"] is not None:
        return f", at token {failover['answer_position']} of the answer"
    return f", at token {failover['position']} of prompt and answer" if failover["position"] is not None else ""


def _filled(failover: Mapping[str, Any]) -> str:
    """What the new nodes were given, so that they know what came before."""
    if not failover["kept"]:
        return ""
    tokens, compute_ms = failover["replayed_tokens"], failover["replay_compute_ms"]
    source = (
        "token ids, through the whole route" if failover["kept"] == "tokens" else "activations that the head had kept"
    )
    what = f"with {counted(tokens, 'token')} again" if tokens is not None else "again"
    return f"Filled {what}, from {source}" + (f": {compute_ms:.0f} ms of computing." if compute_ms is not None else ".")


def _end(story: Story, cancelled_by: str) -> Iterator[Happening]:
    error, after_s = story["error"], story["duration_s"]
    match story["state"]:
        case "done":
            tokens = counted(story["completion_tokens"] or 0, "token")
            yield Happening(after_s, f"It was done: {tokens}, ended by {story['finish_reason'] or 'its head'}.", "good")
        case "failed":
            yield Happening(after_s, f"It failed: {_in_words(error)}", "bad")
        case "lost":
            yield Happening(None, "The process of the site that ran it gives no news any more: it is lost.", "bad")
        case "cancelled" if cancelled_by:
            yield Happening(after_s, f"{cancelled_by} ended it.", "off")
        case "cancelled":
            yield Happening(after_s, _in_words(error) or "Its client left before the answer was whole.", "off")
        case _ if cancelled_by:
            yield Happening(None, f"{cancelled_by} has asked for its end, which comes within a few seconds.", "busy")


def _in_words(error: Mapping[str, Any] | None) -> str:
    if not error:
        return ""
    return f"{error['code']}: {error['message']}" if error["code"] else str(error["message"])
