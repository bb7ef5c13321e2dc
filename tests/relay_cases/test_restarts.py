"""R3, R4. Servers that end and come back: nodes find them again by themselves, spread out; callers are never left."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import requests
import websocket

from tests.lab.ends import eventually
from tests.lab.faultproxy import FaultProxy
from tests.lab.site import Site, events
from tests.lab.split import SplitSite
from tests.relay_cases.meshes import RealMesh, bridges, peer_id_of
from tests.relay_cases.served import VERSIONS, Deployment, Served, World, echo, two_processes

NUM_NODES = 20


LEASE_S = 5.0  # for so long a dead process may be believed in
LATE_S = 1.0  # how late a busy machine may notice


@pytest.fixture(scope="module")
def own_served() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.fixture(scope="module")
def own_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with two_processes(tmp_path_factory.mktemp("own-redis")) as pair:
        yield pair


def is_reached(world: World, number: int) -> bool:
    """Asks a node over a new socket. It has an outcome within two seconds, or the socket doesn't live."""
    try:
        caller = world.caller(peer_id_of(number), "cc33")
    except (OSError, websocket.WebSocketException):
        return False
    try:
        caller.ask("1", method="GET", path="/health", deadline_ms=1500)
        return caller.hear(2).status == 200
    except ConnectionError:
        return False
    finally:
        caller.die()


def test_nodes_come_back_to_a_killed_relay_not_all_at_once_and_every_call_reaches_their_new_sockets(
    own_served: Served,
) -> None:
    """R3, R4. Full jitter: no tenth of a second has most of them. Until they are back no call is without an outcome."""
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(own_served.address))
        url, half = f"ws://127.0.0.1:{proxy.port}", NUM_NODES // 2
        nodes = stack.enter_context(bridges(url, half, version=1))
        nodes += stack.enter_context(bridges(url, half, version=2, first=half + 1))
        worlds = [stack.enter_context(World(Deployment(own_served, own_served), version)) for version in VERSIONS]
        assert all(node.connected.wait(5) for node in nodes)
        waiting = [world.caller(peer_id_of(1), f"dd4{world.version}") for world in worlds]
        before = len(proxy.opened_at)
        own_served.kill()
        for caller in waiting:
            with pytest.raises(ConnectionError):
                caller.hear(2)
        own_served.start()
        for world in worlds:
            for number in (1, half + 1):
                eventually(functools.partial(is_reached, world, number))
        assert all(node.connected.wait(15) for node in nodes)
        attempts = proxy.opened_at[before:]
    assert len(attempts) < 6 * NUM_NODES
    assert max(sum(at <= other < at + 0.1 for other in attempts) for at in attempts) < NUM_NODES * 3 / 4


def test_calls_to_a_killed_process_fail_within_its_lease_and_reach_it_again_when_it_is_back(
    own_pair: Deployment,
) -> None:
    """R3, R10. 503 for what the dead process hadn't acknowledged yet, 502 for what it had: its lease ends first."""
    with World(own_pair, 1) as old, World(own_pair, 2) as new:
        peer, callers = new.peer(), [old.caller(), new.caller(peer_id="dd44")]
        for number in range(5):
            for caller in callers:
                caller.ask(str(number), b"work")
        peer.wait_for_requests(10)
        own_pair.peers_at.kill()
        killed = time.monotonic()
        for caller in callers:
            assert {caller.hear(10).status for _ in range(5)} <= {502, 503}
        assert time.monotonic() - killed < LEASE_S + LATE_S
        for caller in callers:
            while (heard := caller.asked("gone")).status != 404:
                assert heard.status in (502, 503)
                assert time.monotonic() - killed < LEASE_S + LATE_S
        assert "aa11" not in old.present()
        own_pair.peers_at.start()
        old.peer(serve=echo)
        for caller in callers:
            assert caller.asked("back", b"here").body == b"here"
    assert own_pair.callers_at.is_running


class Load:
    """Chats, three at a time, one after another. Each ends in time with an answer or with an error that says so."""

    def __init__(self, mesh: RealMesh) -> None:
        self._mesh = mesh
        self.answered_at: list[float] = []
        self.errors: list[str] = []
        self.longest_s = 0.0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(3)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a chat has no end"

    def wait_for_answers(self, number: int, since: float) -> float:
        """Seconds from `since` until so many chats that began after it have been answered."""
        eventually(lambda: sum(at > since for at in self.answered_at) >= number, 30, str(self.errors[-3:]))
        return self.answered_at[-1] - since

    def _run(self) -> None:
        while not self._over.is_set():
            started = time.monotonic()
            error = self._chat()
            self.longest_s = max(self.longest_s, time.monotonic() - started)
            if error:
                self.errors.append(error)
                self._over.wait(0.1)
            else:
                self.answered_at.append(started)

    def _chat(self) -> str:
        body = {"model": self._mesh.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        try:
            with self._mesh.site.post("/v1/chat/completions", body | {"stream": True}, stream=True) as response:
                if response.status_code != 200:
                    return str(response.json()["error"]["code"])
                return next((str(event["error"]["code"]) for event in events(response) if "error" in event), "")
        except (requests.RequestException, AssertionError) as error:
            return type(error).__name__


def restart_relay(site: SplitSite) -> None:
    site.kill_relay()
    site.start_relay()


def restart_redis(site: SplitSite) -> None:
    site.redis.kill()
    site.redis.start()


def restart_tracker(site: SplitSite) -> None:
    site.kill()
    Site.start(site)


@pytest.mark.parametrize(
    "restart", [restart_relay, restart_redis, restart_tracker], ids=lambda restart: restart.__name__
)
def test_under_load_what_is_restarted_serves_again_within_the_backoff_and_nobody_does_anything(
    mesh: RealMesh, restart: Callable[[SplitSite], None]
) -> None:
    """R4."""
    with Load(mesh) as load:
        load.wait_for_answers(3, time.monotonic())
        restart(mesh.site)
        ready = time.monotonic()
        took_s = load.wait_for_answers(3, ready)
    print(restart.__name__, took_s, load.longest_s, Counter(load.errors))
    assert took_s < 10
    assert load.longest_s < 10
    assert all(node.is_running for node in mesh.nodes)
