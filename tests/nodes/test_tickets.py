from __future__ import annotations

import base64
from typing import Any

import pytest

from nodes.tickets import LONGEST_TICKET_S, TicketBook, TrackerClock
from relay.headers import TICKET, Ticket
from relay.wire import TRACKER, Code, WireError
from tests.nodes.clocks import Time
from tests.nodes.meshes import FINGERPRINT, Signer

HEAD, TAIL, OTHER = "aaaaaaaa", "bbbbbbbb", "cccccccc"
HOPS = [(HEAD, 0, 2), (TAIL, 2, 4)]
TRACKER_NOW = 1_000_000.0
SOON = int(TRACKER_NOW) + 60


@pytest.fixture
def time() -> Time:
    return Time(50.0)


@pytest.fixture
def signer() -> Signer:
    return Signer()


def book_of(peer_id: str, signer: Signer, time: Time) -> TicketBook:
    clock = TrackerClock(time, time)
    clock.set(TRACKER_NOW)
    book = TicketBook(peer_id, FINGERPRINT, clock)
    book.set_keys(signer.public_keys())
    return book


@pytest.fixture
def tail(signer: Signer, time: Time) -> TicketBook:
    return book_of(TAIL, signer, time)


@pytest.fixture
def head(signer: Signer, time: Time) -> TicketBook:
    return book_of(HEAD, signer, time)


def signed(signer: Signer, **changes: Any) -> tuple[Ticket, dict[str, str]]:
    ticket, text = signer.sign(changes.pop("hops", HOPS), **({"expires": SOON} | changes))
    return ticket, {TICKET: text}


def step(book: TicketBook, ticket: Ticket, headers: dict[str, str], **changes: Any) -> Ticket:
    asked: dict[str, Any] = {"session": ticket.session, "epoch": 0, "layers": (2, 4), "sender": HEAD}
    return book.allow_step(headers, **(asked | changes))


def refused(call: Any, *arguments: Any, **named: Any) -> WireError:
    with pytest.raises(WireError) as error:
        call(*arguments, **named)
    return error.value


def test_a_step_of_the_signed_route_is_allowed_on_both_doors(tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer)

    assert step(tail, ticket, headers) == ticket
    assert step(tail, ticket, headers, sender=None) == ticket


def test_a_step_without_a_ticket_is_a_bad_request_naming_the_header(tail: TicketBook, signer: Signer) -> None:
    ticket, _ = signed(signer)
    error = refused(step, tail, ticket, {})

    assert error.code == Code.BAD_REQUEST
    assert TICKET in error.message


def test_a_node_that_the_ticket_doesnt_name_refuses(signer: Signer, time: Time) -> None:
    ticket, headers = signed(signer)

    assert refused(step, book_of(OTHER, signer, time), ticket, headers).code == Code.FORBIDDEN


@pytest.mark.parametrize("layers", [(2, 3), (3, 4), (0, 2), (0, 4)])
def test_other_layers_than_the_signed_ones_are_refused(
    tail: TicketBook, signer: Signer, layers: tuple[int, int]
) -> None:
    ticket, headers = signed(signer)

    assert "layers" in refused(step, tail, ticket, headers, layers=layers).message


@pytest.mark.parametrize("sender", [OTHER, TAIL, TRACKER, ""])
def test_through_the_relay_only_the_head_may_send_steps(tail: TicketBook, signer: Signer, sender: str) -> None:
    ticket, headers = signed(signer)

    assert "head" in refused(step, tail, ticket, headers, sender=sender).message
    assert "head" in refused(tail.allow_close, headers, ticket.session, 0, sender).message


def test_another_session_or_epoch_than_the_signed_one_is_refused(tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer)

    assert refused(step, tail, ticket, headers, session="0" * 32).code == Code.FORBIDDEN
    assert refused(step, tail, ticket, headers, epoch=1).code == Code.FORBIDDEN


def test_another_models_ticket_is_refused(tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer, fingerprint="0" * 64)

    assert "model" in refused(step, tail, ticket, headers).message


