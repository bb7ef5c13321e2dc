"""R2, R11. Many at once: every request has one outcome, its own, and soon."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

from tests.lab.ends import Asking, Envelope, Heard, Peer
from tests.relay_cases.served import World, echo

IN_FLIGHT = 64  # requests that one caller may have, and one peer
REFUSALS = {404, 429, 502, 503}


def test_200_callers_at_once_to_one_slow_peer_each_have_a_result_or_are_told_to_wait(world: World) -> None:
    """R2."""

    def serve(envelope: Envelope, body: bytes) -> tuple[int, dict[str, str], bytes]:
        time.sleep(0.005)
        return 200, {}, body

    world.peer(serve=serve)
    callers = [world.caller(peer_id=f"{number:04x}") for number in range(200)]
    started = time.monotonic()
    for number, caller in enumerate(callers):
        caller.ask("1", str(number).encode())
    outcomes = [caller.hear(10) for caller in callers]
    assert time.monotonic() - started < 5
    assert Counter(heard.status for heard in outcomes).keys() <= {200, 429, 503}
    answered = [(number, heard) for number, heard in enumerate(outcomes) if heard.status == 200]
    assert len(answered) >= IN_FLIGHT
    assert all(heard.body == str(number).encode() for number, heard in answered)
    assert all(caller.asked("2", b"again").body == b"again" for caller in callers[:10])


def test_200_callers_of_a_silent_peer_hear_of_its_caps_or_of_their_deadlines(world: World) -> None:
    """R2."""
    world.peer()
    callers = [world.caller(peer_id=f"{number:04x}") for number in range(200)]
    started = time.monotonic()
    for caller in callers:
        caller.ask("1", deadline_ms=800)
    codes = Counter(caller.hear(10).code for caller in callers)
    assert codes == {"peer_busy": 200 - IN_FLIGHT, "deadline": IN_FLIGHT}
    assert time.monotonic() - started < 5


def test_peers_that_reconnect_in_a_loop_lose_no_request(world: World) -> None:
    """R2."""
    over = threading.Event()
    peer_ids = ["aa11", "bb22", "dd44"]

    def come_and_go(peer_id: str) -> None:
        number = 0
        while not over.is_set():
            peer = world.peer(peer_id, echo)
            over.wait(0.03)
            [peer.close, peer.die][number % 2]()
            number += 1

    def ask_often(caller: Asking, outcomes: list[Heard]) -> None:
        while not over.is_set():
            body = str(len(outcomes)).encode()
            outcomes.append(caller.asked(str(len(outcomes)), body, deadline_ms=5000))
            assert outcomes[-1].status in REFUSALS or outcomes[-1].body == body

    tables: list[list[Heard]] = [[] for _ in range(12)]
    callers = [world.caller(peer_ids[number % 3], f"{number:04x}") for number in range(12)]
    threads = [threading.Thread(target=come_and_go, args=[peer_id]) for peer_id in peer_ids]
    threads += [threading.Thread(target=ask_often, args=pair) for pair in zip(callers, tables, strict=True)]
    for thread in threads:
        thread.start()
    time.sleep(1.2)
    over.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), "a request had no outcome"
    statuses = Counter(heard.status for table in tables for heard in table)
    assert statuses.keys() <= {200} | REFUSALS
    assert statuses[200] > 0
    for table in tables:
        assert [heard.request_id for heard in table] == [str(number) for number in range(len(table))]


def test_a_thousand_pipelined_requests_answered_in_random_order_each_carry_their_own_payloads_hash(
    world: World,
) -> None:
    """R11. As many in flight as a caller may have; the peer answers what it holds in an order of its own."""
    peer, caller = world.peer(), world.caller()
    payloads = {f"n{number}": random.Random(number).randbytes(50 + number * 7 % 3000) for number in range(1000)}
    stop = threading.Event()
    answering = threading.Thread(target=_answer_in_random_order, args=(peer, stop))
    answering.start()
    try:
        heard = list(_pipelined(caller, payloads))
    finally:
        stop.set()
        answering.join(10)
    assert len(heard) == len({answer.request_id for answer in heard}) == 1000
    assert [answer.request_id for answer in heard] != list(payloads), "they came in order"
    for answer in heard:
        assert (answer.status, answer.body) == (200, hashlib.sha256(payloads[answer.request_id]).digest())


def _pipelined(caller: Asking, payloads: dict[str, bytes]) -> Iterator[Heard]:
    waiting, num_open = list(payloads.items())[::-1], 0
    while waiting or num_open:
        while waiting and num_open < IN_FLIGHT:
            caller.ask(*waiting.pop())
            num_open += 1
        yield caller.hear(10)
        num_open -= 1


def _answer_in_random_order(peer: Peer, stop: threading.Event) -> None:
    order, held = random.Random(7), list[tuple[str, bytes]]()
    while not stop.is_set():
        held += peer.taken(0.02)
        order.shuffle(held)
        half = (len(held) + 1) // 2
        for request_id, body in held[:half]:
            peer.answer(request_id, body=hashlib.sha256(body).digest())
        del held[:half]
