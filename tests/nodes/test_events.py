from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from nodes.deadline import Deadline, DeadlineOver
from nodes.events import DONE, KEEPALIVE, Cancelled, EventStream


def test_events_go_out_as_they_come_and_the_end_is_said() -> None:
    stream = EventStream()
    stream.send({"a": "é"}, Deadline.after(1))
    stream.finish({"b": 2})

    assert b"".join(stream) == b'data: {"a":"\\u00e9"}\n\n' + b'data: {"b":2}\n\n' + DONE


def test_while_nothing_comes_a_comment_goes_out() -> None:
    stream = EventStream(keepalive_s=0.02)
    events = iter(stream)

    assert [next(events), next(events)] == [KEEPALIVE, KEEPALIVE]
    stream.finish()
    assert list(events) == [DONE]


def test_who_generates_waits_for_who_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.events.MAX_WAITING", 2)
    stream = EventStream()
    stream.send({}, Deadline.after(1))
    stream.send({}, Deadline.after(1))
    with pytest.raises(DeadlineOver):
        stream.send({}, Deadline.after(0.05))

    events = iter(stream)
    threading.Timer(0.05, lambda: next(events)).start()
    stream.send({}, Deadline.after(5))


def test_a_sender_that_gives_up_ends_the_generation() -> None:
    stream = EventStream()
    stream.send({}, Deadline.after(1))
    events: Iterator[bytes] = iter(stream)
    next(events)

    events.close()  # type: ignore[attr-defined]  # as a server does when a write fails

    assert stream.is_cancelled
    with pytest.raises(Cancelled):
        stream.send({}, Deadline.after(1))
    with pytest.raises(Cancelled):
        stream.check()


def test_cancelling_wakes_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.events.MAX_WAITING", 1)
    stream = EventStream(keepalive_s=60)
    stream.send({}, Deadline.after(1))
    threading.Timer(0.05, stream.cancel).start()

    with pytest.raises(Cancelled):
        stream.send({}, Deadline.after(60))
    assert list(stream) == []


def test_the_last_events_always_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.events.MAX_WAITING", 1)
    stream = EventStream()
    stream.send({}, Deadline.after(1))
    stream.finish({"error": {}})

    assert b"".join(stream).endswith(b'data: {"error":{}}\n\n' + DONE)
