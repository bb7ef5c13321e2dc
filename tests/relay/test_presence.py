"""Presence shared over a real Redis: leases, the newest registration, what is taken back and what is swept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from relay.announcements import LATE_S, Announcements
from relay.credit import Credit
from relay.directory import Directory, Entry
from relay.hub import Edge
from relay.leases import CHANGE, OPERATION_S, PEERS, PROCESS, PROCESSES, Leases, LeasesLost
from relay.links import Link, Load
from tests.lab.redis import Redis

LEASE_S = 0.3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with Redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def store(server: Redis) -> Iterator[redis.Redis]:
    """What stands in Redis, for the tests to read. Empty at the beginning."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client


class Member:
    """One process' side: its peers, its leases, what it told others."""

    def __init__(self, url: str, name: str, lease_s: float = 4.0) -> None:
        self.leases = Leases(url, name, f"ws://{name}", lease_s)
        self.directory = Directory()
        self.peers: dict[str, Link[Edge]] = {}
        self.told: list[dict[str, Any]] = []
        self.replaced: list[Link[Edge]] = []
        self.announcements = Announcements(
            self.leases, self.directory, lambda: self.peers, self.told.append, self._replace
        )

    def register(self, peer_id: str, since: float | None = None) -> Link[Edge]:
        edge: Any = None
        link: Link[Edge] = Link(peer_id, "m", edge, Load(), Credit(now=0.0))
        link.generation, link.since = 1, time.time() if since is None else since
        self.peers[peer_id] = link
        self.announcements.changed(peer_id)
        return link

    def leave(self, peer_id: str) -> None:
        del self.peers[peer_id]
        self.announcements.changed(peer_id)

    async def turn(self) -> bool:
        """What the bus does each second."""
        await self.announcements.settle()
        was_known, snapshot = await self.leases.refresh(self.directory.change)
        self.directory.take(snapshot)
        for peer_id, entry in self.directory.entries().items():
            if entry.process != self.leases.process:
                self.announcements.heard_of(peer_id, entry)
        await self.announcements.compare(snapshot)
        return was_known

    def _replace(self, link: Link[Edge]) -> None:
        self.replaced.append(link)
        self.leave(link.peer_id)


@pytest.fixture
async def a(server: Redis, store: redis.Redis) -> AsyncIterator[Member]:
    member = Member(server.url, "a")
    yield member
    await member.leases.close()


@pytest.fixture
async def b(server: Redis, store: redis.Redis) -> AsyncIterator[Member]:
    member = Member(server.url, "b")
    yield member
    await member.leases.close()


async def test_a_peer_of_one_process_is_known_to_the_other(a: Member, b: Member) -> None:
    link = a.register("aa11")
    await a.turn()
    assert not await b.turn()
    entry = b.directory.entry("aa11")
    assert entry
    assert (entry.process, entry.scope, entry.since) == ("a", "m", link.since)
    assert b.directory.processes == {"a": "ws://a", "b": "ws://b"}
    assert await b.turn()


async def test_what_is_told_to_the_others_is_what_stands_there(a: Member, store: redis.Redis) -> None:
    a.register("aa11")
    await a.turn()
    assert a.told == [{"here": "aa11", "entry": store.hget(PEERS, "aa11")}]
    a.leave("aa11")
    await a.turn()
    assert a.told[1:] == [{"gone": "aa11", "generation": json.loads(a.told[0]["entry"])["generation"]}]
    assert store.hgetall(PEERS) == {}


async def test_the_newest_registration_wins_wherever_it_happens(a: Member, b: Member) -> None:
    old = a.register("aa11")
    await a.turn()
    b.register("aa11")
    await b.turn()
    await a.turn()
    assert a.replaced == [old]
    a.register("aa11")
    await a.turn()
    await b.turn()
    assert len(b.replaced) == 1
    entry = b.directory.entry("aa11")
    assert entry
    assert entry.process == "a"


async def test_the_late_clean_up_of_the_one_that_lost_touches_nothing(a: Member, b: Member, store: redis.Redis) -> None:
    a.register("aa11")
    await a.turn()
    b.register("aa11")
    await b.turn()
    newest = store.hget(PEERS, "aa11")
    a.leave("aa11")
    await a.turn()
    assert store.hget(PEERS, "aa11") == newest
    assert len(a.told) == 1


async def test_registering_again_in_the_same_process_is_one_entry_with_a_higher_generation(
    a: Member, store: redis.Redis
) -> None:
    a.register("aa11")
    await a.turn()
    a.register("aa11")
    await a.turn()
    first, second = (json.loads(told["entry"])["generation"] for told in a.told)
    assert second > first
    assert store.hlen(PEERS) == 1
    assert a.replaced == []


