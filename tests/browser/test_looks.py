"""Each page as people see it: in light, in dark and on a phone, kept as pictures; and whom it would shut out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import looks
from tests.lab.people import Window
from tests.lab.site import Site

PAGES = {  # who looks, and where; {session} and {node} are there
    "login": ("", "/login"),
    "api": ("", "/docs"),
    "overview": ("operator", "/"),
    "topology": ("viewer", "/topology"),
    "nodes": ("operator", "/nodes"),
    "node": ("operator", "/nodes/{node}"),
    "sessions": ("viewer", "/sessions"),
    "session": ("operator", "/sessions/{session}"),
    "admin": ("operator", "/admin/"),
    "admin-nodes": ("operator", "/admin/tracker/node/"),
    "admin-node": ("operator", "/admin/tracker/node/{node}/change/"),
    "admin-join-token": ("operator", "/admin/tracker/jointoken/add/"),
    "admin-contributions": ("operator", "/admin/tracker/contribution/"),
    "admin-user": ("root", "/admin/auth/user/1/change/"),
    "admin-audit-log": ("operator", "/admin/tracker/auditentry/"),
    "admin-relay": ("operator", "/admin/relay/"),
    "placement": ("operator", "/placement"),
    "what-if": ("operator", "/placement/what-if?model=tiny&node-{node}=on"),
    "chat": ("operator", "/chat"),
    "not-found": ("viewer", "/nowhere"),
    "not-allowed": ("viewer", "/chat"),
}


@pytest.fixture(scope="module", autouse=True)
def session(site: Site, mesh: None) -> str:
    """One that the mesh has answered."""
    return site.chat("tiny", "Hello", max_tokens=20).completion_id


@pytest.fixture(scope="module")
def views(browser: Browser, site: Site, cookies: dict[str, str]) -> Iterator[dict[str, Window]]:
    """A window for each who looks."""
    opened = {who: Window.open(browser, site, cookies.get(who, "")) for who in ("", "viewer", "operator", "root")}
    yield opened
    for window in opened.values():
        window.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_fit_for_everybody(views: dict[str, Window], session: str, site: Site, name: str) -> None:
    who, path = PAGES[name]
    window = views[who]
    page = window.page
    looks.begin(page)
    [[node]] = site.rows("SELECT id FROM tracker_node WHERE name = 'tiny-0'")
    page.goto(path.format(session=session, node=node))
    if name == "chat":
        chat(page)
    looks.look(page, name)
    assert window.wrong == []


def chat(page: Page) -> None:
    page.get_by_text("Settings").click()
    page.get_by_label("Most tokens").fill("24")
    page.get_by_text("Settings").click()
    page.get_by_label("Your message").fill("What do you think of <b>layers</b>?")
    page.keyboard.press("Enter")
    expect(page.locator("#route [data-running=no]")).to_be_visible()
