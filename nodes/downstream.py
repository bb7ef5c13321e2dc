"""One hop of a route as its head sees it: its paths, which of them is taken now, what it cost so far.

The tunnel comes first where both ends speak version 2 of the wire, then the relay with a socket of its own, then direct
HTTP; a node may prefer otherwise. When a path fails, a warning is logged and the next is tried with the same step
number, after the first attempt has ended. When none is left, one error string names all causes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.deadline import Cancelled, Deadline
from nodes.hops import Dialler, HopAnswer, HopError, Path
from nodes.timings import Percentiles, Times
from relay.headers import CACHED, COMPUTE_MS, QUEUE_MS, Hop
from relay.wire import STATUS, Code, error_of

logger = logging.getLogger(__name__)

REST_S = 5.0  # a path that failed comes last for so long
PROBE_DEADLINE_S = 2.0  # of a path that is timed
SLOW_IS_NOT_DEAD = 4
LOST_PATIENCE_S = 1.0  # for a step of a hop that is thought to be lost: it may be back
RELEASE_DEADLINE_S = 5.0
NODE_FAILED = "node_failed"

# Answers of the node itself: asking it again on another path would change nothing.
_FINAL = {
    *(Code.STALE, Code.MISSING, Code.BUSY, Code.BAD_REQUEST, Code.INTERNAL),
    *(Code.NO_GRAMMAR, Code.BAD_GRAMMAR),
}

_FULL = {Code.BUSY, Code.PEER_BUSY, Code.RATE_LIMITED}


class HopRefused(Exception):
    """The node has answered, and the answer is no."""

    def __init__(
        self, where: str, code: str, message: str, num_cached: int = 0, hop: DownstreamHop | None = None
    ) -> None:
        super().__init__(f"pipeline error: {where}: {message}")
        self.message = message
        self.code, self.num_cached, self.hop = code, num_cached, hop


class HopFailed(Exception):
    """No path to the hop works, or what it answers can't be right. The text is the pipeline error string, with the
    cause on each path."""

    def __init__(self, text: str, hop: DownstreamHop | None = None, code: str = NODE_FAILED) -> None:
        super().__init__(text)
        self.hop, self.code = hop, code


@dataclass
class HopStatistics:
    path: str
    num_steps: int = 0
    num_tokens: int = 0  # of prompt and answer that have been through it, each once however often it was sent
    ms_total: float = 0.0
    compute_ms: float = 0.0
    queue_ms: float = 0.0
    slowest_s: float = 0.0
    drafted: int = 0  # tokens that the tail was given as guesses
    accepted: int = 0  # of these, what it would have chosen itself
    last: Times = (0.0, 0.0, 0.0)  # of its last step
    decoding: Percentiles = field(default_factory=Percentiles)

    def add(self, path: str, took_s: float, compute_ms: float, queue_ms: float) -> None:
        self.path, self.num_steps = path, self.num_steps + 1
        took_ms = took_s * 1000
        self.ms_total += took_ms
        self.compute_ms += compute_ms
        self.queue_ms += queue_ms
        self.slowest_s = max(self.slowest_s, took_s)
        self.last = compute_ms, max(0.0, took_ms - compute_ms - queue_ms), queue_ms

    def reach(self, end: int) -> None:
        """The session's tokens up to there have been through it: steps begin at its first and leave out none."""
        self.num_tokens = max(self.num_tokens, end)

    def as_dict(self, peer_id: str, layers: tuple[int, int]) -> dict[str, Any]:
        hop = {"peer_id": peer_id, "start_layer": layers[0], "end_layer": layers[1], "path": self.path}
        times = {"ms_total": self.ms_total, "compute_ms": self.compute_ms, "queue_ms": self.queue_ms}
        counts = {"steps": self.num_steps, "tokens": self.num_tokens}
        drafts = {"drafted": self.drafted, "accepted": self.accepted}
        rounded = {name: round(value, 3) for name, value in times.items()}
        return hop | counts | drafts | rounded | self.decoding.as_dict()


