"""Pages that follow the mesh: what changes is shown, what the reader does stays, and what can't be had is said."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.lab.faultproxy import FaultProxy
from tests.lab.people import Window
from tests.lab.site import Site

STATUS = "#live-status"


@pytest.fixture(scope="module", autouse=True)
def nodes(site: Site, mesh: None) -> None:
    """Two, that answer."""


@pytest.fixture
def page(browser: Browser, site: Site, cookies: dict[str, str]) -> Iterator[Page]:
    with Window.open(browser, site, cookies["operator"]) as window:
        yield window.page


@pytest.fixture
def paused(site: Site) -> Iterator[None]:
    site.give_duty("tiny-1", "paused")
    yield
    site.give_duty("tiny-1", "works")


def test_what_changes_is_shown_and_what_the_reader_does_stays(page: Page, site: Site) -> None:
    page.goto("/")
    expect(page.locator(STATUS)).to_have_text("live")
    model = page.locator("section", has=page.get_by_role("heading", name="tiny"))
    model.get_by_text("Who holds which layers").click()
    link = model.get_by_role("link", name="tiny-1")
    link.focus()
    page.evaluate("window.wasHere = true")
    expect(model.locator(".state").first).to_have_text("answers")
    site.give_duty("tiny-1", "paused")
    try:
        expect(model.locator(".state").first).to_have_text("can't answer")
        expect(model).to_contain_text("no node that takes sessions: tiny-1 is paused by the operator")
        expect(model.locator(".bar .closed")).to_have_count(1)
    finally:
        site.give_duty("tiny-1", "works")
    expect(model.locator(".state").first).to_have_text("answers")
    expect(link).to_be_focused()
    assert page.evaluate("window.wasHere"), "without loading the page again"


def test_who_logs_out_elsewhere_is_sent_to_the_login(browser: Browser, site: Site, cookies: dict[str, str]) -> None:
    copied = "INSERT INTO django_session SELECT 'another-login', session_data, expire_date FROM django_session"
    site.rows(f"{copied} WHERE session_key = ?", cookies["operator"])
    with Window.open(browser, site, "another-login") as window:
        page, other = window.page, window.context.new_page()
        page.goto("/")
        expect(page.locator(STATUS)).to_have_text("live")
        other.goto("/")
        other.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_without_a_socket_the_page_asks_and_says_so(page: Page, site: Site, paused: None) -> None:
    page.route_web_socket("**/live", lambda socket: socket.close(code=4503))
    page.clock.install()
    page.goto("/")
    expect(page.locator(STATUS)).to_contain_text("No live connection: this page asks every 5 s.")
    site.give_duty("tiny-1", "works")
    page.clock.fast_forward(6000)
    expect(page.get_by_text("tiny-1 is paused")).to_have_count(0)


def test_while_the_site_is_away_the_page_says_so_and_then_goes_on(
    browser: Browser, site: Site, cookies: dict[str, str]
) -> None:
    with FaultProxy(("127.0.0.1", site.port)) as proxy:
        through: Any = SimpleNamespace(url=f"http://127.0.0.1:{proxy.port}")
        with Window.open(browser, through, cookies["viewer"]) as window:
            page = window.page
            page.goto("/")
            expect(page.locator(STATUS)).to_have_text("live")
            proxy.fail("/", "refuse")
            proxy.cut("/")
            expect(page.locator(STATUS)).to_contain_text("The site doesn't answer")
            expect(page.locator("#live")).to_have_class("stale")
            proxy.heal("/")
            expect(page.locator(STATUS)).to_have_text("live")
            expect(page.locator("#live")).not_to_have_class("stale")
            assert all("WebSocket connection" in one for one in window.wrong), window.wrong
            window.wrong.clear()


def test_a_join_token_is_handed_out_without_leaving_the_page(page: Page, site: Site) -> None:
    page.goto("/")
    expect(page.locator(STATUS)).to_have_text("live")
    page.evaluate(
        """() => { document.querySelector("#live").insertAdjacentHTML("beforebegin",
            '<form hx-post="/first-join-token" hx-target="#notice"><button>Make</button></form>');
            htmx.process(document.querySelector("main")); }"""
    )
    page.get_by_role("button", name="Make").click()
    expect(page.locator("#notice pre")).to_contain_text("MESHNET_JOIN_TOKEN=join_")


MORPH = """([before, after]) => {
    const box = document.createElement("div");
    document.querySelector("main").append(box);
    box.innerHTML = before;
    const kept = new Set(box.querySelectorAll("*"));
    const field = box.querySelector("input");
    field?.focus();
    if (field) field.value = "typed";
    morph(box, after);
    const told = [box.innerHTML, [...box.querySelectorAll("*")].filter((one) => kept.has(one)).length,
                  field ? [field === document.activeElement, field.value] : null];
    box.remove();
    return told;
}"""


@pytest.mark.parametrize(
    ("before", "after", "num_kept"),
    [
        ("<p>a</p>", "<p>b</p>", 1),
        ("<p class='x' title='t'>a</p>", '<p class="y">a<b>c</b></p>', 1),
        ("<i>a</i>text<!--c-->", "text<i>b</i>", 1),
        (
            '<p data-key="1">a</p><p data-key="2">b</p>',
            '<p data-key="0">n</p><p data-key="1">a</p><p data-key="2">c</p>',
            2,
        ),
        (
            '<p data-key="1">a</p><p data-key="2">b</p><p data-key="3">c</p>',
            '<p data-key="3">c</p><p data-key="1">d</p>',
            2,
        ),
        ('<p data-key="1">a</p>', '<b data-key="1">a</b>', 0),
        ('<p data-key="1">a</p>', "<p>a</p>", 0),
        ("<p>a</p><p>b</p><p>c</p>", "<p>c</p>", 1),
        (
            '<svg viewBox="0 0 1 1"><path d="M0 0"></path></svg>',
            '<svg viewBox="0 0 2 2"><path d="M1 1"></path></svg>',
            2,
        ),
        ("<table><tbody><tr><td>1</td></tr></tbody></table>", "<table><tbody><tr><td>2</td></tr></tbody></table>", 4),
        ("<p>a</p> <p>b</p> <details>c</details>", "<p>b</p> <details>c</details>", 2),
        ("<details>c</details> <p>b</p>", "<p>a</p> <details>c</details> <p>b</p>", 2),
        ("<b>1</b><i>2</i><b>3</b><u>4</u>", "<i>2</i><u>4</u><b>3</b>", 2),
        ("", '<p title="&lt;b&gt;">&lt;b&gt;</p>', 0),
    ],
)
def test_a_part_becomes_the_new_html_with_few_changes(
    page_of_its_own: Page, before: str, after: str, num_kept: int
) -> None:
    html, kept, _ = page_of_its_own.evaluate(MORPH, [before, after])
    assert (html, kept) == (after, num_kept)


def test_opened_details_typed_text_and_what_scripts_keep_stay(page_of_its_own: Page) -> None:
    before = '<details open="">a</details><label data-key="l">x <input></label><p data-keep>mine</p>'
    after = '<b data-key="b">new</b><details>b</details><label data-key="l">y <input></label><p data-keep>theirs</p>'
    html, _, field = page_of_its_own.evaluate(MORPH, [before, after])
    assert html == after.replace("<details>", '<details open="">').replace("theirs", "mine").replace(
        "data-keep", 'data-keep=""'
    )
    assert field == [True, "typed"]


@pytest.fixture(scope="module")
def page_of_its_own(browser: Browser, site: Site) -> Iterator[Page]:
    with Window.open(browser, site) as window:
        window.page.goto("/login")
        yield window.page