def test_a_ticket_that_someone_else_signed_is_refused(tail: TicketBook) -> None:
    ticket, headers = signed(Signer())  # another key under the same name

    assert "isn't signed" in refused(step, tail, ticket, headers).message


def test_a_key_that_the_tracker_hasnt_announced_is_refused(tail: TicketBook) -> None:
    ticket, headers = signed(Signer("k2"))

    assert "announced" in refused(step, tail, ticket, headers).message


def test_a_new_key_is_good_from_the_moment_it_is_announced(tail: TicketBook, signer: Signer) -> None:
    new = Signer("k2")
    tail.set_keys(signer.public_keys() | new.public_keys())
    ticket, headers = signed(new)

    assert step(tail, ticket, headers) == ticket


def test_a_changed_ticket_is_refused_also_after_the_true_one_was_seen(tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer)
    step(tail, ticket, headers)
    payload, signature = headers[TICKET].split(".")
    plain = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).replace(
        b'"max_tokens":50', b'"max_tokens":99'
    )
    forged = base64.urlsafe_b64encode(plain).rstrip(b"=").decode()

    assert refused(step, tail, ticket, {TICKET: f"{forged}.{signature}"}).code == Code.FORBIDDEN
    assert step(tail, ticket, headers) == ticket


@pytest.mark.parametrize("text", ["", "x", "a.b", "a.b.c", "Ä.Ä", "e30.e30", "W10.W10", "." * 100])
def test_what_is_no_ticket_is_refused_and_nothing_more(tail: TicketBook, signer: Signer, text: str) -> None:
    ticket, _ = signed(signer)

    assert refused(step, tail, ticket, {TICKET: text}).code in (Code.FORBIDDEN, Code.BAD_REQUEST)


def test_it_expires_by_the_trackers_clock(tail: TicketBook, signer: Signer, time: Time) -> None:
    ticket, headers = signed(signer)
    time.now += 59
    assert step(tail, ticket, headers)

    time.now += 2
    assert "expired" in refused(step, tail, ticket, headers).message


@pytest.mark.parametrize("off_s", [-3600.0, 0.0, 3600.0])
def test_a_machine_whose_clock_is_an_hour_off_decides_the_same(signer: Signer, off_s: float) -> None:
    """Its own clock isn't asked: only the tracker's `now`, and how much time has passed since."""
    time = Time()
    time.now += off_s
    book = book_of(TAIL, signer, time)
    ticket, headers = signed(signer)

    assert step(book, ticket, headers)
    assert book.until(ticket) == time.now + 60
    time.now += 61
    assert refused(step, book, ticket, headers)


def test_before_it_has_heard_the_trackers_time_it_allows_nothing(signer: Signer) -> None:
    book = TicketBook(TAIL, FINGERPRINT, TrackerClock())
    book.set_keys(signer.public_keys())
    ticket, headers = signed(signer)

    assert "time" in refused(step, book, ticket, headers).message


def test_after_close_the_session_is_refused(tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer)
    tail.close(tail.allow_close(headers, ticket.session, 0, HEAD))

    assert "closed" in refused(step, tail, ticket, headers).message
    assert "closed" in refused(tail.allow_close, headers, ticket.session, 0, HEAD).message


def test_a_later_epoch_of_a_closed_session_is_allowed(tail: TicketBook, signer: Signer) -> None:
    ticket, _ = signed(signer)
    tail.close(ticket)
    later, headers = signed(signer, session=ticket.session, epoch=1)

    assert step(tail, later, headers, epoch=1) == later


def test_a_chat_is_for_the_head_and_comes_from_the_tracker(head: TicketBook, tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer)

    assert head.allow_chat(headers, ticket.session, 0, TRACKER) == ticket
    assert head.allow_chat(headers, ticket.session, 0, None) == ticket
    for sender in (TAIL, HEAD, ""):
        assert "tracker" in refused(head.allow_chat, headers, ticket.session, 0, sender).message
    assert "head" in refused(tail.allow_chat, headers, ticket.session, 0, TRACKER).message


