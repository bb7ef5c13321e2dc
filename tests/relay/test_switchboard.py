"""The switchboard's books: links are letters, the clock is a number."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from relay import wire
from relay.credit import OVERHEAD_BYTES
from relay.links import Close, Link, Send
from relay.switchboard import Switchboard
from relay.wire import Cancel, Chunk, Code, End, Error, Ping, Request, Response

Board = Switchboard[str]
MIB = 1024 * 1024


@pytest.fixture
def board() -> Board:
    return Switchboard("x", Counter(), Counter())


def peer(board: Board, peer_id: str = "b", scope: str = "m") -> Link[str]:
    link = board.attach(peer_id, scope, f"socket of {peer_id}")
    board.register(link, since=0.0)
    return link


def caller(board: Board, peer_id: str = "a", scope: str = "m") -> Link[str]:
    return board.attach(peer_id, scope, f"socket of {peer_id}")


def forward(request_id: str = "1", **fields: Any) -> Request:
    return Request(request_id, "POST", "/forward", **fields)


def passed_on(effects: Any, link: Link[str]) -> Request:
    """The request that went to the peer on `link`, and nothing else."""
    [effect] = effects
    assert effect.link is link
    assert isinstance(effect.frame, Request)
    return effect.frame


def the_error(effects: Any, link: Any, request_id: str = "1") -> str:
    """The code of the one error that was sent to `link`, for `request_id`."""
    [frame] = [effect.frame for effect in effects if effect.link is link]
    assert frame.request_id == request_id
    assert isinstance(frame, Error)
    return frame.code


def test_a_request_reaches_the_peer_under_the_relays_id_with_who_asks(board: Board) -> None:
    a, b = caller(board), peer(board)
    asked = Request("1", "POST", "/forward", {"x-a": "1", "cookie": "c"}, b"body", "forged", 1500)
    assert board.request(a, "b", asked, now=0) == [
        Send(b, Request("x1", "POST", "/forward", {"x-a": "1"}, b"body", "a", 1500), "a")
    ]


def test_the_answer_goes_back_under_the_callers_id(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward("mine"), now=0)
    answer = Response("x1", 200, {"x-a": "1", "set-cookie": "c"}, b"out")
    assert board.answer(b, answer, now=0) == [Send(a, Response("mine", 200, {"x-a": "1"}, b"out"), "b")]
    assert not board.flights
    assert board.outcomes == {"answered": 1}


def test_callers_with_the_same_id_do_not_collide(board: Board) -> None:
    a, c, b = caller(board), caller(board, "c"), peer(board)
    board.request(a, "b", forward("1"), now=0)
    board.request(c, "b", forward("1"), now=0)
    assert board.answer(b, Response("x2", 200), now=0) == [Send(c, Response("1", 200), "b")]
    assert board.answer(b, Response("x1", 201), now=0) == [Send(a, Response("1", 201), "b")]


def test_a_streamed_answer_passes_piece_by_piece_and_ends_once(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(), now=0)
    assert board.answer(b, Response("x1", 200, stream=True), now=0) == [Send(a, Response("1", 200, stream=True), "b")]
    assert board.answer(b, Chunk("x1", b"c"), now=0) == [Send(a, Chunk("1", b"c"), "b")]
    assert board.answer(b, End("x1"), now=0) == [Send(a, End("1"), "b")]
    assert board.answer(b, End("x1"), now=0) == []
    assert board.outcomes == {"answered": 1}
    assert board.drops == {"unmatched": 1}


def test_an_error_in_the_middle_of_a_stream_ends_it(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(), now=0)
    board.answer(b, Response("x1", 200, stream=True), now=0)
    assert board.answer(b, Response("x1", 500, body=b"why"), now=0) == [Send(a, Response("1", 500, body=b"why"), "b")]
    assert not board.flights


@pytest.mark.parametrize("first", [Chunk("x1", b"c"), End("x1")])
def test_a_stream_that_never_began_is_a_bad_answer(board: Board, first: Any) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(), now=0)
    effects = board.answer(b, first, now=0)
    assert the_error(effects, a) == Code.BAD_ANSWER
    assert Send(b, Cancel("x1"), "a") in effects


@pytest.mark.parametrize("second", [Response("x1", 200), Response("x1", 200, stream=True)])
def test_a_second_beginning_is_a_bad_answer(board: Board, second: Any) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(), now=0)
    board.answer(b, Response("x1", 200, stream=True), now=0)
    assert the_error(board.answer(b, second, now=0), a) == Code.BAD_ANSWER


def test_only_the_peer_that_was_asked_can_answer(board: Board) -> None:
    a, b, other = caller(board), peer(board), peer(board, "c")
    board.request(a, "b", forward(), now=0)
    assert board.answer(other, Response("x1", 200), now=0) == []
    assert board.malformed(other, wire.WireError(Code.BAD_REQUEST, "", "x1"), now=0) == []
    assert board.drops == {"unmatched": 1, "malformed": 1}
    assert board.answer(b, Response("x1", 200), now=0) == [Send(a, Response("1", 200), "b")]


def test_an_answer_nobody_can_read_fails_its_request(board: Board) -> None:
    a, b = caller(board), peer(board)
    for number, (code, outcome) in enumerate(
        [(Code.TOO_LARGE, Code.TOO_LARGE), (Code.BAD_REQUEST, Code.BAD_ANSWER)], start=1
    ):
        board.request(a, "b", forward(), now=0)
        effects = board.malformed(b, wire.WireError(code, "why", f"x{number}"), now=0)
        assert the_error(effects, a) == outcome
        assert Send(b, Cancel(f"x{number}"), "a") in effects


@pytest.mark.parametrize("scope", ["m", "other"])
def test_who_is_not_here_and_who_may_not_be_asked_look_the_same(board: Board, scope: str) -> None:
    a = caller(board)
    if scope == "other":
        peer(board, scope=scope)
    assert the_error(board.request(a, "b", forward(), now=0), a) == Code.NOT_FOUND


def test_the_tracker_may_ask_any_peer(board: Board) -> None:
    tracker, b = caller(board, wire.TRACKER, ""), peer(board)
    assert passed_on(board.request(tracker, "b", forward(), now=0), b).sender == "tracker"


def test_what_a_node_does_not_serve_is_forbidden(board: Board) -> None:
    a, _ = caller(board), peer(board)
    assert the_error(board.request(a, "b", Request("1", "POST", "/../admin"), now=0), a) == Code.FORBIDDEN


def test_an_id_in_use_is_a_conflict_and_is_free_after_its_end(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(), now=0)
    assert the_error(board.request(a, "b", forward(), now=0), a) == Code.CONFLICT
    board.answer(b, Response("x1", 200), now=0)
    assert board.request(a, "b", forward(), now=0)[0].link is b


def test_a_peer_that_leaves_fails_all_it_was_asked_at_once(board: Board) -> None:
    a, b = caller(board), peer(board)
    for number in range(5):
        board.request(a, "b", forward(str(number)), now=0)
    effects: Any = board.detach(b, now=0)
    assert [effect.frame.code for effect in effects] == [Code.PEER_GONE] * 5
    assert board.outcomes == {"peer_gone": 5}
    assert "b" not in board.peers
    assert board.detach(b, now=0) == []


def test_a_caller_that_leaves_cancels_what_it_asked(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward("1"), now=0)
    board.request(a, "b", forward("2"), now=0)
    assert board.detach(a, now=0) == [Send(b, Cancel("x1"), "a"), Send(b, Cancel("x2"), "a")]
    assert board.outcomes == {"cancelled": 2}
    assert board.answer(b, Response("x1", 200), now=0) == []


def test_the_newest_registration_wins_and_the_old_ones_cleanup_cannot_touch_it(board: Board) -> None:
    a, old = caller(board), peer(board)
    board.request(a, "b", forward(), now=0)
    new = board.attach("b", "m", "new")
    effects = board.register(new, since=5.0)
    assert the_error([effect for effect in effects if effect.link is a], a) == Code.PEER_GONE
    assert [effect.code for effect in effects if isinstance(effect, Close) and effect.link is old] == [Code.CONFLICT]
    assert new.generation > old.generation
    board.detach(old, now=0)
    assert board.peers["b"] is new
    assert board.request(a, "b", forward(), now=0)[0].link is new


def test_registering_twice_on_one_socket_replaces_nobody(board: Board) -> None:
    b = peer(board)
    assert board.register(b, since=1.0) == []


def test_a_deadline_ends_the_request_on_both_sides(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(deadline_ms=1500), now=10)
    assert board.expire(now=11.4) == []
    effects = board.expire(now=11.5)
    assert the_error(effects, a) == Code.DEADLINE
    assert Send(b, Cancel("x1"), "a") in effects
    assert board.answer(b, Response("x1", 200), now=12) == []


def test_no_deadline_is_longer_than_the_limit(board: Board) -> None:
    a, b = caller(board), peer(board)
    assert passed_on(board.request(a, "b", forward(deadline_ms=10**9), now=0), b).deadline_ms == 600_000
    assert passed_on(board.request(a, "b", forward("2"), now=0), b).deadline_ms == 120_000


def test_the_65th_request_of_a_caller_is_told_at_once(board: Board) -> None:
    a = caller(board)
    for name in "bc":
        peer(board, name)
    for number in range(64):
        board.request(a, "bc"[number % 2], forward(str(number)), now=0)
    assert the_error(board.request(a, "b", forward("x"), now=0), a, "x") == Code.RATE_LIMITED
    again = caller(board)
    assert the_error(board.request(again, "b", forward("x"), now=0), again, "x") == Code.RATE_LIMITED


def test_the_65th_request_to_a_peer_is_told_at_once_and_the_next_after_an_answer_passes(board: Board) -> None:
    b = peer(board)
    for number in range(64):
        board.request(caller(board, f"a{number}"), "b", forward(), now=0)
    late = caller(board)
    assert the_error(board.request(late, "b", forward(), now=0), late) == Code.PEER_BUSY
    board.answer(b, Response("x1", 200), now=0)
    assert board.request(late, "b", forward(), now=0)[0].link is b


def test_the_tracker_has_no_cap_of_its_own_but_the_peers_holds(board: Board) -> None:
    tracker = caller(board, wire.TRACKER, "")
    peers = [peer(board, name) for name in "bc"]
    for number in range(128):
        assert board.request(tracker, "bc"[number % 2], forward(str(number)), now=0)[0].link in peers
    assert the_error(board.request(tracker, "b", forward("x"), now=0), tracker, "x") == Code.PEER_BUSY


def test_bytes_are_bounded_for_a_caller_and_for_a_peer(board: Board) -> None:
    a, b = caller(board), peer(board)
    for number in range(7):
        board.request(a, "b", forward(str(number), body=b"x" * MIB), now=0)
    assert the_error(board.request(a, "b", forward("x", body=b"x" * MIB), now=0), a, "x") == Code.RATE_LIMITED
    c = caller(board, "c")
    assert the_error(board.request(c, "b", forward("x", body=b"x" * MIB), now=0), c, "x") == Code.PEER_BUSY
    assert board.request(c, "b", forward("y", body=b"small"), now=0)[0].link is b


def test_a_stream_that_has_begun_no_longer_counts_its_requests_bytes(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(body=b"x" * MIB), now=0)
    assert b.outstanding == a.asking.bytes == MIB + OVERHEAD_BYTES
    board.answer(b, Response("x1", 200, stream=True), now=0)
    assert b.outstanding == a.asking.bytes == 0
    assert b.working.requests == a.asking.requests == 1


def cancelled_requests(board: Board, number: int) -> None:
    """Callers that ask for 1 MiB each and leave at once, to a peer that reads nothing."""
    for _ in range(number):
        a = caller(board)
        board.request(a, "b", forward(body=b"x" * MIB), now=0)
        board.detach(a, now=0)


def test_a_peer_that_reads_nothing_cannot_collect_cancelled_requests(board: Board) -> None:
    peer(board)
    cancelled_requests(board, 300)
    assert board.outcomes == {"cancelled": 7, "peer_busy": 293}


def test_cancelled_requests_are_off_the_account_once_a_later_one_is_answered(board: Board) -> None:
    b = peer(board)
    cancelled_requests(board, 7)
    a = caller(board)
    board.request(a, "b", forward(), now=0)
    board.answer(b, Response("x8", 200), now=0)
    assert b.outstanding == 0


def test_a_late_answer_shows_what_has_been_read(board: Board) -> None:
    b = peer(board)
    cancelled_requests(board, 3)
    assert board.answer(b, Response("x2", 200), now=0) == []
    assert b.outstanding == MIB + OVERHEAD_BYTES


def test_a_peer_that_outlived_two_pings_has_read_everything(board: Board) -> None:
    b = peer(board)
    cancelled_requests(board, 7)
    a = caller(board)
    assert the_error(board.request(a, "b", forward(body=b"x" * MIB), now=39), a) == Code.PEER_BUSY
    board.request(a, "b", forward(), now=40)
    assert b.outstanding == OVERHEAD_BYTES


def test_a_caller_cannot_open_sockets_without_end(board: Board) -> None:
    links = [caller(board) for _ in range(wire.MAX_SOCKETS_PER_CALLER)]
    with pytest.raises(wire.WireError, match="close some first") as caught:
        caller(board)
    assert caught.value.code is Code.RATE_LIMITED
    caller(board, "c")
    board.detach(links[0], now=0)
    caller(board)


def test_a_process_has_room_for_so_many_sockets_requests_and_bytes(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once 503, whoever asks; but the tracker is never kept from asking by others' sockets."""
    a, _, _ = caller(board), peer(board, "b"), peer(board, "c")
    monkeypatch.setattr(wire, "MAX_SOCKETS_PER_PROCESS", 3)
    with pytest.raises(wire.WireError, match="3 sockets are open here") as caught:
        caller(board, "d")
    assert caught.value.code is Code.BUSY
    tracker = caller(board, wire.TRACKER, "")
    monkeypatch.setattr(wire, "MAX_IN_FLIGHT_PER_PROCESS", 2)
    board.request(a, "b", forward("1"), now=0)
    board.request(tracker, "c", forward("1"), now=0)
    assert the_error(board.request(a, "b", forward("2"), now=0), a, "2") == Code.BUSY
    assert the_error(board.request(tracker, "b", forward("2"), now=0), tracker, "2") == Code.BUSY
    monkeypatch.setattr(wire, "MAX_IN_FLIGHT_PER_PROCESS", 100)
    monkeypatch.setattr(wire, "MAX_BYTES_PER_PROCESS", 2 * OVERHEAD_BYTES + MIB)
    assert the_error(board.request(a, "b", forward("2", body=b"x" * MIB), now=0), a, "2") == Code.BUSY
    board.answer(board.peers["b"], Response("x1", 200), now=0)
    assert board.request(a, "b", forward("2", body=b"x" * MIB), now=0)[0].link is board.peers["b"]


