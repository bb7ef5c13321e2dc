"""A node whose weights are on their way says so, stops when it is told to, and goes on where it was."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from nodes.hub.client import Hub
from nodes.node import Node
from tests.lab.hub import LocalHub
from tests.nodes.models import make_tiny_llama
from tests.nodes.sites import Site, node_options

NAME = "acme/tiny"


def wait_for(condition: Callable[[], object], deadline_s: float = 30) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_node_is_loading_while_it_fetches_and_keeps_what_came_when_it_is_stopped(
    site: Site, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")
    source = make_tiny_llama(tmp_path / "source", num_layers=4, intermediate=1024)

    def run() -> tuple[threading.Event, threading.Thread]:
        stopping = threading.Event()
        options = node_options(
            Path(NAME), tracker_url=site.tracker.url, state_folder=tmp_path / "state", start_layer=0, end_layer=4
        )
        thread = threading.Thread(target=Node(options, stopping).run, daemon=True)
        thread.start()
        return stopping, thread

    with LocalHub({NAME: source}) as local:
        monkeypatch.setattr(Hub, "of_environment", lambda: Hub(local.url, timeout_s=1.0))
        local.faults.hold_after_bytes = 500_000
        stopping, thread = run()
        assert local.faults.held.wait(30)
        wait_for(lambda: any("done_bytes" in message for _, _, message in site.tracker.asked))
        told = next(message for _, _, message in site.tracker.asked if "done_bytes" in message)
        assert told["state"] == "loading"
        assert 0 < told["done_bytes"] < told["total_bytes"] == local.size(NAME)
        stopping.set()
        thread.join(20)
        assert not thread.is_alive()
        assert "Told to stop while loading; what has arrived is kept" in caplog.text
        assert site.tracker.verbs[-1] == "unregister"

        local.faults.release.set()
        local.faults.hold_after_bytes = None
        before = local.sent_weights
        stopping, thread = run()
        wait_for(lambda: "Ready: layers 0–3 of acme/tiny" in caplog.text)
        assert local.sent_weights - before <= local.size(NAME) - 400_000
        stopping.set()
        thread.join(20)
        assert not thread.is_alive()


def test_a_node_told_to_stop_while_it_waits_for_the_hub_ends(
    site: Site, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")
    stopping = threading.Event()
    options = node_options(Path(NAME), tracker_url=site.tracker.url, state_folder=tmp_path / "state")
    monkeypatch.setattr(Hub, "of_environment", lambda: Hub("http://127.0.0.1:9"))
    thread = threading.Thread(target=Node(options, stopping).run, daemon=True)
    thread.start()
    wait_for(lambda: "trying again in" in caplog.text)
    stopping.set()
    thread.join(20)
    assert not thread.is_alive()
    assert site.tracker.asked == []
