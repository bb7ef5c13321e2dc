"""A whole node whose layers the tracker chooses, and then chooses others."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.engine import Engine, Step
from nodes.sampling import GREEDY
from tests.nodes.models import shard_files
from tests.nodes.sites import Site, node_options
from tests.nodes.test_node import Running, wait_for_text, wait_until
from tests.nodes.trackers import refusal

SESSION = "5e" * 16
ELSEWHERE = {"start_layer": 2, "end_layer": 6, "move": 7}

Begin = Callable[..., Running]


@pytest.fixture
def begin(site: Site, tiny_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Begin]:
    """Starts a node that leaves its layers to the site, and waits until it serves those it got."""
    caplog.set_level(logging.INFO)
    running: list[Running] = []

    def start(model: Path = tiny_path) -> Running:
        state = tmp_path / "state"
        options = node_options(model, tracker_url=site.tracker.url, state_folder=state, start_layer=0, end_layer=0)
        running.append(Running(options))
        wait_for_text(caplog, "Ready: layers 0–2")
        return running[-1]

    yield start
    for one in running:
        one.stop()


def registrations(site: Site) -> list[dict[str, Any]]:
    return [message for verb, _, message in site.tracker.asked if verb == "register"]


def heartbeats(site: Site) -> list[dict[str, Any]]:
    return [message for verb, _, message in site.tracker.asked if verb == "heartbeat"]


def engine_of(running: Running) -> Engine:
    assert running.node.serving
    assert running.node.serving._engine
    return running.node.serving._engine


def hold_a_session(running: Running) -> None:
    step = Step(SESSION, 1, 1, 0, 0, 3, (5, 6, 7), None, GREEDY, reserve_tokens=40)
    engine_of(running).submit(step).result(20)


def test_it_serves_the_layers_that_the_site_answers_with(
    begin: Begin, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.says["reason"] = "they were held by nobody"
    begin()
    [said] = registrations(site)

    assert said["layers"] == "auto"
    assert said["max_cached_tokens"] is None
    assert said["ms_per_layer"] > 0
    assert "The site chose layers 0–2: they were held by nobody" in caplog.text
    told = heartbeats(site)[0]
    assert told["state"] == "loading", "how many tokens it has room for is told before it is asked for the first"
    assert told["max_cached_tokens"] > 0


def test_it_moves_in_the_same_process_and_keeps_nothing_of_its_former_layers(
    begin: Begin, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    running = begin()
    former = weakref.ref(engine_of(running).shard)
    site.chosen, site.says["place"] = (2, 6), ELSEWHERE
    wait_for_text(caplog, "Ready: layers 2–5")

    assert former() is None
    assert engine_of(running).shard.start_layer == 2
    first, second = registrations(site)
    assert (first["move"], second["move"], second["failed_move"]) == (None, 7, None)
    wait_until(lambda: site.peer_id(1) in site.relay.peers)
    wait_until(lambda: heartbeats(site)[-1]["state"] == "serving")
    assert len(registrations(site)) == 2, "the site goes on saying it, and it has been done"


def test_a_session_that_it_still_holds_is_waited_for(
    begin: Begin, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    running = begin()
    hold_a_session(running)
    site.chosen, site.says["place"] = (2, 6), ELSEWHERE
    num_heard = len(heartbeats(site))
    site.tracker.wait_for("heartbeat", num_heard + 2)
    assert len(registrations(site)) == 1

    site.says["closed"] = {SESSION: 1}
    wait_for_text(caplog, "Ready: layers 2–5")


def test_layers_that_cant_be_loaded_are_told_and_the_former_ones_taken_again(
    begin: Begin, site: Site, sharded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(sharded)
    shard_files(sharded)[-1].unlink()
    site.chosen, site.says["place"] = (2, 6), ELSEWHERE
    wait_until(lambda: len(registrations(site)) == 2)
    site.chosen = (0, 3)
    del site.says["place"]
    wait_for_text(caplog, "Ready: layers 0–2", 2)

    failed = registrations(site)[2]["failed_move"]
    assert failed["move"] == 7
    assert shard_files(sharded)[-1].parent.name in failed["reason"]
    assert registrations(site)[2]["move"] is None


def test_a_node_that_is_answered_other_layers_when_it_registers_again_takes_them(
    begin: Begin, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    running = begin()
    hold_a_session(running)  # whoever goes on with it finds other layers here: the tracker believes so already
    answer, lost = site.tracker.answer, [True]
    site.chosen = (2, 6)
    site.tracker.answer = lambda verb: refusal(409, "not_registered") if verb == "heartbeat" and lost else answer(verb)
    wait_until(lambda: len(registrations(site)) == 2)
    lost.clear()
    wait_for_text(caplog, "Ready: layers 2–5")

    assert [said["layers"] for said in registrations(site)] == ["auto"] * len(registrations(site))
    assert registrations(site)[1]["move"] is None


def test_a_node_told_to_stop_while_it_moves_leaves(begin: Begin, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    running = begin()
    site.says["place"] = ELSEWHERE
    wait_for_text(caplog, "Leaving these layers")
    running.stop()

    assert site.tracker.verbs[-1] == "unregister"
