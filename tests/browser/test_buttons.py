"""Buttons that do something: with JavaScript and without, by the mouse and by Enter."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.lab.people import Window
from tests.lab.site import Site


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_enter_in_the_reason_does_nothing_and_the_button_pauses(
    browser: Browser, site: Site, cookies: dict[str, str], scripts: bool
) -> None:
    reason = f"a new disk, {scripts=}"
    [(pk,)] = site.rows("SELECT id FROM tracker_node WHERE name = 'tiny-1'")
    with Window.open(browser, site, cookies["operator"], scripts=scripts) as window:
        page = window.page
        page.goto(f"/nodes/{pk}")
        page.get_by_label("Reason, for the audit log").fill(reason)
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{site.url}/nodes/{pk}")
        try:
            page.get_by_role("button", name="Pause").click()
            if not scripts:
                expect(page.get_by_role("heading", name="Pause: tiny-1?")).to_be_visible()
                page.get_by_role("button", name="Do it").click()
                expect(page).to_have_url(f"{site.url}/nodes/{pk}")
            expect(page.locator("#notice")).to_contain_text("Paused: tiny-1")
            assert site.rows("SELECT COUNT(*) FROM tracker_auditentry WHERE reason = ?", reason) == [(1,)]
        finally:
            site.give_duty("tiny-1", "works")
