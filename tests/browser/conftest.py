"""The site's pages in Debian's Chromium, which Playwright drives: one site with a mesh that answers, for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.lab import people
from tests.lab.services import find
from tests.lab.site import Site
from tests.nodes.models import make_tiny_llama

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
expect.set_options(timeout=30_000)

expect.set_options(timeout=20_000)  # ms; for machines that have much else to do


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ends with its module: the event loop that Playwright runs would be in the way of other tests."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=find("chromium"), args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """It notices lost nodes sooner than as shipped."""
    with Site(tmp_path_factory.mktemp("site"), RELAY_PING_S="1", FAILOVER_WAIT_S="1") as started:
        yield started


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    make_tiny_llama(folder, tied=False, num_layers=6)
    return folder


@pytest.fixture(scope="session")
def mesh(site: Site, tiny: Path) -> Iterator[None]:
    with site.mesh(tiny, ["0:3", "3:6"]):
        yield


@pytest.fixture(scope="session")
def cookies(site: Site) -> dict[str, str]:
    """Of a user of each group, and of "root", who is above them."""
    return people.make(site)
