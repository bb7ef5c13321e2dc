"""Who may ask this node for what: the tracker's tickets, checked at both doors.

Every request of a session carries its ticket. Its signature is verified when its bytes are new to the session and
compared after that. Time is the tracker's: its last answer's `now`, and the seconds that have passed here since.
"""

from __future__ import annotations

import base64
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nodes.sleep import since_boot
from relay.headers import TICKET, Ticket, decode_ticket
from relay.wire import MAX_DEADLINE_S, TRACKER, Code, WireError

_Entry = TypeVar("_Entry")
LONGEST_TICKET_S = 2 * MAX_DEADLINE_S  # none is given for longer
MAX_REMEMBERED = 4096  # tickets and closed sessions; expired ones go first


class TrackerClock:
    """Unix seconds by the tracker's clock; this machine's own may be an hour off, and it may sleep."""

    def __init__(
        self, elapsed: Callable[[], float] = since_boot, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._elapsed, self._monotonic = elapsed, monotonic
        self._offset: float | None = None

    def set(self, now: float) -> None:
        self._offset = now - self._elapsed()

    def now(self) -> float:
        if self._offset is None:
            raise WireError(Code.FORBIDDEN, "this node hasn't heard the tracker's time yet")
        return self._elapsed() + self._offset

    def monotonic_at(self, expires: float) -> float:
        """This machine's time.monotonic() at a moment of the tracker's clock."""
        return self._monotonic() + max(0.0, expires - self.now())


@dataclass(slots=True)
class _Known:
    """A session whose ticket was verified."""

    text: bytes
    ticket: Ticket
    prompt_end: int | None = None  # position after which sampling began, at the tail


@dataclass(frozen=True, slots=True)
class _Closed:
    epoch: int
    expires: int


class TicketBook:
    def __init__(self, peer_id: str, fingerprint: str, clock: TrackerClock) -> None:
        self.peer_id, self.fingerprint = peer_id, fingerprint
        self._clock = clock
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._known: dict[str, _Known] = {}
        self._closed: dict[str, _Closed] = {}
        self._lock = threading.Lock()

    def set_keys(self, keys: Mapping[str, str]) -> None:
        """kid -> base64 of the 32 raw bytes, as the tracker announces them."""
        self._keys = {kid: Ed25519PublicKey.from_public_bytes(base64.b64decode(raw)) for kid, raw in keys.items()}

    def allow_chat(self, headers: Mapping[str, str], session: str, epoch: int, sender: str | None) -> Ticket:
        """The ticket of a chat this node may head. `sender` None: the request came over HTTP. Raises WireError."""
        ticket = self._verified(headers, session, epoch)
        if sender is not None and sender != TRACKER:
            raise WireError(Code.FORBIDDEN, "through the relay, a chat comes from the tracker")
        if ticket.head != self.peer_id or ticket.hops[0][0] != self.peer_id or ticket.hops[0][1] != 0:
            raise WireError(Code.FORBIDDEN, "the ticket doesn't name this node as the head")
        return ticket

    def allow_step(
        self, headers: Mapping[str, str], session: str, epoch: int, layers: tuple[int, int], sender: str | None
    ) -> Ticket:
        """The ticket of a step over these layers. Raises WireError."""
        ticket = self._verified(headers, session, epoch)
        self._check_head(ticket, sender)
        if (self.peer_id, *layers) not in ticket.hops:
            raise WireError(Code.FORBIDDEN, f"the ticket doesn't give this node layers {layers[0]}:{layers[1]}")
        return ticket

    def allow_close(self, headers: Mapping[str, str], session: str, epoch: int, sender: str | None) -> Ticket:
        ticket = self._verified(headers, session, epoch)
        self._check_head(ticket, sender)
        if all(peer_id != self.peer_id for peer_id, _, _ in ticket.hops):
            raise WireError(Code.FORBIDDEN, "the ticket doesn't name this node")
        return ticket

    def spend(self, session: str, end_position: int, num_drafts: int = 0) -> None:
        """Called for a step that samples after `end_position`, where its drafts begin, and after each of those.
        Raises WireError when the ticket's tokens are used up.

        Positions are counted, not steps: a step that is repeated costs nothing.
        """
        with self._lock:
            known = self._known.get(session)
            if known is None:
                return
            known.prompt_end = end_position if known.prompt_end is None else min(known.prompt_end, end_position)
            if end_position + num_drafts - known.prompt_end >= known.ticket.max_tokens:
                raise WireError(Code.FORBIDDEN, f"the ticket's {known.ticket.max_tokens} tokens are used up")

    def until(self, ticket: Ticket) -> float:
        """When the ticket expires, by this machine's time.monotonic()."""
        return self._clock.monotonic_at(ticket.expires)

    def close(self, ticket: Ticket) -> None:
        """From now on the session is refused in this epoch and lower ones, until its ticket would have expired."""
        with self._lock:
            self._close(ticket.session, ticket.epoch, ticket.expires)

    def end(self, session: str, epoch: int) -> float:
        """The same where the tracker says so, which brings no ticket. Until when, by time.monotonic()."""
        with self._lock:
            known = self._known.get(session)
            expires = known.ticket.expires if known else int(self._clock.now() + LONGEST_TICKET_S)
            self._close(session, epoch, expires)
        return self._clock.monotonic_at(expires)

    def _close(self, session: str, epoch: int, expires: int) -> None:
        known = self._known.get(session)
        if known and known.ticket.epoch <= epoch:
            del self._known[session]
        before = self._closed.pop(session, _Closed(epoch, expires))
        self._make_room(self._closed, lambda entry: entry.expires)
        self._closed[session] = _Closed(max(epoch, before.epoch), max(expires, before.expires))

    def _verified(self, headers: Mapping[str, str], session: str, epoch: int) -> Ticket:
        text = headers.get(TICKET)
        if not text:
            raise WireError(Code.BAD_REQUEST, f"{TICKET} is missing")
        encoded = text.encode("latin-1", "replace")
        with self._lock:
            known = self._known.get(session)
        if known and hmac.compare_digest(known.text, encoded):
            ticket = known.ticket
        else:
            ticket = self._verify(text)
            self._remember(session, encoded, ticket)
        self._check(ticket, session, epoch)
        return ticket

    def _verify(self, text: str) -> Ticket:
        ticket, payload, signature = decode_ticket(text)
        key = self._keys.get(ticket.kid)
        if key is None:
            raise WireError(Code.FORBIDDEN, f"{TICKET} is signed with a key the tracker hasn't announced")
        try:
            key.verify(signature, payload)
        except InvalidSignature:
            raise WireError(Code.FORBIDDEN, f"{TICKET} isn't signed by the tracker") from None
        return ticket

    def _remember(self, session: str, text: bytes, ticket: Ticket) -> None:
        with self._lock:
            known = self._known.get(session)
            if ticket.session != session or (known and known.ticket.epoch > ticket.epoch):
                return
            self._make_room(self._known, lambda entry: entry.ticket.expires)
            self._known[session] = _Known(text, ticket, known.prompt_end if known else None)

    def _check(self, ticket: Ticket, session: str, epoch: int) -> None:
        if ticket.session != session or ticket.epoch != epoch:
            raise WireError(Code.FORBIDDEN, f"{TICKET} is of another session or epoch")
        if ticket.fingerprint != self.fingerprint:
            raise WireError(Code.FORBIDDEN, f"{TICKET} is of another model")
        if ticket.expires <= self._clock.now():
            raise WireError(Code.FORBIDDEN, f"{TICKET} has expired")
        known, closed = self._known.get(session), self._closed.get(session)
        if known and epoch < known.ticket.epoch:
            raise WireError(Code.STALE, f"epoch {epoch} comes after epoch {known.ticket.epoch}")
        if closed and epoch <= closed.epoch:
            raise WireError(Code.FORBIDDEN, "the session is closed")

    def _check_head(self, ticket: Ticket, sender: str | None) -> None:
        if sender is not None and sender != ticket.head:
            raise WireError(Code.FORBIDDEN, "through the relay, a step comes from the ticket's head")

    def _make_room(self, entries: dict[str, _Entry], expiry: Callable[[_Entry], int]) -> None:
        """When there is none: what has expired goes, else what expires first."""
        if len(entries) < MAX_REMEMBERED:
            return
        now = self._clock.now()
        ends = {key: expiry(entry) for key, entry in entries.items()}
        for key in [key for key, end in ends.items() if end <= now] or [min(ends, key=ends.__getitem__)]:
            del entries[key]
