from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from relay import wire
from relay.hub import Edge, Hub
from relay.hub import hub as shared_hub
from relay.links import Link
from relay.review import Reviewer
from relay.wire import Code


class Socket:
    """An end of the hub, and what it was closed with."""

    def __init__(self, peer_id: str, scope: str = "tiny", hub: Hub = shared_hub) -> None:
        self.closed = asyncio.Event()
        self.closed_with: tuple[Code, str] | None = None
        self.hub = hub
        self.link: Link[Edge] = hub.attach(peer_id, scope, self)

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        raise AssertionError("nobody asks here")

    def close(self, code: Code, message: str) -> None:
        self.closed_with = code, message
        self.closed.set()
        self.hub.detach(self.link)


class Directory:
    """The callable behind the reviewer."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.asked: list[Mapping[str, str]] = []
        self.forgotten: list[str] = []
        self.is_away = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, connected: Mapping[str, str]) -> Mapping[str, str]:
        self.asked.append(connected)
        assert self.may_answer.wait(10)
        if self.is_away:
            raise RuntimeError("the database is away")
        return self.refused


@pytest.fixture
def directory() -> Directory:
    return Directory()


async def test_who_was_revoked_elsewhere_loses_its_sockets_and_hears_why(directory: Directory) -> None:
    hub = Hub()
    peer, calling, other = Socket("aa11", hub=hub), Socket("aa11", hub=hub), Socket("bb22", "small", hub=hub)
    hub.register(peer.link)
    directory.refused = {"aa11": "this node's key was revoked"}
    await Reviewer(hub, directory, directory.forgotten.append).review()
    for socket in (peer, calling):
        await asyncio.wait_for(socket.closed.wait(), 5)
        assert socket.closed_with == (Code.UNAUTHORIZED, "this node's key was revoked")
    assert directory.asked == [{"aa11": "tiny", "bb22": "small"}]
    assert directory.forgotten == ["aa11"]
    assert other.closed_with is None
    assert hub.switchboard.links == {other.link}


async def test_where_nobody_is_connected_nothing_is_asked(directory: Directory) -> None:
    hub = Hub()
    hub.attach(wire.TRACKER, "", Socket("aa11"))
    await Reviewer(hub, directory, directory.forgotten.append).review()
    assert directory.asked == []


async def test_while_the_database_is_away_peers_stay_and_it_is_said_once(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    hub = Hub()
    peer = Socket("aa11", hub=hub)
    reviewer = Reviewer(hub, directory, directory.forgotten.append)
    directory.is_away, directory.refused = True, {"aa11": "revoked"}
    await reviewer.review()
    await reviewer.review()
    assert peer.closed_with is None
    assert caplog.text.count("connected peers can't be checked") == 1
    directory.is_away = False
    await reviewer.review()
    await asyncio.wait_for(peer.closed.wait(), 5)


async def test_one_review_at_a_time(directory: Directory) -> None:
    hub = Hub()
    Socket("aa11", hub=hub)
    reviewer = Reviewer(hub, directory, directory.forgotten.append)
    directory.may_answer.clear()
    for _ in range(2):
        reviewer.start()
        while not directory.asked:
            await asyncio.sleep(0.001)
    directory.may_answer.set()
    assert reviewer._running is not None
    await reviewer._running
    assert len(directory.asked) == 1