def test_a_cancel_of_the_caller_reaches_the_peer_and_frees_the_id(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(), now=0)
    assert board.cancel(a, "1", now=0) == [Send(b, Cancel("x1"), "a")]
    assert board.cancel(a, "1", now=0) == []
    assert board.outcomes == {"cancelled": 1}
    assert board.request(a, "b", forward(), now=0)[0].link is b


def test_a_failed_way_to_the_peer_ends_the_one_request_that_took_it(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward("1"), now=0)
    board.request(a, "b", forward("2"), now=0)
    effects = board.fail(b, "x1", Code.BUSY, "later", now=0)
    assert the_error(effects, a, "1") == Code.BUSY
    assert board.fail(b, "x1", Code.BUSY, "later", now=0) == []
    assert list(board.flights) == ["x2"]


def test_a_peer_of_another_process_is_found_and_checked_like_any(board: Board) -> None:
    far, a, stranger = board.attach("b", "m", "the bus"), caller(board), caller(board, "c", "other")
    board.remote = lambda peer_id: far if peer_id == "b" else None
    assert passed_on(board.request(a, "b", forward(), now=0), far).sender == "a"
    assert the_error(board.request(stranger, "b", forward(), now=0), stranger) == Code.NOT_FOUND
    assert the_error(board.request(a, "z", forward("2"), now=0), a, "2") == Code.NOT_FOUND


