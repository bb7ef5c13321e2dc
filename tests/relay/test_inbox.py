from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.inbox import Inbox

ONE, TWO = {"type": "websocket.receive", "bytes": b"1"}, {"type": "websocket.receive", "bytes": b"2"}
END = {"type": "websocket.disconnect"}


@pytest.fixture
def inbox() -> Inbox:
    inbox = Inbox(lambda error: None)
    inbox.queue = asyncio.Queue()
    return inbox


def waiting(inbox: Inbox) -> list[Any]:
    return [inbox.queue.get_nowait() for _ in range(inbox.queue.qsize())]


def test_who_asks_is_told_at_once(inbox: Inbox) -> None:
    told: list[Any] = []
    inbox.hear_now(told.append)
    inbox.put_nowait(ONE)
    assert told == [ONE]
    assert waiting(inbox) == []


def test_what_came_before_stays_before(inbox: Inbox) -> None:
    told: list[Any] = []
    inbox.put_nowait(ONE)
    inbox.hear_now(told.append)
    inbox.put_nowait(TWO)
    assert waiting(inbox) == [ONE, TWO]
    inbox.put_nowait(TWO)
    assert told == [TWO]


def test_the_end_is_for_receive(inbox: Inbox) -> None:
    told: list[Any] = []
    inbox.hear_now(told.append)
    inbox.put_nowait(END)
    inbox.hear_now(None)
    inbox.put_nowait(ONE)
    assert told == []
    assert waiting(inbox) == [END, ONE]


def test_an_error_of_ours_ends_the_socket() -> None:
    errors: list[Exception] = []
    inbox = Inbox(errors.append)
    inbox.queue = asyncio.Queue()
    inbox.hear_now(lambda message: 1 / 0)  # type: ignore[arg-type]
    inbox.put_nowait(ONE)
    assert [type(error) for error in errors] == [ZeroDivisionError]
