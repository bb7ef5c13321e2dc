"""What a page that stays open shows of what happens meanwhile, without being loaded again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.lab.people import Window
from tests.lab.site import Site

MARK = "neverLoadedAgain"


@pytest.fixture
def watch(browser: Browser, site: Site, cookies: dict[str, str]) -> Iterator[Watch]:
    watch = Watch(browser, site, cookies)
    yield watch
    watch.end()


class Watch:
    """Pages that are left open."""

    def __init__(self, browser: Browser, site: Site, cookies: dict[str, str]) -> None:
        self.browser, self.site, self.cookies = browser, site, cookies
        self.windows: list[Window] = []

    def __call__(self, path: str, who: str = "viewer") -> Page:
        window = Window.open(self.browser, self.site, self.cookies[who])
        self.windows.append(window)
        window.page.goto(path)
        expect(window.page.locator("#live-status")).to_have_text("live")
        window.page.evaluate(f"window.{MARK} = true")
        return window.page

    def end(self) -> None:
        for window in self.windows:
            assert window.page.evaluate(f"window.{MARK}"), f"{window.page.url} was loaded again"
            with window:
                pass


def test_a_killed_node_turns_red_with_the_reason_and_its_layers_become_a_gap(
    watch: Watch, site: Site, tiny: Path, tmp_path: Path
) -> None:
    model = tmp_path / "frail"
    model.symlink_to(tiny, target_is_directory=True)
    nodes = [site.start_node(f"frail-{cut[0]}", model, cut) for cut in ("0:4", "4:6")]
    overview, listed = watch("/"), watch("/nodes")
    card = overview.locator("section", has=overview.get_by_role("heading", name="frail"))
    row = listed.get_by_role("row", name="frail-4")
    expect(card.get_by_role("heading")).to_contain_text("answers")
    expect(row).to_contain_text("online")

    nodes[1].kill()
    expect(card.get_by_role("heading")).to_contain_text("can't answer")
    expect(card.locator(".part.gap")).to_be_visible()
    expect(card.locator("p.bad")).to_contain_text("Layers 4–5 have no node online: frail-4")
    expect(row.locator(".state.bad")).to_have_text("offline")
    expect(row).to_contain_text("its connection to the relay has ended")

    again = site.start_node("frail-4", model, "4:6")
    expect(card.get_by_role("heading")).to_contain_text("answers")
    expect(card.locator(".part.gap")).to_have_count(0)
    expect(row).to_contain_text("online")
    for node in (nodes[0], again):
        node.stop()
