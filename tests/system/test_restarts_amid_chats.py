"""R3, R4. The servers around a chat end and come back while it runs, and it goes on by itself.

Clients are at one process, the nodes' sockets at another, PostgreSQL and Redis between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.lab.doubles import at_step
from tests.lab.postgres import Postgres
from tests.lab.processes import free_port
from tests.lab.redis import Redis
from tests.lab.site import Answer, Site
from tests.lab.split import SplitSite
from tests.lab.tap import Steps, Tap
from tests.system.survivors import Mesh, assert_same, mesh_of

NUM_TOKENS = 40
STEP = 6


@pytest.fixture(scope="module")
def mesh(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("restarts")
    with Postgres() as database, Redis(folder / "redis") as redis, Tap(("127.0.0.1", free_port()), Steps()) as tap:
        site = SplitSite(folder / "site", database, redis, relay_url=f"ws://127.0.0.1:{tap.port}", HEAD_SILENCE_S="3")
        tap.upstream_address = ("127.0.0.1", site.relay_port)
        with site, mesh_of(site, tap, tiny, folder / "names" / "tiny-restarts", "tunnel") as mesh:
            mesh.learn(max_tokens=NUM_TOKENS)
            yield mesh


@pytest.fixture
def asking() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def split(mesh: Mesh) -> SplitSite:
    assert isinstance(mesh.site, SplitSite)
    return mesh.site


def begun(mesh: Mesh, asking: ThreadPoolExecutor) -> list[tuple[Future[Answer], bool]]:
    """Chats of both kinds, of which one at least is in the middle of its answer."""
    mesh.steps.clear()
    amid = mesh.steps.at(at_step("middle", STEP))
    chats = [
        (asking.submit(mesh.ask, is_streamed=is_streamed, is_sampled=is_sampled, max_tokens=NUM_TOKENS), is_sampled)
        for is_streamed, is_sampled in ((True, True), (False, False), (True, False))
    ]
    amid.wait()
    return chats


def test_a_killed_relay_process_comes_back_and_the_chats_go_on_over_the_nodes_new_sockets(
    mesh: Mesh, asking: ThreadPoolExecutor
) -> None:
    """R3. While it is away nobody can answer; the tracker waits for a head to be there again."""
    chats = begun(mesh, asking)
    split(mesh).kill_relay()
    split(mesh).start_relay()
    for chat, is_sampled in chats:
        assert_same(chat.result(60), mesh.expected[is_sampled])
    mesh.wait_until_free()


def test_chats_survive_a_redis_that_is_restarted(mesh: Mesh, asking: ThreadPoolExecutor) -> None:
    """R4."""
    chats = begun(mesh, asking)
    split(mesh).redis.kill()
    split(mesh).redis.start()
    for chat, is_sampled in chats:
        assert_same(chat.result(60), mesh.expected[is_sampled])
    mesh.wait_until_free()


def test_a_killed_tracker_process_leaves_nothing_behind_and_answers_again_when_it_is_back(
    mesh: Mesh, asking: ThreadPoolExecutor
) -> None:
    """R4. Its clients' connections end with it; the nodes notice that nobody waits any more."""
    chats = begun(mesh, asking)
    mesh.site.kill()
    for chat, _ in chats:
        assert isinstance(chat.exception(30), requests.RequestException)
    Site.start(mesh.site)
    mesh.site.wait_for_model(mesh.model)
    assert_same(mesh.ask(is_sampled=True, max_tokens=NUM_TOKENS), mesh.expected[True])
    mesh.wait_until_free()
