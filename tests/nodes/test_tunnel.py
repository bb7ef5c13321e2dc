from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from nodes.connection import ConnectionFailed
from nodes.deadline import Deadline
from nodes.tunnel import MAX_ASKED, Tunnel
from relay import wire
from relay.wire import Request, Response

PEER = "ab" * 16


class FakeLine:
    """Takes questions; the test answers them."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request, str]] = []
        self.cancelled: list[str] = []
        self.settled_ids: list[str] = []
        self.has_room = True
        self.taken = threading.Semaphore(0)

    def ask(self, request: Request, to: str) -> bool:
        if self.has_room:
            self.asked.append((request, to))
            self.taken.release()
        return self.has_room

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def settled(self, request_id: str) -> None:
        self.settled_ids.append(request_id)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.taken.acquire(timeout=5)


@pytest.fixture
def line() -> FakeLine:
    return FakeLine()


@pytest.fixture
def tunnel(line: FakeLine) -> Tunnel:
    made = Tunnel()
    made.open(line)
    return made


@pytest.fixture
def asking(tunnel: Tunnel) -> Iterator[Callable[..., Future[Response]]]:
    """Asks on a thread of its own."""
    with ThreadPoolExecutor(16) as threads:
        yield lambda body=b"", deadline_s=5.0: threads.submit(
            tunnel.ask, PEER, "POST", "/forward", {"x-a": "1"}, body, Deadline.after(deadline_s)
        )


Asking = Callable[..., "Future[Response]"]


def test_each_question_gets_the_answer_to_its_id(tunnel: Tunnel, line: FakeLine, asking: Asking) -> None:
    questions = [asking(body=b"%d" % number) for number in range(10)]
    line.wait_for(10)
    for request, to in reversed(line.asked):
        assert to == PEER
        assert tunnel.hear(Response(request.request_id, 200, {}, request.body * 2))

    assert [question.result(5).body for question in questions] == [b"%d%d" % (n, n) for n in range(10)]
    assert len({request.request_id for request, _ in line.asked}) == 10
    assert sorted(line.settled_ids) == sorted(request.request_id for request, _ in line.asked)
    assert tunnel.num_asked == 0


def test_a_question_says_how_long_it_waits(tunnel: Tunnel, line: FakeLine, asking: Asking) -> None:
    question = asking(deadline_s=3)
    line.wait_for(1)
    request, _ = line.asked[0]
    assert 2000 < (request.deadline_ms or 0) <= 3000
    assert (request.method, request.path, request.headers) == ("POST", "/forward", {"x-a": "1"})
    tunnel.hear(Response(request.request_id, 204))
    assert question.result(5).status == 204


def test_one_that_isnt_answered_in_time_is_cancelled_and_its_late_answer_is_nobodys(
    tunnel: Tunnel, line: FakeLine
) -> None:
    with pytest.raises(TimeoutError):
        tunnel.ask(PEER, "POST", "/forward", {}, b"", Deadline.after(0.05))

    request_id = line.asked[0][0].request_id
    assert line.cancelled == line.settled_ids == [request_id]
    assert not tunnel.hear(Response(request_id, 200))


def test_when_the_connection_ends_every_open_question_fails_at_once(
    tunnel: Tunnel, line: FakeLine, asking: Asking
) -> None:
    questions = [asking(deadline_s=30) for _ in range(5)]
    line.wait_for(5)
    started = time.monotonic()
    tunnel.close("the connection ended")

    for question in questions:
        with pytest.raises(ConnectionFailed, match="the connection ended"):
            question.result(5)
    assert time.monotonic() - started < 1
    assert not line.cancelled
    assert not tunnel.is_open


def test_without_a_connection_it_says_so_at_once() -> None:
    with pytest.raises(ConnectionFailed, match="no connection to the relay"):
        Tunnel().ask(PEER, "POST", "/forward", {}, b"", Deadline.after(30))


def test_where_the_connection_has_no_room_the_answer_is_429_at_once(tunnel: Tunnel, line: FakeLine) -> None:
    line.has_room = False
    answer = tunnel.ask(PEER, "POST", "/forward", {}, b"", Deadline.after(30))

    assert answer.status == 429
    assert wire.error_of(answer.status, answer.body) == (
        "rate_limited",
        "the relay has yet to take what this node has sent",
    )
    assert tunnel.num_asked == 0


def test_there_are_never_more_questions_open_than_the_relay_allows(tunnel: Tunnel, line: FakeLine) -> None:
    with ThreadPoolExecutor(MAX_ASKED) as threads:
        questions = [
            threads.submit(tunnel.ask, PEER, "GET", "/health", {}, b"", Deadline.after(30)) for _ in range(MAX_ASKED)
        ]
        line.wait_for(MAX_ASKED)
        assert tunnel.ask(PEER, "GET", "/health", {}, b"", Deadline.after(30)).status == 429
        for request, _ in line.asked:
            tunnel.hear(Response(request.request_id, 200))
        assert {question.result(5).status for question in questions} == {200}


def test_a_question_whose_answer_nobody_wants_any_more_is_cancelled(tunnel: Tunnel, line: FakeLine) -> None:
    unwanted = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        question = threads.submit(tunnel.ask, PEER, "POST", "/forward", {}, b"", Deadline.after(60).unless(unwanted))
        line.wait_for(1)
        unwanted.set()
        with pytest.raises(TimeoutError):
            question.result(10)

    assert line.cancelled == [line.asked[0][0].request_id]
