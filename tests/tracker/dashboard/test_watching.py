from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest
from django.http import Http404

from tracker.dashboard import watching as module
from tracker.dashboard.pages import Ask, Page
from tracker.dashboard.visitors import STRANGER, Visitor
from tracker.dashboard.watchers import NOTHING_NEW, Refused, Watcher
from tracker.dashboard.watching import MAX_OF_ONE, MAX_WATCHERS, Watching

DEADLINE_S = 20
ASK = Ask(datetime(2026, 1, 1), frozenset({"tracker.see_dashboard"}))


class Story(Page):
    """A page whose context is its HTML."""

    def live(self, ask: Ask) -> str:
        return str(self.context(ask)["html"])


class Renderings:
    """A page that says something else each time, or what it is told."""

    def __init__(self, **fields: Any) -> None:
        self.num, self.html, self.error = 0, "", None
        self.page = Story("story", "Story", self._context, **({"every_s": 0.01} | fields))

    error: Exception | None

    def _context(self, ask: Ask) -> dict[str, Any]:
        self.num += 1
        if self.error:
            raise self.error
        return {"html": self.html or f"<p>{self.num}"}


@pytest.fixture
def renderings() -> Renderings:
    return Renderings()


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    monkeypatch.setattr(module, "REST", 0)
    monkeypatch.setattr(module, "REST_OF_ALL", 0)

    async def run(function: Any, *args: Any) -> Any:
        return function(*args)

    return Watching(run)


def somebody(key: str = "", address: str = "192.0.2.1") -> Watcher:
    return Watcher(Visitor(key, ASK.may) if key else STRANGER, address)


async def news(watcher: Watcher) -> dict[str, str]:
    async with asyncio.timeout(DEADLINE_S):
        return dict(json.loads(await watcher.news()))


async def test_all_who_see_the_same_share_one_rendering(watching: Watching, renderings: Renderings) -> None:
    renderings.html = "<p>same"
    one, two, other = somebody(), somebody(), somebody()
    for watcher in (one, two):
        watching.begin(watcher, renderings.page, ASK)
    assert await news(one) == await news(two) == {"html": "<p>same"}
    num_before = renderings.num
    watching.begin(other, renderings.page, ASK)
    assert await news(other) == {"html": "<p>same"}  # from the last rendering
    assert renderings.num == num_before


async def test_news_comes_only_when_something_has_changed(watching: Watching, renderings: Renderings) -> None:
    renderings.html = "<p>first"
    watcher = somebody()
    watching.begin(watcher, renderings.page, ASK)
    assert await news(watcher) == {"html": "<p>first"}
    waiting = asyncio.create_task(news(watcher))
    while renderings.num < 5:
        await asyncio.sleep(0.01)
    assert not waiting.done()
    renderings.html = "<p>second"
    assert await waiting == {"html": "<p>second"}


async def test_who_is_slow_gets_the_newest_alone(watching: Watching, renderings: Renderings) -> None:
    watcher = somebody()
    watching.begin(watcher, renderings.page, ASK)
    while renderings.num < 5:
        await asyncio.sleep(0.01)
    told = await news(watcher)
    assert told == {"html": f"<p>{renderings.num}"}


async def test_who_waits_hears_that_nothing_has_changed(
    watching: Watching, renderings: Renderings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAYS_S", 0.02)
    renderings.html = "<p>same"
    watcher = somebody()
    watching.begin(watcher, renderings.page, ASK)
    assert [await news(watcher) for _ in range(3)] == [{"html": "<p>same"}, {}, {}]


async def test_who_watches_a_page_that_rests_for_long_hears_that_the_site_lives(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAYS_S", 0.02)
    renderings, watcher = Renderings(every_s=3600), somebody()
    watching.begin(watcher, renderings.page, ASK)
    assert [await news(watcher) for _ in range(3)] == [{"html": "<p>1"}, {}, {}]
    assert renderings.num == 1


def test_that_nothing_has_changed_takes_the_place_of_no_news() -> None:
    watcher = somebody()
    watcher.tell('{"html": ""}')
    watcher.tell(NOTHING_NEW)
    assert asyncio.run(news(watcher)) == {"html": ""}


async def test_a_page_that_nobody_watches_is_no_longer_made(watching: Watching, renderings: Renderings) -> None:
    watcher = somebody()
    watching.begin(watcher, renderings.page, ASK)
    await news(watcher)
    watching.end(watcher)
    async with asyncio.timeout(DEADLINE_S):
        while watching._views:
            await asyncio.sleep(0.01)
    num = renderings.num
    await asyncio.sleep(0.05)
    assert renderings.num == num


@pytest.mark.parametrize("which", ["REST", "REST_OF_ALL"])
async def test_a_page_that_takes_long_is_made_less_often(
    watching: Watching, renderings: Renderings, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(module, which, 10_000)
    watcher = somebody()
    watching.begin(watcher, renderings.page, ASK)
    assert await news(watcher) == {"html": "<p>1"}
    await asyncio.sleep(0.1)
    assert renderings.num == 1


async def test_what_is_gone_ends_its_watchers(watching: Watching, renderings: Renderings) -> None:
    renderings.error = Http404()
    watcher = somebody()
    watching.begin(watcher, renderings.page, ASK)
    with pytest.raises(Refused, match="is gone") as refused:
        await news(watcher)
    assert refused.value.code == 4404


async def test_a_page_that_fails_says_so_is_logged_once_and_comes_back(
    watching: Watching, renderings: Renderings, caplog: pytest.LogCaptureFixture
) -> None:
    renderings.html = "<p>as before"
    watcher = somebody()
    watching.begin(watcher, renderings.page, ASK)
    assert await news(watcher) == {"html": "<p>as before"}
    renderings.error = RuntimeError("the database is away")
    assert "can't be made now" in (await news(watcher))["stale"]
    num_before = renderings.num
    while renderings.num < num_before + 3:
        await asyncio.sleep(0.01)
    renderings.error = None
    while "stale" in (told := await news(watcher)):
        pass
    assert told == {"html": "<p>as before"}
    assert caplog.text.count("page story can't be made") == 1


async def test_a_process_has_room_for_so_many(
    watching: Watching, renderings: Renderings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WATCHERS", 3)
    for number in range(3):
        watching.begin(somebody(address=f"192.0.2.{number}"), renderings.page, ASK)
    with pytest.raises(Refused, match="too many pages are open") as refused:
        watching.begin(somebody(address="192.0.2.9"), renderings.page, ASK)
    assert refused.value.code == 4503
    assert MAX_WATCHERS > MAX_OF_ONE


@pytest.mark.parametrize("key", ["", "session"])
async def test_one_visitor_has_room_for_so_many(watching: Watching, renderings: Renderings, key: str) -> None:
    for number in range(MAX_OF_ONE):
        watching.begin(somebody(key, f"192.0.2.{number if key else 1}"), renderings.page, ASK)
    with pytest.raises(Refused, match=f"{MAX_OF_ONE} pages open"):
        watching.begin(somebody(key, "192.0.2.1"), renderings.page, ASK)
    watching.begin(somebody("another", "192.0.2.100"), renderings.page, ASK)
