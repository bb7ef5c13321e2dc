"""R6. Peers that have nothing to do, over a real Redis with the settings as shipped: they stay, and can be asked.

They are there since the two processes began; this module comes late, so that little of the time is waited for.
"""

from __future__ import annotations

import time

import pytest

from tests.relay_cases.conftest import Idle

IDLE_S = 15.0


@pytest.mark.parametrize("version", [1, 2])
def test_a_peer_idle_for_15_seconds_is_still_registered_and_answers(idle: dict[int, Idle], version: int) -> None:
    """R6."""
    peer = idle[version].peer
    time.sleep(max(0.0, idle[version].since + IDLE_S - time.monotonic()))
    assert not peer.ended.is_set()
    figures = idle[version].deployment.callers_at.figures()
    assert figures["where"][peer.peer_id] == idle[version].deployment.peers_at.ws_url
    assert figures["peers"][peer.peer_id] == idle[version].registered, "it has registered again"
    with idle[version].caller() as caller:
        assert caller.asked("1", b"x").body == b"x"
    assert not peer.requests[1:]
