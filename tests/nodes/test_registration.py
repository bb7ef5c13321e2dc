from __future__ import annotations

import pytest

from nodes.registration import Registration, Standing
from tests.nodes.trackers import REGISTERED, STANDING

SESSION = "5e" * 16


def test_an_answer_brings_what_the_node_shall_do() -> None:
    answer = STANDING | {"now": 5, "duty": "draining", "closed": {SESSION: 2}, "move": [SESSION]}
    heard = Standing.read(answer)

    assert (heard.duty, heard.closed, heard.move) == ("draining", {SESSION: 2}, (SESSION,))


@pytest.mark.parametrize("silence", [{}, {"duty": None, "closed": None, "move": None}])
def test_a_site_that_asks_for_nothing_has_the_node_work(silence: dict[str, None]) -> None:
    heard = Standing.read(STANDING | {"now": 5} | silence)

    assert (heard.duty, heard.closed, heard.move) == ("works", {}, ())


def test_a_registration_has_a_name_that_heartbeats_carry() -> None:
    assert Registration.read(REGISTERED | {"now": 5}, "my.key").id == "r1"
