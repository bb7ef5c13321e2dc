"""Who watches sees a bar, the log gets lines, the tracker figures; a node told to stop stops fetching."""

from __future__ import annotations

import io
import logging
import threading

import pytest

from nodes.loading import Loading, Stopped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_tracker_is_told_how_far_it_is() -> None:
    loading = Loading(threading.Event(), io.StringIO())
    assert loading.news() == {}
    loading(3, 10)
    loading(7, 10)
    assert loading.news() == {"done_bytes": 7, "total_bytes": 10}


def test_a_terminal_gets_a_bar_and_nothing_else_does() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with Loading(threading.Event(), stream) as loading:
            loading(0, 4_000_000)
            loading(4_000_000, 4_000_000)
    assert "100%" in terminal.getvalue()
    assert "4.00M/4.00M" in terminal.getvalue()
    assert file.getvalue() == ""


def test_the_log_gets_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Loading(threading.Event(), io.StringIO(), log_every_s=0)(1_000_000, 4_000_000)
        Loading(threading.Event(), io.StringIO(), log_every_s=60)(3_000_000, 4_000_000)
    assert [record.message for record in caplog.records] == ["25 % of the weights are here: 1 of 4 MB"]


def test_a_node_told_to_stop_ends_the_work() -> None:
    stopping = threading.Event()
    loading = Loading(stopping, io.StringIO())
    loading(1, 2)
    stopping.set()
    with pytest.raises(Stopped):
        loading(2, 2)
