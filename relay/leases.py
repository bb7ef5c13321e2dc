"""Presence as the processes of one site share it in Redis: each process' lease, and the peers each of them holds.

    meshnet:process:<id>   where the process is; ends by itself unless its lease is renewed
    meshnet:processes      the ids of whoever may have peers, so that nobody has to search for keys
    meshnet:peers          peer_id -> {generation, process, scope, since, …}, the newest registration
    meshnet:change         raised by each registration and each leaving; a registration's generation

The scripts below are the only writers, so every step is whole or hasn't happened. Newest wins by the counter, not by
anybody's clock; it begins at Redis' own clock, so that it never falls behind itself when Redis has lost its data. A
process that finds its lease gone has been given up by the others: it puts its peers back, unless they have moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from relay.directory import Entry, Snapshot

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
LEASE_S = 4.0  # with one refresh, nobody is believed in for more than five seconds after a kill
OPERATION_S = 2.0  # a Redis that takes longer counts as gone
CONNECT_S = 5.0

PEERS, PROCESSES, CHANGE, PROCESS = "meshnet:peers", "meshnet:processes", "meshnet:change", "meshnet:process:"

_NEXT = """
local function next_change()
    local now = redis.call('TIME')
    redis.call('SET', KEYS[2], string.format('%d%06d', now[1], now[2]), 'NX')
    return string.format('%.0f', redis.call('INCR', KEYS[2]))
end
"""

# KEYS: peers, change, processes. ARGV: process id, where it is, lease in ms, the change known, prefix of lease keys.
_REFRESH = (
    _NEXT
    + """
