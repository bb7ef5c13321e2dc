"""A new site, from its first login to a first answer, with what it shows and nothing else. By keyboard alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import looks
from tests.lab.people import Window
from tests.lab.processes import Process, environment, manage_py
from tests.lab.site import Site

READY_MS = 60_000


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("empty"), DASHBOARD_PUBLIC="on") as site:
        site.env["DJANGO_SUPERUSER_PASSWORD"] = "long-enough-a-password"
        site.manage("createsuperuser", "--noinput", "--username", "ada", "--email", "")
        yield site


@pytest.fixture
def page(browser: Browser, empty: Site) -> Iterator[Page]:
    with Window.open(browser, empty) as window:
        yield window.page


def press(page: Page, name: str, keys: int = 60) -> None:
    """Goes to what has this name with the Tab key, and presses Enter there."""
    for _ in range(keys):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if focused.count() and name in (focused.inner_text() or focused.get_attribute("aria-label") or ""):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"{keys} times Tab lead to no {name!r}")


def test_a_new_site_leads_to_a_first_answer(page: Page, browser: Browser, empty: Site) -> None:
    page.goto("/")
    press(page, "Log in")
    expect(page).to_have_url(f"{empty.url}/login")
    page.get_by_label("Username").focus()
    page.keyboard.type("ada")
    page.keyboard.press("Tab")
    page.keyboard.type("long-enough-a-password")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="First steps")).to_be_visible()

    press(page, "Make a join token")
    line = page.get_by_role("region", name="Shown this once").inner_text()
    page.evaluate("window.neverLoadedAgain = true")
    node = started_as_told(empty, line)
    expect(page.get_by_role("heading", name="smollm2-135m-instruct")).to_contain_text("answers", timeout=READY_MS)
    assert page.evaluate("window.neverLoadedAgain"), "it was shown live"
    node.wait_for("Ready: layers 0–29")

    press(page, "Chat")
    expect(page.get_by_label("Your message")).to_be_focused()
    without_chance(page)
    page.keyboard.type("What is the capital of France?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.model .text")).to_contain_text("Paris", timeout=READY_MS)
    expect(page.locator("#doing")).to_contain_text("Done: ")
    the_public_sees_models_and_no_names(browser, empty)


def the_public_sees_models_and_no_names(browser: Browser, site: Site) -> None:
    [[name]] = site.rows("SELECT name FROM tracker_node")
    with Window.open(browser, site) as window:
        window.page.goto("/")
        expect(window.page.get_by_role("heading", name="smollm2-135m-instruct")).to_contain_text("answers")
        expect(window.page.locator("#live-status")).to_have_text("live")
        assert name not in window.page.locator("main").inner_text()
        looks.look(window.page, "public")


def without_chance(page: Page) -> None:
    """From the message to the settings below it, and back."""
    press(page, "Settings")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Temperature")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("0")
    for _ in range(3):
        page.keyboard.press("Shift+Tab")
    expect(page.get_by_label("Your message")).to_be_focused()


def started_as_told(site: Site, line: str) -> Process:
    """The node of a line that somebody has copied, with what a test adds: a folder and a thread."""
    token, python, manage, command, *arguments = shlex.split(line)
    assert (python, manage, command) == ("python", "manage.py", "runnode")
    ours = ["--state-dir", str(site.folder / "node"), "--threads", "1"]
    name, _, secret = token.partition("=")
    env = environment(**{name: secret})
    node = Process([*manage_py(site.python), command, *arguments, *ours], env, warm=True)
    site.nodes.append(node)
    return node
