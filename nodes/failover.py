"""What the head of a session does when a hop is lost: it asks for a route without it, and waits while there is none.

Meanwhile the hop itself is tried again: it may be back, as after a relay has restarted. The head's loop (generation.py)
tries its step, hands in what that raised, and tries again: on the next route if the tracker had one, on this one
otherwise. It ends with one error that names the hop, what was wrong with it and why no other could take over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from nodes.backoff import Backoff
from nodes.deadline import Cancelled, Deadline, DeadlineOver
from nodes.downstream import NODE_FAILED, DownstreamHop, HopFailed, HopRefused
from nodes.pipeline import Pipeline
from nodes.reroute import MOVE, Loss, NextRoute, NoAnswer, NotNow, NotOurs, Refused, Rerouter
from nodes.sessions import Stale
from relay.headers import Hop, Ticket
from relay.wire import Code, WireError

logger = logging.getLogger(__name__)

FAILOVER_WAIT_S = 20.0  # where the site names no other
ASK_DEADLINE_S = 5.0
LEAST_LEFT_S = 1.0  # of a request's time: with less another route would only begin
LEAST_PAUSE_S, MOST_JITTER_S = 0.25, 0.75  # between two tries
_STAYS = {Code.NO_GRAMMAR}  # the hop would say the same later, too
_FINAL = {Code.STALE, Code.BAD_REQUEST, Code.BAD_GRAMMAR}  # another hop would say the same

Allow = Callable[[str, int, list[Hop]], Ticket]  # (ticket, epoch, hops after the head) as NodeApi checks them


@dataclass
class Switched:
    """One change of the route, as the tracker is told of it at the end."""

    epoch: int
    lost_at: float
    position: int
    resume_ms: float | None = None  # to the next token
    kept: str = "tokens"
    replayed_tokens: int = 0
    replay_compute_ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        resume_ms = None if self.resume_ms is None else round(self.resume_ms, 3)
        return {
            "epoch": self.epoch,
            "resume_ms": resume_ms,
            "kept": self.kept,
            "replayed_tokens": self.replayed_tokens,
            "replay_compute_ms": round(self.replay_compute_ms, 3),
        }


@dataclass
class Failover:
    """Of one session. Used by the thread that runs it. Without a rerouter the first loss is the end."""

    pipeline: Pipeline
    rerouter: Rerouter | None = None
    allow: Allow | None = None
    new_hop: Callable[[Hop], DownstreamHop] | None = None
    wait_s: float = FAILOVER_WAIT_S  # without any progress; the request's deadline may come first
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[Deadline, float], object] = Deadline.pause
    backoff: Backoff = field(default_factory=lambda: Backoff(LEAST_PAUSE_S, MOST_JITTER_S))
    switched: list[Switched] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lost_at: float | None = None
        self._ask_after = 0.0
        self._last_said = ""
        self._failed: list[str] = []

    def lost(self, error: HopFailed | HopRefused, position: int) -> None:
        """Changes the route, or waits a moment. Raises `error` where that helps nobody, HopFailed where nobody took
        over in time, Stale where the session belongs to another head, Cancelled."""
        hop = error.hop
        if self.rerouter is None or hop is None or error.code in _FINAL:
            raise error
        deadline, now = self.pipeline.session.deadline, self.clock()
        if error.code == Code.DEADLINE and deadline.left_s() < LEAST_LEFT_S:
            raise DeadlineOver(f"the request's time is over: {error}") from error
        if self._lost_at is None:
            self._lost_at = now
        hop.is_lost = True
        peer_id, (start, end) = hop.hop.peer_id, hop.layers
        if peer_id not in self._failed:
            self._failed.append(peer_id)
        why = self._reroute(Loss(peer_id, start, end, str(error.code), str(error)), position)
        if why is None:
            return
        if deadline.is_cancelled:
            raise Cancelled
        left_s = min(self.wait_s - (self.clock() - self._lost_at), deadline.left_s())
        pause_s = LEAST_PAUSE_S + self.backoff.next_s()
        if left_s <= pause_s or isinstance(why, Refused) or error.code in _STAYS:
            raise _end(error, hop, why) from error
        self.wait(deadline, pause_s)

    def move(self, position: int) -> bool:
        """The tracker wants another route for the session: False where there is none, and it goes on as it was."""
        if self.rerouter is None or not self.pipeline.hops or self._lost_at is not None:
            return False
        hop = self.pipeline.hops[0].hop
        loss = Loss(hop.peer_id, hop.start_layer, hop.end_layer, MOVE, "a node of the route is being drained")
        return self._reroute(loss, position) is None

    def worked(self, has_sampled: bool) -> None:
        """A step has been worked."""
        if self._lost_at is not None:
            self._lost_at = None
            self.backoff.reset()
        if has_sampled:
            for one in self.switched:
                if one.resume_ms is None:
                    one.resume_ms = (self.clock() - one.lost_at) * 1000

    def replayed(self, kept: str, num_tokens: int, compute_ms: float) -> None:
        """Work of a step that was done again."""
        if self.switched and self.switched[-1].resume_ms is None:
            last = self.switched[-1]
            last.kept = kept
            last.replayed_tokens += num_tokens
            last.replay_compute_ms += compute_ms

    def _reroute(self, loss: Loss, position: int) -> Exception | None:
        """None once the route is another; else why it isn't."""
        assert self.rerouter
        session, now = self.pipeline.session, self.clock()
        if now < self._ask_after:
            return NotNow("the tracker has been asked a moment ago", 0.0)
        lost_at = now if self._lost_at is None else self._lost_at
        others = [peer_id for peer_id in self._failed if peer_id != loss.peer_id]
        try:
            deadline = session.deadline.at_most(ASK_DEADLINE_S)
            answer = self.rerouter.ask(session.id, session.epoch, loss, position, others, deadline)
            self._switch(answer)
        except NotOurs as error:
            raise Stale(str(error)) from None
        except NotNow as error:
            self._ask_after = now + min(error.pause_s, LEAST_PAUSE_S + MOST_JITTER_S)
            return self._said(error)
        except (NoAnswer, Refused) as error:
            return self._said(error)
        self.switched.append(Switched(answer.epoch, lost_at, position))
        route = ", ".join(map(str, self.pipeline.hops)) or "this node alone"
        logger.warning("session %s goes on in epoch %d: %s", session.id[:8], answer.epoch, route)
        return None

    def _said(self, why: Exception) -> Exception:
        """In the log once, however often it is heard."""
        if str(why) != self._last_said:
            logger.warning("session %s has no other route: %s", self.pipeline.session.id[:8], why)
        self._last_said = str(why)
        return why

    def _switch(self, answer: NextRoute) -> None:
        """Raises NoAnswer where what the tracker said can't be followed."""
        assert self.allow
        assert self.new_hop
        session, hops = self.pipeline.session, list(answer.hops)
        try:
            ticket = self.allow(answer.ticket_text, answer.epoch, hops)
        except WireError as error:
            raise NoAnswer(f"the tracker's route can't be followed: {error.message}") from None
        if ticket.session != session.id or ticket.epoch <= session.epoch or ticket.dtype != session.dtype:
            raise NoAnswer("the tracker's ticket is of another session, an earlier epoch or another dtype")
        following = replace(session, epoch=ticket.epoch, ticket=answer.ticket_text)
        self.pipeline.switch(following, ticket.hops[0][1:], [self.new_hop(hop) for hop in hops])


def _end(error: HopFailed | HopRefused, hop: DownstreamHop, why: Exception) -> Exception:
    """What a session ends with when nobody took over."""
    message = f"{error}; no other node could take over: {why}"
    if error.code == Code.DEADLINE:
        return DeadlineOver(message)
    return HopFailed(message, hop, Code.BUSY if error.code == Code.BUSY else NODE_FAILED)
