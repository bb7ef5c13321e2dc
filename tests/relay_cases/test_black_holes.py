"""R5, R7. Connections that are dead and don't say so: each end finds out within two periods of its pings.

The two ends of version 2 ping each other; of version 1 the server does, at twice the period, and a node that hears
nothing asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from nodes.connection import ConnectionFailed
from nodes.deadline import Deadline
from nodes.tunnel import Tunnel
from tests.lab.ends import Asking, Peer, eventually
from tests.lab.faultproxy import FaultProxy
from tests.relay_cases.meshes import bridges, peer_id_of
from tests.relay_cases.served import Deployment, Served, World, echo

PING_S = 1.0  # the shipped one is ten times that
NOTICED_S = {1: 4 * PING_S + 2, 2: 2 * PING_S}  # Daphne looks at its own pings every two seconds
LATE_S = 1.0  # how late a busy machine may be


@pytest.fixture(scope="module")
def pinging() -> Iterator[Served]:
    with Served(RELAY_PING_S=str(PING_S)) as served:
        yield served


@pytest.fixture
def world(pinging: Served, version: int) -> Iterator[World]:
    with World(Deployment(pinging, pinging), version) as world:
        yield world


@pytest.fixture
def proxy(pinging: Served) -> Iterator[FaultProxy]:
    with FaultProxy(pinging.address) as proxy:
        yield proxy


def test_both_ends_of_a_nodes_connection_notice_a_black_hole_and_what_is_pending_fails(
    world: World, proxy: FaultProxy, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5."""
    monkeypatch.setattr("nodes.bridge.CONNECT_DEADLINE_S", 1.0)  # of the attempts into the hole
    url, caller = f"ws://127.0.0.1:{proxy.port}", world.caller(peer_id_of(1))
    world.peer("bb22")  # never answers
    with bridges(url, version=version, ping_s=PING_S, backoff_s=0.5) as [node]:
        assert node.connected.wait(5)
        eventually(lambda: caller.asked("before", method="GET", path="/health").status == 200)
        asking = Pending(node.tunnel, "bb22") if version == 2 else None
        proxy.fail("/ws", "blackhole")
        started = time.monotonic()
        caller.ask("lost", method="GET", path="/health")
        eventually(lambda: not node.connected.is_set())
        assert time.monotonic() - started < NOTICED_S[version] + LATE_S, "the node noticed late"
        heard = caller.hear()
        assert (heard.request_id, heard.status, heard.code) == ("lost", 502, "peer_gone")
        assert time.monotonic() - started < NOTICED_S[version] + LATE_S, "the relay noticed late"
        if asking:
            assert asking.ends_in(1) == "ConnectionFailed"
        proxy.heal("/ws")
        assert node.connected.wait(5)
        assert caller.asked("after", method="GET", path="/health").status == 200


class Pending:
    """A question of a node that nobody answers."""

    def __init__(self, tunnel: Tunnel, to: str) -> None:
        self._tunnel, self._to, self._end = tunnel, to, ""
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        eventually(lambda: tunnel.num_asked)

    def _ask(self) -> None:
        try:
            self._tunnel.ask(self._to, "GET", "/health", {}, b"", Deadline.after(20))
        except (ConnectionFailed, TimeoutError) as error:
            self._end = type(error).__name__

    def ends_in(self, seconds: float) -> str:
        self._thread.join(seconds)
        return self._end


def test_what_a_caller_in_a_black_hole_has_asked_is_cancelled_at_the_peer(world: World, proxy: FaultProxy) -> None:
    """R5."""
    peer, caller = world.peer(), world.caller(at=f"ws://127.0.0.1:{proxy.port}")
    caller.ask("1")
    [asked] = peer.wait_for_requests(1)
    proxy.fail("", "blackhole")
    started = time.monotonic()
    assert peer.wait_for_cancels(1) == [asked["request_id"]]
    assert time.monotonic() - started < NOTICED_S[world.version] + LATE_S
    assert not peer.ended.is_set()


def test_a_peer_that_reads_nothing_is_closed_and_what_it_was_asked_fails(world: World) -> None:
    """R7."""
    world.peer(reads=False)
    caller = world.caller()
    started = time.monotonic()
    assert caller.asked("1", b"unread").code == "peer_gone"
    assert time.monotonic() - started < NOTICED_S[world.version] + LATE_S


@dataclass(frozen=True)
class Alive:
    """Idle ends of both versions on a slow line."""

    peers: list[Peer]
    callers: list[Asking]
    since: float


@pytest.fixture(scope="module", autouse=True)
def alive(pinging: Served) -> Iterator[Alive]:
    """Their time runs while the other tests of this module do."""
    deployment = Deployment(pinging, pinging)
    with FaultProxy(pinging.address) as proxy, World(deployment, 1) as old, World(deployment, 2) as new:
        url = f"ws://127.0.0.1:{proxy.port}"
        proxy.delay("", 150)
        peers = [old.peer("1111", echo, at=url), new.peer("2222", echo, at=url)]
        callers = [old.caller("2222", "3333", at=url), new.caller("1111", "4444", at=url)]
        yield Alive(peers, callers, time.monotonic())


def test_ends_that_are_idle_and_alive_are_left_alone(alive: Alive) -> None:
    """R5. Over a slow line, for longer than the dead are given."""
    time.sleep(max(0.0, alive.since + max(NOTICED_S.values()) + LATE_S - time.monotonic()))
    assert not any(peer.ended.is_set() for peer in alive.peers)
    assert [caller.asked("1", b"x").body for caller in alive.callers] == [b"x", b"x"]
