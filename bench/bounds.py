"""What a token's time goes into, and how far that is from the least it could be.

A step reads every weight once, and one sequence reuses none of them: below weights over memory bandwidth no program
gets. What computing takes beyond that is dispatch (Python, operators that start and end, attention), what a hop takes
beyond its computing and its queue is the wire: both ends' threads, the relay, the sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.chats import Chat
from bench.report import median, table


@dataclass(frozen=True)
class Spent:
    """Of one step, in ms."""

    tokens: float  # that the step gave
    whole: float
    compute: float
    wire: float  # of the hops after the head

    @property
    def head(self) -> float:
        """Threads and events of the head, and what the site does before it takes the next one."""
        return max(0.0, self.whole - self.compute - self.wire)


def spent(first: Chat, whole: Chat) -> Spent:
    """A decoding step of `whole`. `first`: the same chat that ends with its first token, which is the prompt's time."""
    num_steps = whole.num_steps - first.num_steps

    def per_step(name: str) -> list[float]:
        pairs = zip(whole.spent_ms(name), first.spent_ms(name), strict=True)
        return [(after - before) / num_steps for after, before in pairs]

    compute, queued, total = (per_step(name) for name in ("compute_ms", "queue_ms", "ms_total"))
    wire = sum(total[1:]) - sum(compute[1:]) - sum(queued[1:])
    took_ms = 1000 * (whole.times[-1] - whole.times[0])
    return Spent((len(whole.ids) - 1) / num_steps, took_ms / num_steps, sum(compute), wire)


@dataclass(frozen=True)
class Bound:
    """A row with the bytes of weights that a token reads. `spent`: one a round; none where only the whole is known."""

    name: str
    bits: str
    num_bytes: int
    token_ms: float
    spent: Sequence[Spent]


def bound_table(bounds: Sequence[Bound], stream_ms: Callable[[int], float]) -> str:
    header = ["", "bits", "ms a token", "MB of weights", "reading them", "dispatch", "wire", "head", "bound over all"]
    return table(header, [_line(bound, stream_ms(bound.num_bytes)) for bound in bounds])


def _line(bound: Bound, least_ms: float) -> list[str]:
    compute, wire, head = (
        median([getattr(each, name) for each in bound.spent]) if bound.spent else None
        for name in ("compute", "wire", "head")
    )
    dispatch = (bound.token_ms if compute is None else compute) - least_ms
    figures = [bound.token_ms, bound.num_bytes / 1e6, least_ms, dispatch, wire, head]
    shown = ["" if figure is None else f"{figure:.1f}" for figure in figures]
    return [bound.name, bound.bits, *shown, f"{least_ms / bound.token_ms:.2f}"]
