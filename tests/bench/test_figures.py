from __future__ import annotations

import socket

import pytest

from bench.api import Cost, Pair
from bench.bounds import Bound, Spent, bound_table, spent
from bench.callers import TOKEN, Listener
from bench.chats import Chat, tokens_per_s_in_all


def chat(times: list[float], steps: int, *hops: tuple[float, float, float]) -> Chat:
    """`hops`: ms_total, compute_ms and queue_ms of each."""
    names = ("ms_total", "compute_ms", "queue_ms")
    table = [dict(zip(names, hop, strict=True)) | {"steps": steps} for hop in hops]
    return Chat(started=0.0, ids=list(range(len(times))), times=times, hops=table)


def test_the_first_token_is_not_counted_and_what_comes_together_comes_with_the_last_of_it() -> None:
    assert chat([1.0, 2.0, 3.0], 3).tokens_per_s == 1.0
    assert chat([1.0, 3.0, 3.0, 3.0, 3.0], 3).tokens_per_s == 2.0


def test_chats_at_once_are_measured_while_all_of_them_decode() -> None:
    early, late = [0.0, 1.0, 2.0, 3.0], [1.5, 2.5, 3.5, 4.5]
    assert tokens_per_s_in_all([chat(early, 4), chat(late, 4)]) == pytest.approx(3 / 1.5)
    with pytest.raises(AssertionError, match="ask for more tokens"):
        tokens_per_s_in_all([chat([0.0, 1.0], 2), chat([2.0, 3.0], 2)])


def test_the_prompts_time_is_taken_off_a_steps() -> None:
    first = chat([0.5], 1, (100.0, 90.0, 0.0), (110.0, 95.0, 1.0))
    whole = chat([0.5, 0.52, 0.54], 3, (120.0, 106.0, 0.0), (134.0, 111.0, 2.0))
    found = spent(first, whole)
    assert (found.tokens, found.whole, found.compute) == pytest.approx((1, 20, 16))
    assert (found.wire, found.head) == pytest.approx((3.5, 0.5))


def test_a_row_says_how_far_it_is_from_its_bound() -> None:
    parts = [Spent(tokens=1, whole=20, compute=16, wire=3)]
    table = bound_table([Bound("two nodes", "32", 8_000_000, 20.0, parts)], lambda num_bytes: num_bytes / 1e6)
    assert table.splitlines()[-1] == "| two nodes | 32 | 20.0 | 8.0 | 8.0 | 8.0 | 3.0 | 1.0 | 0.40 |"


def test_a_request_costs_what_one_token_takes_longer_and_a_token_what_more_of_them_do_beyond_that() -> None:
    cost = Cost(short=[Pair(10, 13), Pair(20, 22), Pair(10, 60)], long=[Pair(100, 124), Pair(90, 114)], num_tokens=22)
    assert cost.per_request_ms() == 3
    assert cost.per_token_ms() == 1


def test_tokens_that_come_together_have_no_gap_between_them() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        listener = Listener(ours)
        for said in (TOKEN + b"..." + TOKEN + TOKEN[:5], TOKEN[5:], b": keepalive\n\n", TOKEN + b"data: [DONE]\n\n"):
            theirs.sendall(said)
            listener.read()
    assert len(listener.times) == 3
    assert len(listener.gaps_s) == 2
    assert listener.is_over