def tunnel(board: Board, peer_id: str) -> Link[str]:
    link = board.attach(peer_id, "m", f"tunnel of {peer_id}", version=2)
    board.register(link, since=0.0)
    return link


def test_a_ping_follows_each_mebibyte_and_its_pong_gives_the_room_back(board: Board) -> None:
    a, b = caller(board), tunnel(board, "b")
    sent = [board.request(a, "b", forward(str(n), body=b"x" * MIB), now=0) for n in range(7)]
    pings = [effect.frame for effects in sent for effect in effects[1:] if isinstance(effect, Send)]
    assert [type(ping) for ping in pings] == [Ping] * 7
    for number in range(7):
        board.cancel(a, str(number), now=0)
    assert the_error(board.request(a, "b", forward("x", body=b"x" * MIB), now=0), a, "x") == Code.PEER_BUSY
    board.pong(b, pings[-1].n, now=0)  # type: ignore[union-attr]
    assert board.request(a, "b", forward("y", body=b"x" * MIB), now=0)[0].link is b


def test_an_asker_that_reads_no_answers_may_not_go_on_asking(board: Board) -> None:
    a, b = tunnel(board, "a"), peer(board)
    for number in range(1, 9):
        board.request(a, "b", forward("1"), now=0)
        board.answer(b, Response(f"x{number}", 200, {}, b"x" * MIB), now=0)
    assert the_error(board.request(a, "b", forward("1"), now=0)[:1], a) == Code.RATE_LIMITED


