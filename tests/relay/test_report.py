from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings

from relay import report
from relay.directory import Entry, Snapshot, directory
from relay.hub import hub
from relay.report import Figures, Row
from tests.relay.test_review import Socket

ELSEWHERE = Entry("p2", 7, "tiny", 1.8e9, 2, "203.0.113.9")


@pytest.fixture
def other_process() -> Iterator[None]:
    """One that holds the peer ee55, besides this one."""
    directory.take(Snapshot(1, {"p1": "ws://a.example", "p2": "ws://b.example"}, {"ee55": ELSEWHERE}, {}))
    yield
    directory.take(Snapshot(0, {}, {}, {}))
    report._told.clear()


async def test_each_registered_peer_is_a_row_and_callers_are_none() -> None:
    peer, caller = Socket("aa11"), Socket("bb22")
    hub.register(peer.link)
    peer.link.bytes_in, peer.link.replaced = 7, 2
    assert report.rows() == [Row("aa11", "tiny", settings.RELAY_URL, "", 1, peer.link.since, Figures(0, 7, 0, None, 2))]
    for socket in (peer, caller):
        hub.detach(socket.link)
    assert report.rows() == []


def test_a_peer_of_another_process_is_known_before_its_figures_are(other_process: None) -> None:
    row = Row("ee55", "tiny", "ws://b.example", "203.0.113.9", 2, 1.8e9, None)
    assert report.rows() == [row]
    report.hear({"process": "p2", "figures": {"ee55": [1, 2, 3, 0.5, 4]}})
    assert report.rows() == [Row("ee55", "tiny", "ws://b.example", "203.0.113.9", 2, 1.8e9, Figures(1, 2, 3, 0.5, 4))]


def test_what_is_told_of_peers_that_are_not_there_is_not_kept(other_process: None) -> None:
    report.hear({"process": "p3", "figures": {"ee55": [9, 9, 9, None, 9]}})
    report.hear({"process": "p2", "figures": {"ff66": [9, 9, 9, None, 9]}})
    assert report._told == {"p2": {}}


@pytest.mark.parametrize("note", [{}, {"process": "p2"}, {"process": "p2", "figures": {"ee55": [1]}}])
def test_what_cannot_be_read_is_said_so(other_process: None, note: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        report.hear(note)


async def test_many_peers_are_told_in_several_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PEERS_PER_NOTE", 2)
    sockets = [Socket(peer_id) for peer_id in ("aa11", "bb22", "cc33")]
    for socket in sockets:
        hub.register(socket.link)
    notes = list(report.notes("p1"))
    assert [list(note["figures"]) for note in notes] == [["aa11", "bb22"], ["cc33"]]
    assert notes[1] == {"process": "p1", "figures": {"cc33": (0, 0, 0, None, 0)}}
    for socket in sockets:
        hub.detach(socket.link)
