"""A node's place in the mesh: joins, keeps its lease, hears whether it is approved, leaves.

At first start a tracker that can't be reached is given up after half a minute; once registered, never. A key that was
revoked is tried three times, ten minutes apart. A node that waits for approval says so and waits, and so does one that
is banned. A new key that the site gives it is kept before it is used.

Heartbeats are numbered within a registration: one that comes late or again revives nothing. A node whose lease the
tracker has ended, or that has slept, registers again, which is the same as registering once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nodes.backoff import Backoff
from nodes.deadline import Deadline
from nodes.keys import NodeKey
from nodes.registration import NodeFacts, Registration, Standing
from nodes.state import NodeState, StateError
from nodes.tracker import Tracker, TrackerRefused, TrackerUnreachable, TrackerUntrusted

logger = logging.getLogger(__name__)

FIRST_DEADLINE_S = 30.0
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 30.0
MAX_REVOKED_TRIES = 3
REVOKED_PAUSE_S = 600.0
BANNED_PAUSE_S = 60.0
LOOK_S = 0.2
REMINDER_S = 600.0  # how often a tracker that stays away is named in the log


class NoCredential(Exception):
    """There is neither a key from an earlier run nor a join token."""


class Membership:
    """`hear` is called with what the tracker says, `registered` with each registration, on the thread that asked.
    `news` says how the node is."""

    def __init__(
        self,
        tracker: Tracker,
        state: NodeState,
        facts: NodeFacts,
        join_token: str,
        stopping: threading.Event,
        backoff: Backoff | None = None,
        first_deadline_s: float = FIRST_DEADLINE_S,
        revoked_pause_s: float = REVOKED_PAUSE_S,
    ) -> None:
        self._tracker, self._state, self._facts, self._join_token = tracker, state, facts, join_token
        self._stopping = stopping
        self._backoff = backoff or Backoff(FIRST_BACKOFF_S, MOST_BACKOFF_S)
        self._first_deadline_s, self._revoked_pause_s = first_deadline_s, revoked_pause_s
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._key = NodeKey()
        self._ban = ""  # as it was last told
        self._registration, self._num_heartbeats = "", 0  # its id, and how many were sent in it
        self._has_to_register = False
        self._renewed: Registration | None = None  # the first one with the facts of the last `renew`
        self._heartbeat_s = 5.0
        self._num_revoked = 0
        self._lost_at: float | None = None
        self._said_at = 0.0  # that it is lost
        self._endpoint_error: str | None = None
        self._is_serving = False
        self._wake = threading.Event()
        self._was_told_to_wait = False
        self.news: Callable[[], Mapping[str, Any]] = dict
        self.hear: Callable[[Standing], None] = lambda standing: None
        self.registered: Callable[[Registration], None] = lambda registration: None
        self.approved = threading.Event()
        self.endpoint_tried = threading.Event()  # the tracker has looked at it since the node serves
        self.endpoint_proved = threading.Event()
        self.failure: Exception | None = None  # why it ended by itself

    def join(self) -> Registration | None:
        """The registration; None when the node is told to stop before. Raises TrackerUnreachable, TrackerRefused,
        NoCredential."""
        deadline = Deadline.after(self._first_deadline_s)
        while not self._stopping.is_set():
            try:
                return self._register()
            except TrackerUnreachable as error:
                if deadline.is_over or isinstance(error, TrackerUntrusted):
                    raise
                pause_s = min(self._backoff.next_s(), deadline.left_s())
                logger.warning("The tracker can't be reached: %s; trying again in %.1f s", error, pause_s)
                self._stopping.wait(pause_s)
            except TrackerRefused as error:
                self._stopping.wait(self._pause_if_out(error))
        return None

    def start(self) -> None:
        self._thread.start()

    def serving(self) -> None:
        """From now on the endpoint answers; the tracker is asked at once to look at it."""
        self._is_serving = True
        self._wake.set()

    def renew(self, facts: NodeFacts) -> None:
        """Registers again as soon as can be: the machine has slept, and may be elsewhere by now."""
        self._renewed = None
        self._facts, self._has_to_register = facts, True
        self._wake.set()

    def describe(self, facts: NodeFacts) -> None:
        """What to say when it has to register again."""
        self._facts = facts

    def renewed(self, facts: NodeFacts) -> Registration | None:
        """Renews, and waits for it as long as it takes; None when the node is told to stop before."""
        self._is_serving = False  # the endpoint answers nothing until it serves again
        self.endpoint_tried.clear()
        self.endpoint_proved.clear()
        self.renew(facts)
        while self._renewed is None and not self._stopping.wait(LOOK_S):
            pass
        return self._renewed

    def tell(self) -> None:
        """Sends a heartbeat at once: there is news that shouldn't wait."""
        self._wake.set()

    def leave(self) -> None:
        """Ends the lease at once, so that nobody is sent here any more."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(15)
        try:
            self._tracker.unregister(str(self._key))
            logger.info("Unregistered")
        except (TrackerUnreachable, TrackerRefused) as error:
            logger.warning("The tracker couldn't be told that this node leaves: %s", error)

    def _register(self) -> Registration:
        key, facts = self._state.read_key(), self._facts
        if key is None and not self._join_token:
            raise NoCredential("this node has no key yet: give it a join token (--join-token, MESHNET_JOIN_TOKEN)")
        try:
            registration = self._tracker.register(key or self._join_token, facts)
        except TrackerRefused as error:
            if key is None or error.status != 401 or error.is_revoked or not self._join_token:
                raise
            logger.warning("The tracker doesn't know this node's key (%s); joining again with the join token", error)
            registration = self._tracker.register(self._join_token, facts)
        if (given := str(registration.node_key)) != key:
            self._state.write_key(given)
        self._key.change(given)
        registration = replace(registration, node_key=self._key)
        self._registration, self._num_heartbeats = registration.id, 0
        self._has_to_register = facts is not self._facts  # others were given while this one was under way
        logger.info("Registered with %s as %s (peer %s)", self._tracker.url, self._facts.name, registration.peer_id[:8])
        self._heard(registration.standing)
        self.registered(registration)
        if not self._has_to_register:
            self._renewed = registration
        return registration

    def _run(self) -> None:
        pause_s = self._heartbeat_s
        while not self._stopping.is_set():
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                pause_s = self._beat()
            except (TrackerRefused, NoCredential) as error:
                self._end(error)
            except Exception as error:
                logger.exception("heartbeats failed")
                self._end(error)

    def _beat(self) -> float:
        """One heartbeat; seconds until the next. Raises TrackerRefused when there shall be none."""
        if self._has_to_register:
            return self._register_again()
        self._num_heartbeats += 1  # one that wasn't answered may have arrived
        number = {"registration": self._registration, "number": self._num_heartbeats}
        try:
            self._heard(self._tracker.heartbeat(str(self._key), {**self.news(), **number}))
        except TrackerUnreachable as error:
            return self._lost(error)
        except TrackerRefused as error:
            if error.code != "not_registered":
                return self._pause_if_out(error)
            return self._register_again()
        return self._heartbeat_s

    def _register_again(self) -> float:
        """The tracker has ended this node's lease, or has forgotten it, or this machine has slept."""
        self._has_to_register = True  # until it has worked
        try:
            self._register()
        except TrackerUnreachable as error:
            return self._lost(error)
        except TrackerRefused as error:
            return self._pause_if_out(error)
        return self._heartbeat_s

    def _pause_if_out(self, error: TrackerRefused) -> float:
        """How long to wait before the key is tried again; raises the error when that is pointless."""
        if error.code == "banned":
            return self._pause_if_banned(error)
        self._num_revoked += 1
        has_key = bool(str(self._key) or self._state.read_key())
        if not error.is_revoked or not has_key or self._num_revoked >= MAX_REVOKED_TRIES:
            raise error
        self.approved.clear()
        tries = f"try {self._num_revoked} of {MAX_REVOKED_TRIES}"
        logger.error("%s (%s); trying again in %.0f minutes", error, tries, self._revoked_pause_s / 60)
        return self._revoked_pause_s

    def _pause_if_banned(self, error: TrackerRefused) -> float:
        """Until the ban is over, and never long: it may be lifted before."""
        self.approved.clear()
        if error.message != self._ban:
            logger.error("%s; this node waits and tries again until it is let in", error)
        self._ban = error.message
        return min(BANNED_PAUSE_S, self._revoked_pause_s, error.retry_after_s or BANNED_PAUSE_S)

    def _take_key(self, text: str) -> None:
        """The present one is good until the new one is shown: one that can't be kept isn't used either."""
        try:
            self._state.write_key(text)
        except StateError as error:
            logger.error("The site's new key for this node can't be kept: %s; it goes on with its present one", error)
            return
        self._key.change(text)
        logger.info("The operator gave this node a new key; it is used from now on")
        self._wake.set()  # the next heartbeat shows it, and the former one opens nothing any more

    def _heard(self, standing: Standing) -> None:
        if self._lost_at is not None:
            logger.info("The tracker is back after %.0f s", time.monotonic() - self._lost_at)
        self._lost_at, self._num_revoked, self._ban = None, 0, ""
        self._backoff.reset()
        self._heartbeat_s = standing.heartbeat_s
        if standing.new_key:
            self._take_key(standing.new_key)
        self.hear(standing)
        self._say_endpoint(standing.endpoint_error)
        if standing.is_approved and not self.approved.is_set():
            logger.info("Approved")
            self.approved.set()
        elif not standing.is_approved and not self._was_told_to_wait:
            logger.warning("Waiting for approval: ask the site's operator to approve node %s", self._facts.name)
            self._was_told_to_wait = True

    def _say_endpoint(self, error: str | None) -> None:
        if not self._is_serving or self._facts.endpoint is None:
            return
        self.endpoint_tried.set()
        if error is None:
            self.endpoint_proved.set()
        elif error != self._endpoint_error:
            logger.warning("The tracker can't use this node's endpoint: %s", error)
        self._endpoint_error = error

    def _lost(self, error: TrackerUnreachable) -> float:
        """Seconds until it is tried again. Soon, the first time: perhaps only the kept connection is dead, forgotten
        by a router, and finding that out has taken half the lease."""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = self._said_at = now
            logger.warning("The tracker can't be reached: %s; trying on", error)
            return self._backoff.next_s()
        if now - self._said_at >= REMINDER_S:
            self._said_at = now
            logger.warning("The tracker hasn't been reached for %.0f minutes: %s", (now - self._lost_at) / 60, error)
        return self._heartbeat_s + self._backoff.next_s()

    def _end(self, error: Exception) -> None:
        self.failure = error
        self._stopping.set()
