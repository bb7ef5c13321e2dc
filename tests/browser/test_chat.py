"""The chat page: two nodes that answer, and a head that says what a test says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.lab.fakehead import FIRST, FakeHead
from tests.lab.people import Window
from tests.lab.site import Site


@pytest.fixture(scope="module")
def head(site: Site) -> Iterator[FakeHead]:
    with FakeHead(site, "fake", listens=False) as head:
        site.wait_for_model("fake")
        yield head


@pytest.fixture
def page(browser: Browser, site: Site, cookies: dict[str, str]) -> Iterator[Page]:
    with Window.open(browser, site, cookies["operator"]) as window:
        yield window.page


def ask(page: Page, text: str, **settings: float) -> None:
    """`settings` by the ids of their fields."""
    if settings:
        page.get_by_text("Settings").click()
    for name, value in settings.items():
        page.locator(f"#{name}").fill(str(value))
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    return page.locator(".turn.model .text")


def sessions(site: Site) -> list[tuple[str, int]]:
    """State and tokens of the prompt of each, in order."""
    return [tuple(row) for row in site.rows("SELECT state, prompt_tokens FROM tracker_chatsession ORDER BY id")]


def wait_for_state(site: Site, state: str, deadline_s: float = 30) -> None:
    """Of the newest session."""
    until = time.monotonic() + deadline_s
    while (now := sessions(site)[-1][0]) != state:
        assert time.monotonic() < until, f"it is {now}; the site says: {site.log()[-3000:]}"
        time.sleep(0.05)


@pytest.mark.usefixtures("mesh")
def test_answers_come_with_their_figures_and_their_route_and_the_next_turn_knows_of_them(
    page: Page, site: Site
) -> None:
    page.goto("/chat?model=tiny")
    ask(page, "Hello", temperature=0, most=12)
    expect(page.locator("#doing")).to_contain_text("Done: ")
    first = answers(page).inner_text()
    assert first
    expect(page.locator("#first")).to_contain_text("ms")
    expect(page.locator("#speed")).to_contain_text("tokens a second")
    expect(page.locator("#route [data-running=no]")).to_be_visible()
    expect(page.locator("#route li").first).to_contain_text("tiny-0 layers 0–2, local")
    expect(page.locator("#route li").last).to_contain_text("tiny-1 layers 3–5, tunnel")

    ask(page, "And now?")
    expect(answers(page)).to_have_count(2)
    expect(page.locator("#doing")).to_contain_text("Done: ")
    (state, one), (_, both) = sessions(site)[-2:]
    assert state == "done"
    assert both > one + 5, "the second prompt holds the first turn"
    page.locator("#route").get_by_role("link").click()
    expect(page).to_have_url(re.compile("/sessions/chatcmpl-"))


@pytest.mark.usefixtures("head")
def test_escape_stops_an_answer_and_its_head_hears_of_it(page: Page, site: Site) -> None:
    page.goto("/chat?model=fake")
    ask(page, "Tell me everything")
    expect(answers(page)).to_have_text(FIRST)
    page.keyboard.press("Escape")
    expect(page.locator("#doing")).to_contain_text("Stopped: 1 token ")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    wait_for_state(site, "cancelled")


def test_each_word_shows_as_it_comes_and_none_of_it_is_markup(page: Page, head: FakeHead) -> None:
    page.goto("/chat?model=fake")
    ask(page, "<b>me</b>")
    expect(answers(page)).to_have_text(FIRST)
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "true")
    head.say(" <img src=x onerror=alert(1)> <b>bold</b>\n[link](javascript:alert(1))")
    expect(answers(page)).to_contain_text("<img src=x onerror=alert(1)> <b>bold</b>")
    assert page.locator(".turn :is(img, b, a)").count() == 0
    expect(page.locator(".turn.you .text")).to_have_text("<b>me</b>")
    head.end()
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "false")


def test_a_failure_is_said_in_words_and_can_be_tried_again(page: Page, site: Site) -> None:
    with FakeHead(site, "mortal", listens=False):
        site.wait_for_model("mortal")
        page.goto("/chat?model=mortal")
        ask(page, "Hello")
        expect(answers(page)).to_have_text(FIRST)
    expect(page.get_by_role("alert")).to_contain_text("The chat lost layer")
    expect(page.locator("#model option:checked")).to_have_text("mortal (can't answer now)")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_contain_text("no node online")
    expect(page.locator(".turn.you")).to_have_count(1)


@pytest.mark.usefixtures("head")
def test_an_operator_ends_a_chat_from_its_page_and_its_user_is_told(page: Page) -> None:
    page.goto("/chat?model=fake")
    ask(page, "Hello")
    with page.context.expect_page() as opened:
        page.locator("#route").get_by_role("link").click(modifiers=["Control"])
    session = opened.value
    expect(session.locator("#live .state").first).to_have_text("running")
    session.get_by_role("button", name="End this session").click()
    expect(session.locator("#live .state").first).to_have_text("cancelled")
    expect(page.get_by_role("alert")).to_contain_text("An operator of this site ended this chat.")


@pytest.mark.usefixtures("head")
def test_who_was_logged_out_is_told_to_log_in_again(page: Page) -> None:
    page.goto("/chat?model=fake")
    page.context.clear_cookies(name="sessionid")
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("You are logged out")