def test_answers_that_an_asker_does_not_read_are_too_many_at_15_mib(board: Board) -> None:
    a, b = tunnel(board, "a"), peer(board)
    for number in range(20):
        board.request(a, "b", forward(str(number)), now=0)
    answers = [board.answer(b, Response(f"x{n:x}", 200, {}, b"x" * MIB), now=0)[0] for n in range(1, 0x10)]
    assert all(isinstance(it, Send) and isinstance(it.frame, Response) for it in answers[:14])
    assert the_error(answers[14:], a, "14") == Code.RATE_LIMITED
    assert Send(a, Response("19", 200), "b") in board.answer(b, Response("x14", 200), now=0)


def test_a_beat_pings_who_was_quiet_and_closes_who_answers_none(board: Board) -> None:
    a, b, old = tunnel(board, "a"), tunnel(board, "b"), peer(board, "c")
    assert board.beat(now=8.9) == []
    pings = {effect.link: effect.frame for effect in board.beat(now=9) if isinstance(effect, Send)}
    assert set(pings) == {a, b}
    assert old not in pings, "version 1 has the server's own"
    board.pong(a, pings[a].n, now=9.1)  # type: ignore[union-attr]
    closed = [effect.link for effect in board.beat(now=19) if isinstance(effect, Close)]
    assert closed == [b]


