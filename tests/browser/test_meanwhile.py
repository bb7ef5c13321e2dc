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


def test_a_node_that_waits_for_approval_gets_it_in_the_admin_and_serves(watch: Watch, site: Site, tiny: Path) -> None:
    token, site.join_token = site.join_token, site.manage("createjointoken", "--needs-approval", "--label", "stranger")
    node = site.start_node("newcomer", tiny, "0:3")
    site.join_token = token
    row = watch("/nodes").get_by_role("row", name="newcomer")
    expect(row.locator(".state")).to_have_text("pending")

    with Window.open(watch.browser, site, watch.cookies["operator"]) as window:
        admin = window.page
        admin.goto("/admin/tracker/node/?q=newcomer")
        admin.get_by_role("checkbox", name="Select this object").check()
        admin.get_by_label("Action:").select_option(label="Approve selected nodes")
        admin.get_by_role("textbox", name="Reason:").fill("I know its owner")
        admin.get_by_role("button", name="Go").click()
        expect(admin.locator(".messagelist")).to_contain_text("Approved: newcomer")
        admin.goto("/admin/tracker/auditentry/")
        expect(admin.get_by_role("row", name="newcomer")).to_contain_text("I know its owner")

    node.wait_for("Ready: layers 0–2")
    expect(row.locator(".state")).to_have_text("online")
    node.stop()
