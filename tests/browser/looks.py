"""How a page is looked at: in light, in dark and on a phone, each kept as a picture, and with axe-core's eyes."""

from __future__ import annotations

from playwright.sync_api import FloatRect, Page, ViewportSize

from tests.lab import axe
from tests.lab.processes import ROOT

PICTURES = ROOT / "test-output" / "screenshots"
PHONE = ViewportSize(width=360, height=740)
DESK = ViewportSize(width=1280, height=800)
MOST_PX = 2400  # of a picture's height


def begin(page: Page) -> None:
    """As a page is opened."""
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="light")


def look(page: Page, name: str, *, is_long: bool = False) -> None:
    """At a page that is open. Raises AssertionError where it shuts somebody out, or is wider than a phone.

    `is_long`: its colours are those of shorter pages, which are looked at in dark, too.
    """
    found = axe.findings(page)
    keep(page, f"{name}-light")
    page.emulate_media(color_scheme="dark")
    # Colours that pass into each other; asked once, since a page's policy lets no text be run again and again.
    page.evaluate("() => Promise.allSettled(document.getAnimations().map((one) => one.finished))")
    found += [] if is_long else axe.findings(page, only="color-contrast")
    keep(page, f"{name}-dark")
    page.set_viewport_size(PHONE)
    keep(page, f"{name}-phone")
    assert not found, "\n".join(map(str, found))
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"], f"on a phone the page is {width} wide: {sticking_out(page)}"


def keep(page: Page, name: str) -> None:
    width, height = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    shown = FloatRect(x=0, y=0, width=width, height=min(height, MOST_PX))
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True, clip=shown, animations="disabled")


def sticking_out(page: Page) -> list[str]:
    """What is wider than the window and has nothing to scroll in."""
    told: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("main *, header *")]
            .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
            .map((one) => one.outerHTML.slice(0, 100)).slice(0, 5)"""
    )
    return told
