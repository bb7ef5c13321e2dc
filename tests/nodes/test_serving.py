"""What a whole node does when its tracker tells it to, and when it has slept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodes.engine import Engine, Step
from nodes.sampling import GREEDY
from nodes.serving import Serving
from nodes.sessions import Missing, Stale
from relay import wire
from tests.nodes.clocks import Time
from tests.nodes.sites import Site, node_options
from tests.nodes.test_node import Running, wait_for_text

SESSION = "5e" * 16
IDS = (5, 6, 7)


@dataclass
class World:
    site: Site
    clock: Time
    serving: Serving

    @property
    def engine(self) -> Engine:
        assert self.serving._engine
        return self.serving._engine

    def work(self, position: int, epoch: int = 1, number: int = 1) -> None:
        """A step as the head of a route gives it to its own layers. Raises what the engine does."""
        step = Step(SESSION, epoch, number, position, 0, 3, IDS, None, GREEDY, reserve_tokens=40)
        self.engine.submit(step).result(20)

    def held(self) -> tuple[int, int]:
        occupancy = self.engine.occupancy()
        return occupancy.cached_tokens, occupancy.reserved_tokens

    def state(self) -> str:
        """As whoever asks through the relay sees it."""
        assert self.serving._api
        answer = self.serving._api.begin(wire.Request("h", "GET", "/health"), "relay").result(5)
        assert isinstance(answer, wire.Response)
        return answer.body.decode()

    def wait_until(self, is_so: Callable[[], bool], deadline_s: float = 20) -> None:
        until = time.monotonic() + deadline_s
        while not is_so():
            assert time.monotonic() < until, self.site.tracker.asked[-1]
            time.sleep(0.01)


@pytest.fixture
def world(site: Site, tiny_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    caplog.set_level(logging.INFO)
    clock = Time()
    options = node_options(tiny_path, tracker_url=site.tracker.url, state_folder=tmp_path / "1")
    running = Running(options, clock)
    wait_for_text(caplog, "Ready: layers")
    assert site.relay.registered.acquire(timeout=5)
    assert running.node.serving
    yield World(site, clock, running.node.serving)
    running.stop()


def test_after_sleep_it_begins_anew_and_remembers_no_more_than_fences(world: World) -> None:
    world.work(0)
    num_registered = world.site.tracker.verbs.count("register")
    assert world.held() == (3, 40)
    world.clock.now += 60
    world.site.tracker.wait_for("register", num_registered + 1)

    assert world.site.relay.registered.acquire(timeout=20), "it connects anew"
    assert world.held() == (0, 0)
    with pytest.raises(Missing):
        world.work(3, number=2)
    with pytest.raises(Stale):
        world.work(0, epoch=0, number=9)
    world.work(0, number=3)
    assert world.held() == (3, 40)
    world.site.tracker.wait_for("heartbeat", world.site.tracker.verbs.count("heartbeat") + 1)
    assert world.site.tracker.verbs.count("register") == num_registered + 1


def test_a_moments_pause_is_no_sleep(world: World) -> None:
    world.work(0)
    world.clock.now += 10
    world.site.tracker.wait_for("heartbeat", world.site.tracker.verbs.count("heartbeat") + 8)

    assert world.held() == (3, 40)
    assert world.site.tracker.verbs.count("register") == 1


def test_heartbeats_name_the_sessions_it_holds_and_the_tracker_ends_those_that_are_over(world: World) -> None:
    world.work(0)
    world.wait_until(lambda: world.site.tracker.asked[-1][2].get("session_epochs") == {SESSION: 1})
    world.site.says = {"closed": {SESSION: 1}}
    world.wait_until(lambda: world.held() == (0, 0))

    with pytest.raises(Stale):
        world.work(0, number=9)
    world.work(0, epoch=2)
    world.site.tracker.wait_for("heartbeat", world.site.tracker.verbs.count("heartbeat") + 2)
    assert world.held() == (3, 40)


def test_a_drained_node_heads_nothing_until_it_works_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.site.says = {"duty": "draining"}
    world.wait_until(lambda: '"draining"' in world.state())
    assert caplog.text.count("has this node drained") == 1
    world.site.says = {"duty": "works"}
    world.wait_until(lambda: '"ok"' in world.state())

    assert caplog.text.count("has this node work again") == 1
