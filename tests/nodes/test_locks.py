"""One at a time; who waits is patient while the other gets on, and no longer."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from nodes.locks import LockTimeout, locked


def test_one_waits_for_the_other(tmp_path: Path) -> None:
    order: list[str] = []
    is_held, is_waiting = threading.Event(), threading.Event()

    def first() -> None:
        with locked(tmp_path / "deep" / "lock", 20):
            is_held.set()
            is_waiting.wait(20)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert is_held.wait(20)
    with locked(tmp_path / "deep" / "lock", 20, is_waiting.set):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_holder_that_doesnt_get_on_is_told(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", 20):
        with pytest.raises(LockTimeout, match="doesn't get on"):
            with locked(tmp_path / "lock", 0.05):
                raise AssertionError


def test_a_holder_that_gets_on_is_waited_for(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    counter = itertools.count()

    def sign() -> int:
        if (number := next(counter)) == 4:
            raise Stop  # well beyond the patience
        return number

    with locked(tmp_path / "lock", 20):
        with pytest.raises(Stop):
            with locked(tmp_path / "lock", 0.0, sign):
                raise AssertionError