async def test_the_peers_of_a_process_whose_lease_is_over_are_nowhere_and_swept_by_any_other(
    server: Redis, b: Member, store: redis.Redis
) -> None:
    doomed = Member(server.url, "doomed", LEASE_S)
    doomed.register("aa11")
    await doomed.turn()
    await b.turn()
    assert b.directory.entry("aa11")
    await asyncio.sleep(LEASE_S + 0.05)
    await b.turn()
    assert b.directory.entry("aa11") is None
    assert store.hgetall(PEERS) == {}
    assert store.smembers(PROCESSES) == {"b"}
    await doomed.leases.close()


async def test_a_process_that_was_given_up_puts_its_peers_back(server: Redis, b: Member, store: redis.Redis) -> None:
    frozen = Member(server.url, "frozen", LEASE_S)
    frozen.register("aa11")
    moved = frozen.register("cc33")
    await frozen.turn()
    before = store.hget(PEERS, "aa11")
    await asyncio.sleep(LEASE_S + 0.05)
    b.register("cc33")
    await b.turn()
    assert not await frozen.turn()
    assert store.hget(PEERS, "aa11") == before
    await b.turn()
    assert set(b.directory.entries()) == {"aa11", "cc33"}
    assert frozen.replaced == [moved]
    await frozen.leases.close()


async def test_what_a_process_says_after_it_was_given_up_is_swept_too(
    server: Redis, b: Member, store: redis.Redis
) -> None:
    """As when it is killed between a registration and the next renewal of its lease."""
    doomed = Member(server.url, "doomed", LEASE_S)
    doomed.register("aa11")
    await doomed.announcements.settle()
    await b.turn()
    await b.turn()
    assert b.directory.entry("aa11") is None
    assert store.hgetall(PEERS) == {}
    await doomed.leases.close()


async def test_redis_without_its_data_is_told_everything_again_and_counts_on(
    a: Member, b: Member, store: redis.Redis
) -> None:
    a.register("aa11")
    await a.turn()
    await b.turn()
    store.flushall()
    assert not await b.turn()
    assert b.directory.entries() == {}
    await a.turn()
    await b.turn()
    assert set(b.directory.entries()) == {"aa11"}
    old = a.peers["aa11"]
    b.register("aa11")
    await b.turn()
    await a.turn()
    assert a.replaced == [old]


async def test_one_that_is_announced_late_gives_way_to_a_later_registration(a: Member, b: Member) -> None:
    """As after an outage during which the peer left b for a: b may be the first or the last to say so."""
    a.register("aa11", since=time.time() - LATE_S - 1)
    await a.turn()
    older = b.register("aa11", since=time.time() - LATE_S - 2)
    await b.turn()
    assert b.replaced == [older]
    await a.turn()
    assert a.replaced == []


async def test_an_entry_nobody_remembers_writing_is_removed_by_its_process(a: Member, store: redis.Redis) -> None:
    """As when the answer to an announcement was lost, and the peer left before the next try."""
    entry = Entry("a", 0, "m", 1.0, 1, "")
    await a.leases.announce("aa11", entry, is_late=False)
    await a.turn()
    assert store.hgetall(PEERS) == {}


async def test_withdrawing_takes_everything_back_at_once(a: Member, b: Member, store: redis.Redis) -> None:
    for number in range(5):
        a.register(f"{number}")
    await a.turn()
    a.announcements.withdraw()
    a.register("too late")
    await a.announcements.settle()
    assert store.hgetall(PEERS) == {}
    assert sum("gone" in told for told in a.told) == 5
    await a.leases.give_up()
    await b.turn()
    assert b.directory.processes == {"b": "ws://b"}


async def test_the_number_of_keys_does_not_grow_with_what_comes_and_goes(
    a: Member, b: Member, store: redis.Redis
) -> None:
    for number in range(100):
        a.register(f"{number}")
        b.register(f"{number}")
        await a.announcements.settle()
        await b.announcements.settle()
        a.leave(f"{number}")
        b.leave(f"{number}")
    await a.turn()
    await b.turn()
    assert set(store.keys()) == {CHANGE, PROCESSES, f"{PROCESS}a", f"{PROCESS}b"}


async def test_nothing_waits_longer_than_its_deadline_for_a_redis_that_answers_nothing(
    server: Redis, a: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.leases.OPERATION_S", 0.2)
    a.register("aa11")
    await a.turn()
    server.freeze()
    try:
        started = time.monotonic()
        with pytest.raises(LeasesLost):
            await a.turn()
        assert time.monotonic() - started < OPERATION_S
    finally:
        server.thaw()
    assert await a.turn()


async def test_redis_gone_is_said_and_its_return_needs_nothing(server: Redis, a: Member, b: Member) -> None:
    a.register("aa11")
    await a.turn()
    server.kill()
    a.register("cc33")
    with pytest.raises(LeasesLost):
        await a.turn()
    server.start()
    await a.turn()
    await b.turn()
    assert set(b.directory.entries()) == {"aa11", "cc33"}
