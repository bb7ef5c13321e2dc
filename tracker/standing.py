"""Whether a node is online, and why or why not: the rule in words, pure, for the admin and the pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tracker.words import length_in_words

REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Standing:
    is_online: bool
    reason: str

    def __str__(self) -> str:
        if self.reason == REVOKED:
            return REVOKED  # nobody waits for it to come back
        return f"{'online' if self.is_online else 'offline'}: {self.reason}"


def standing(
    *,
    status: str,
    last_seen: datetime | None,
    lease_until: datetime | None,
    uses_relay: bool,
    is_present: bool,
    is_endpoint_proved: bool,
    endpoint: str,
    endpoint_error: str,
    has_left: bool,
    heartbeat_s: float,
    now: datetime,
    ban: str | None = None,
    progress: tuple[int, int] | None = None,
    closed: str | None = None,
) -> Standing:
    """`ban`: that it is kept out, until when and why. `progress`: (bytes fetched, bytes in all) of a node that is
    fetching its weights. `closed`: why one gets no new sessions though it is online."""
    if status == "revoked" or ban:
        return Standing(False, ban if ban and status != "revoked" else REVOKED)
    if status != "approved":
        return Standing(False, "waits for approval")
    if lease_until is None or lease_until <= now:
        return Standing(False, _silence(last_seen, has_left, now))
    but = f", but it {closed}" if closed else ""
    if uses_relay and is_present:
        return Standing(True, f"connected to the relay{but}")
    if is_endpoint_proved:
        return Standing(True, f"reached at {endpoint}{but}")
    if progress:
        done, total = progress
        return Standing(False, f"fetches its weights: {100 * done // total} % of {total / 1e6:,.0f} MB")
    if uses_relay:
        return Standing(False, _away(last_seen, heartbeat_s, now))
    return Standing(False, endpoint_error or f"{endpoint} hasn't proved yet that it holds the node key")


def _away(last_seen: datetime | None, heartbeat_s: float, now: datetime) -> str:
    """It has no socket, and nobody has missed a heartbeat for long enough to call it silent."""
    silent_s = (now - last_seen).total_seconds() if last_seen else 0.0
    if silent_s > heartbeat_s:
        return f"its connection to the relay has ended; last heartbeat {length_in_words(silent_s)} ago"
    return "its socket to the relay has just closed"


def _silence(last_seen: datetime | None, has_left: bool, now: datetime) -> str:
    if last_seen is None:
        return "was never heard of"
    if has_left:
        return "said that it leaves"
    return f"no heartbeat for {length_in_words((now - last_seen).total_seconds())}"