class DownstreamHop:
    def __init__(self, hop: Hop, dialler: Dialler, clock: Callable[[], float] = time.monotonic) -> None:
        self.hop = hop
        self._clock = clock
        self._causes: dict[str, str] = {}  # why a path doesn't exist
        relayed, direct = self._relayed(dialler), self._direct(dialler)
        self._paths = [*direct, *relayed] if dialler.prefer == "direct" else [*relayed, *direct]
        self._to_time = [*relayed[:1], *direct] if dialler.prefer == "fastest" and relayed and direct else []
        self._rests_until: dict[str, float] = {}
        self._patience_s = dialler.patience_s
        self.num_held = 0  # tokens of the session that it holds, as far as is known here
        self.num_replays = 0  # how often it had lost some of them
        self.is_lost = False  # until it answers a step again
        self.knows_grammar = False  # of the session's answer, as far as is known here
        self._silent_s = 0.0  # for so long it had been asked in vain: it may be slow, which its next answer tells
        self.statistics = HopStatistics(path=self._paths[0].name if self._paths else "direct")

    @property
    def layers(self) -> tuple[int, int]:
        return self.hop.start_layer, self.hop.end_layer

    def __str__(self) -> str:
        return f"layers {self.hop.start_layer}–{self.hop.end_layer - 1} on peer {self.hop.peer_id[:8]}"

    def step(self, headers: Mapping[str, str], body: bytes, deadline: Deadline, usual_s: float = 0.0) -> HopAnswer:
        """The hop's answer to POST /forward, status 200. `usual_s`: what such a step may well take, where nothing is
        known of this node yet. Raises HopRefused, HopFailed, Cancelled."""
        if self._to_time:
            self._put_fastest_first(deadline)
        started, silent_s = self._clock(), self._silent_s
        slow_s = SLOW_IS_NOT_DEAD * (self.statistics.slowest_s or usual_s)
        path, answer = self._ask("POST", "/forward", headers, body, deadline, slow_s)
        compute_ms, queue_ms = (_number(answer.headers.get(name)) for name in (COMPUTE_MS, QUEUE_MS))
        took_s = self._clock() - started
        self.statistics.add(path, took_s, compute_ms, queue_ms)
        self.statistics.slowest_s = max(self.statistics.slowest_s, silent_s + took_s)
        self.is_lost, self._silent_s = False, 0.0
        return answer

    def release(self, session: str, headers: Mapping[str, str]) -> None:
        """Frees the session at the hop; a warning when that can't be done, since idle caches end by themselves."""
        deadline = Deadline.after(RELEASE_DEADLINE_S)
        try:
            self._ask("DELETE", f"/sessions/{session}", headers, b"", deadline, 0.0)
        except (HopFailed, HopRefused) as error:
            logger.warning("session %s can't be freed at %s: %s", session[:8], self, error)
        finally:
            self.close()

    def close(self) -> None:
        for path in self._paths:
            path.close()

    def _relayed(self, dialler: Dialler) -> list[Path]:
        try:
            if not self.hop.relay_addr:
                raise HopError("no relay address")
            relay = dialler.relay_hop(self.hop.relay_addr)
        except HopError as error:
            self._causes["relay"] = error.cause
            return []
        tunnel = dialler.tunnel_hop(self.hop)
        return [tunnel, relay] if tunnel else [relay]

    def _direct(self, dialler: Dialler) -> list[Path]:
        if self.hop.endpoint:
            return [dialler.direct_hop(self.hop.endpoint)]
        self._causes["direct"] = "no direct endpoint"
        return []

    def _put_fastest_first(self, deadline: Deadline) -> None:
        """Times the first way through the relay and the direct one, once for the route."""
        took_s = {path.name: self._time(path, deadline.at_most(PROBE_DEADLINE_S)) for path in self._to_time}
        if took_s["direct"] < min(seconds for name, seconds in took_s.items() if name != "direct"):
            self._paths.sort(key=lambda path: path.name != "direct")
        self._to_time = []

    def _time(self, path: Path, deadline: Deadline) -> float:
        """Seconds of a question on a connection that is open: as every step but the first finds it."""
        try:
            path.ask("GET", "/health", {}, b"", deadline)
            started = self._clock()
            answer = path.ask("GET", "/health", {}, b"", deadline)
        except HopError as error:
            logger.info("%s hop to %s can't be timed: %s", path.name, self, error.cause)
            return math.inf
        return self._clock() - started if answer.status == 200 else math.inf

    def _in_order(self) -> list[Path]:
        now = self._clock()
        return sorted(self._paths, key=lambda path: now < self._rests_until.get(path.name, now))

    def _ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline, slow_s: float
    ) -> tuple[str, HopAnswer]:
        causes = dict(self._causes)
        codes = set()
        paths = self._in_order()
        patience_s = LOST_PATIENCE_S if self.is_lost else self._patience_s
        for number, path in enumerate(paths):
            others, started = paths[number + 1 :], self._clock()
            share = _share(deadline, max(patience_s, slow_s))
            is_hurried = deadline.left_s() / 2 < max(patience_s, slow_s)
            try:
                return path.name, self._try(path, method, target, headers, body, share)
            except HopError as error:
                if deadline.is_cancelled:
                    raise Cancelled from None
                if (waited_s := self._clock() - started) > patience_s / 2:  # silent, and may well be so on any path
                    self._silent_s += waited_s
                    patience_s = max(LOST_PATIENCE_S, patience_s / 2)
                causes[path.name] = error.cause
                codes.add(_blamed(error, is_hurried))
                self._note(path, error, others)
        found = "; ".join(f"{name}: {causes[name]}" for name in ("tunnel", "relay", "direct") if name in causes)
        raise HopFailed(f"pipeline error: {self}: {found}", self, _word_for(codes))

    def _try(
        self, path: Path, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline
    ) -> HopAnswer:
        try:
            answer = path.ask(method, target, headers, body, deadline)
        except HopError as error:
            if not error.is_cut or len(self._paths) > 1:
                raise
            logger.warning("%s hop to %s was cut: %s; asking once more", path.name, self, error.cause)
            answer = path.ask(method, target, headers, body, deadline)
        if answer.status == 200 or answer.status == 204:
            return answer
        code, message = error_of(answer.status, answer.body)
        if code in _FINAL and answer.status == STATUS[Code(code)]:  # else something in between has answered
            raise HopRefused(str(self), code, message, int(_number(answer.headers.get(CACHED))), self)
        raise HopError(f"{code}: {message}", code=code)

    def _note(self, path: Path, error: HopError, others: list[Path]) -> None:
        self._rests_until[path.name] = self._clock() + REST_S
        if others:
            how = "direct HTTP" if others[0].name == "direct" else f"the {others[0].name}"
            logger.warning("%s hop to %s failed: %s; trying %s", path.name, self, error.cause, how)


def _share(deadline: Deadline, patience_s: float) -> Deadline:
    """The part of the request's time that one attempt may take: half of what is left stays for going another way."""
    return deadline.at_most(min(deadline.left_s() / 2, patience_s))


def _blamed(error: HopError, is_hurried: bool) -> str:
    """`is_hurried`: the request's end left the node less than its time."""
    if error.is_late or error.code == Code.DEADLINE:
        return Code.DEADLINE if is_hurried else NODE_FAILED
    return error.code or NODE_FAILED


def _word_for(codes: Collection[str]) -> str:
    """What it was, from what was answered on each path: a node that is full or leaves hasn't failed."""
    if Code.DRAINING in codes:
        return Code.DRAINING
    if codes == {Code.DEADLINE}:
        return Code.DEADLINE  # the request's time was too short to say that the node doesn't answer
    return Code.BUSY if codes and _FULL.issuperset(codes) else NODE_FAILED


def _number(text: str | None) -> float:
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
