"""The live socket of every page: it shows what the page shows to whom the page shows it, and refuses the others."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from tests.tracker.crowd import crowd
from tests.tracker.dashboard.markup import SPICE, intruders
from tests.tracker.dashboard.sitemap import PAGES, Place
from tests.tracker.dashboard.test_every_page import may
from tests.tracker.people import ROLES, client_of
from tests.tracker.test_consumers import Socket

pytestmark = pytest.mark.django_db(transaction=True)
REFUSED = {"anonymous": 4401}  # the others that may not: 4403
NOT_LIVE = 4400


def made() -> tuple[dict[str, Any], dict[str, str]]:
    crowd(20, 100, num_samples=1, spice=SPICE)
    return {role: client_of(role) for role in ROLES}, {str(place): place.path() for place in PAGES}


def _expected(role: str, place: Place) -> int | str:
    if not may(role, place):
        return REFUSED.get(role, 4403)
    return "shown" if place.view.page.is_live else NOT_LIVE


async def test_a_page_is_watched_by_those_who_may_see_it_alone() -> None:
    clients, paths = await sync_to_async(made)()
    told: dict[tuple[str, str], int | str] = {}
    for place in PAGES:
        for role, client in clients.items():
            async with Socket(None if role == "anonymous" else client) as socket:
                await socket.watch(paths[str(place)])
                if may(role, place) and place.view.page.is_live:
                    html = (await socket.hear())["html"]
                    assert intruders(html) == set()
                    told[str(place), role] = "shown" if html.strip() else "nothing"
                else:
                    told[str(place), role] = (await socket.refusal())[0]
    assert told == {(str(place), role): _expected(role, place) for place in PAGES for role in ROLES}
