"""Pages of a site with 200 nodes of every kind, whose names are markup: whether they can be read, and stay text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import looks
from tests.lab import people
from tests.lab.people import Window
from tests.lab.site import Site

SPICE = "<img src=x onerror=document.title='spiced'>"
MAKE = f"from tests.tracker.crowd import crowd; crowd(200, 200, num_samples=5, spice={SPICE!r}, without_relay=True)"
PAGES = {"overview": "/", "node": "/nodes/1"} | {
    name: f"/{name}" for name in ("topology", "nodes", "sessions", "placement")
}


@pytest.fixture(scope="module")
def window(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    with Site(tmp_path_factory.mktemp("crowd"), TICK="off") as site:
        cookie = people.make(site, MAKE)["operator"]
        with Window.open(browser, site, cookie) as opened:
            yield opened


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_with_200_nodes_on_it(window: Window, name: str) -> None:
    page = window.page
    looks.begin(page)
    page.goto(PAGES[name])
    expect(page.locator("#live-status")).to_have_text("live")
    looks.look(page, f"{name}-of-200", is_long=True)
    assert page.locator("#live img").count() == 0
    assert page.title() != "spiced"
    assert window.wrong == []