def test_connections_that_replace_each_other_have_to_pause_and_are_forgiven(board: Board) -> None:
    for number in range(7):
        assert board.pause_s("b", now=0) == (3 if number == 6 else 0)
        board.register(board.attach("b", "m", "another"), since=0.0, now=0)
    assert board.pause_s("b", now=0) == 3
    assert board.pause_s("b", now=1) == 2
    assert board.pause_s("c", now=0) == 0
    assert board.pause_s("b", now=11) == 0
    assert board.peers["b"].replaced == 6


def test_generations_rise_with_the_clock_and_without_it(board: Board) -> None:
    numbers = []
    for since in (5.0, 5.0, 4.0, 6.0):
        link = board.attach("b", "m", "another")
        board.register(link, since=since)
        numbers.append(link.generation)
    assert numbers == [5000, 5001, 5002, 6000]


def test_draining_tells_those_that_can_be_told_to_move(board: Board) -> None:
    a, b = tunnel(board, "a"), peer(board)
    drain = wire.Drain(500, 5000)
    assert board.send_away(drain, now=0) == [Send(a, drain)]
    assert b in board.links


def test_draining_refuses_what_is_new_and_lets_go_on_what_is_in_flight(board: Board) -> None:
    a, b, site = caller(board), peer(board), caller(board, wire.TRACKER)
    chat = Request("chat", "POST", "/v1/chat/completions")
    board.request(site, "b", chat, now=0)
    board.drain()
    for asker, new in ((site, replace(chat, request_id="new")), (a, chat), (a, Request("new", "GET", "/health"))):
        assert the_error(board.request(asker, "b", new, now=0), asker, new.request_id) == Code.DRAINING
    assert board.answer(b, Response("x1", 200), now=0) == [Send(site, Response("chat", 200), "b")]


def test_draining_lets_chats_that_run_make_their_steps_and_end_them(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.drain()
    step, end = forward(), Request("2", "DELETE", f"/sessions/{'a' * 32}")
    for number, asked in enumerate((step, end), 1):
        assert passed_on(board.request(a, "b", asked, now=0), b).path == asked.path
        assert board.answer(b, Response(f"x{number}", 200), now=0) == [Send(a, Response(asked.request_id, 200), "b")]


def test_the_end_of_all_fails_what_is_in_flight_and_closes_every_link(board: Board) -> None:
    a, b = caller(board), peer(board)
    board.request(a, "b", forward(), now=0)
    effects = board.end_all("stopped", now=0)
    assert (
        the_error([effect for effect in effects if isinstance(effect, Send) and effect.link is a], a) == Code.DRAINING
    )
    assert {effect.link for effect in effects if isinstance(effect, Close)} == {a, b}


def test_a_revoked_peer_is_closed_wherever_it_is_and_nobody_else(board: Board) -> None:
    a, b, also_b = caller(board), peer(board), caller(board, "b")
    assert {effect.link for effect in board.expel("b", "revoked")} == {b, also_b}
    assert a in board.links


def test_nothing_is_left_when_everybody_has_gone(board: Board) -> None:
    links = [caller(board), peer(board)]
    board.request(links[0], "b", forward(), now=0)
    for link in links:
        board.detach(link, now=0)
    assert (board.links, board.peers, board.flights, board.accounts._callers) == (set(), {}, {}, {})