def test_the_head_of_a_ticket_is_its_first_hop(head: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer, hops=((TAIL, 0, 2), (HEAD, 2, 4)), head=HEAD)

    assert refused(head.allow_chat, headers, ticket.session, 0, TRACKER).code == Code.FORBIDDEN


def test_no_more_tokens_are_sampled_than_the_ticket_allows(tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer, max_tokens=3)
    step(tail, ticket, headers)
    for end in (10, 11, 11, 12, 10):  # a repeated step and a replay cost nothing
        tail.spend(ticket.session, end)

    assert "used up" in refused(tail.spend, ticket.session, 13).message


def test_drafts_count_as_the_tokens_that_may_come_of_them(tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer, max_tokens=5)
    step(tail, ticket, headers)
    tail.spend(ticket.session, 10)  # the first token
    tail.spend(ticket.session, 11, num_drafts=3)  # up to four more
    tail.spend(ticket.session, 12, num_drafts=2)

    assert "used up" in refused(tail.spend, ticket.session, 11, 4).message
    assert "used up" in refused(tail.spend, ticket.session, 13, 2).message


def test_it_keeps_a_bounded_number_of_sessions(
    tail: TicketBook, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.tickets.MAX_REMEMBERED", 4)
    tickets = [signed(signer, expires=SOON + number) for number in range(10)]
    for ticket, headers in tickets:
        step(tail, ticket, headers)
    for ticket, _ in tickets:
        tail.close(ticket)

    ticket, headers = tickets[-1]
    assert "closed" in refused(step, tail, ticket, headers).message


def test_what_the_tracker_ends_is_refused_up_to_that_epoch(tail: TicketBook, signer: Signer, time: Time) -> None:
    ticket, headers = signed(signer)
    step(tail, ticket, headers)
    later, later_headers = signed(signer, session=ticket.session, epoch=2)
    until = tail.end(ticket.session, 1)

    assert until == time.now + 60
    assert "closed" in refused(step, tail, ticket, headers).message
    assert step(tail, later, later_headers, epoch=2) == later


def test_the_end_of_a_session_it_never_saw_is_remembered_as_long_as_a_ticket_can_last(
    tail: TicketBook, signer: Signer, time: Time
) -> None:
    ticket, headers = signed(signer)
    assert tail.end(ticket.session, 0) == time.now + LONGEST_TICKET_S
    assert "closed" in refused(step, tail, ticket, headers).message


def test_an_end_that_comes_late_doesnt_open_what_was_closed_since(tail: TicketBook, signer: Signer) -> None:
    first, _ = signed(signer)
    second, headers = signed(signer, session=first.session, epoch=1)
    tail.close(second)
    tail.close(first)
    tail.end(first.session, 0)

    assert "closed" in refused(step, tail, second, headers, epoch=1).message


def test_who_has_seen_a_later_epochs_ticket_refuses_the_earlier_one_also_to_free_the_session(
    tail: TicketBook, signer: Signer
) -> None:
    ticket, headers = signed(signer)
    step(tail, ticket, headers)
    later, later_headers = signed(signer, session=ticket.session, epoch=1)
    step(tail, later, later_headers, epoch=1)

    assert refused(step, tail, ticket, headers).code == Code.STALE
    assert refused(tail.allow_close, headers, ticket.session, 0, HEAD).code == Code.STALE
    assert step(tail, later, later_headers, epoch=1) == later


def test_a_later_epochs_ticket_doesnt_give_its_tokens_anew(tail: TicketBook, signer: Signer) -> None:
    ticket, headers = signed(signer, max_tokens=3)
    step(tail, ticket, headers)
    tail.spend(ticket.session, 10)
    later, later_headers = signed(signer, session=ticket.session, epoch=1, max_tokens=3)
    step(tail, later, later_headers, epoch=1)

    tail.spend(ticket.session, 12)
    assert "used up" in refused(tail.spend, ticket.session, 13).message