local lease = ARGV[5] .. ARGV[1]
local was_known = redis.call('EXISTS', lease)
redis.call('SET', lease, ARGV[2], 'PX', ARGV[3])
redis.call('SADD', KEYS[3], ARGV[1])
local alive, is_alive, is_dirty = {}, {}, ARGV[4] == '0'
for _, id in ipairs(redis.call('SMEMBERS', KEYS[3])) do
    local where = redis.call('GET', ARGV[5] .. id)
    if where then
        is_alive[id] = true
        alive[#alive + 1] = id
        alive[#alive + 1] = where
    else
        redis.call('SREM', KEYS[3], id)
        is_dirty = true
    end
end
if is_dirty then
    local entries, swept = redis.call('HGETALL', KEYS[1]), false
    for at = 1, #entries, 2 do
        if not is_alive[cjson.decode(entries[at + 1]).process] then
            redis.call('HDEL', KEYS[1], entries[at])
            swept = true
        end
    end
    if swept then next_change() end
end
local change = redis.call('GET', KEYS[2]) or next_change()
local peers = change ~= ARGV[4] and redis.call('HGETALL', KEYS[1]) or false
return {was_known, change, alive, peers}
"""
)

# ARGV: process id, peer id, entry without its generation, whether it happened while nobody could be told, since.
_ANNOUNCE = (
    _NEXT
    + """
redis.call('SADD', KEYS[3], table.remove(ARGV, 1))
local before = redis.call('HGET', KEYS[1], ARGV[1])
if before and ARGV[3] == '1' and cjson.decode(before).since > tonumber(ARGV[4]) then return before end
local entry = '{"generation":' .. next_change() .. ',' .. string.sub(ARGV[2], 2)
redis.call('HSET', KEYS[1], ARGV[1], entry)
return entry
"""
)

# ARGV: process id, peer id, the entry as it was, its generation.
_RESTORE = (
    _NEXT
    + """
redis.call('SADD', KEYS[3], table.remove(ARGV, 1))
local before = redis.call('HGET', KEYS[1], ARGV[1])
if before == ARGV[2] then return before end
if before and cjson.decode(before).generation > tonumber(ARGV[3]) then return before end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
next_change()
return ARGV[2]
"""
)

# ARGV: peer id, the entry as it was.
_REMOVE = (
    _NEXT
    + """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
next_change()
return 1
"""
)


class LeasesLost(Exception):
    """Redis can't be reached, or took too long, or refuses."""


class Leases:
    """One process' side of it. Every call ends within OPERATION_S, in LeasesLost where Redis doesn't do its part."""

    def __init__(self, url: str, process: str, where: str, lease_s: float = LEASE_S) -> None:
        self.process, self.where = process, where
        self._lease_ms = int(lease_s * 1000)
        self._redis = Redis.from_url(
            url,
            decode_responses=True,
            **connecting(url),
            retry=Retry(NoBackoff(), 0),  # a script that may have run isn't run again behind our back
        )

    async def refresh(self, change: int) -> tuple[bool, Snapshot]:
        """Renews the lease, sweeps what dead processes left. False: the lease had ended, or never begun."""
        given = [self.process, self.where, self._lease_ms, change, PROCESS]
        was_known, now, alive, entries = await self._run(_REFRESH, given)
        processes = dict(zip(alive[::2], alive[1::2], strict=True))
        if entries is None:
            return bool(was_known), Snapshot(int(now), processes, None, {})
        stored = dict(zip(entries[::2], entries[1::2], strict=True))
        peers = _entries(stored)
        own = {peer_id: stored[peer_id] for peer_id, entry in peers.items() if entry.process == self.process}
        return bool(was_known), Snapshot(int(now), processes, peers, own)

    async def announce(self, peer_id: str, entry: Entry, *, is_late: bool) -> str:
        """The entry that counts now, as stored. A late one gives way to one since then."""
        given = [self.process, peer_id, _without_generation(entry), "1" if is_late else "0", entry.since]
        return str(await self._run(_ANNOUNCE, given))

    async def restore(self, peer_id: str, stored: str) -> str:
        """Puts an entry back with its own generation; the entry that counts now."""
        given = [self.process, peer_id, stored, Entry.from_json(stored).generation]
        return str(await self._run(_RESTORE, given))

    async def remove(self, peer_id: str, stored: str) -> bool:
        """False: it wasn't the newest any more, and is untouched."""
        return bool(await self._run(_REMOVE, [peer_id, stored]))

    async def give_up(self) -> None:
        """The process ends: nobody has to wait for its lease to end by itself."""
        await self._bounded(self._redis.delete(PROCESS + self.process))

    async def close(self) -> None:
        try:
            async with asyncio.timeout(OPERATION_S):
                await self._redis.aclose()
        except (RedisError, OSError, TimeoutError):
            pass  # there is nothing left to close

    async def _run(self, script: str, given: list[Any]) -> Any:
        return await self._bounded(self._redis.eval(script, 3, PEERS, CHANGE, PROCESSES, *given))

    async def _bounded(self, operation: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(OPERATION_S):
                return await operation
        except TimeoutError:
            raise LeasesLost(f"no answer in {OPERATION_S:.0f} s") from None
        except (RedisError, OSError) as error:
            raise LeasesLost(str(error) or type(error).__name__) from None


def connecting(url: str) -> dict[str, Any]:
    """No timeout for each read: every wait has a deadline of ours, and redis-py's may eat a cancel on Python 3.11."""
    options: dict[str, Any] = {"socket_timeout": None, "socket_connect_timeout": CONNECT_S}
    return options if url.startswith("unix:") else options | {"socket_keepalive": True}


def _entries(stored: dict[str, str]) -> dict[str, Entry]:
    entries = {}
    for peer_id, text in stored.items():
        try:
            entries[peer_id] = Entry.from_json(text)
        except ValueError as error:
            logger.warning("the entry of peer %s in Redis is left aside: %s", peer_id[:64], error)
    return entries


def _without_generation(entry: Entry) -> str:
    text = entry.to_json()
    head, _, rest = text.partition(f'"generation":{entry.generation},')
    return head + rest
