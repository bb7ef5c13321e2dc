from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tracker.standing import standing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WELL: dict[str, Any] = {
    "status": "approved",
    "last_seen": NOW - timedelta(seconds=2),
    "lease_until": NOW + timedelta(seconds=18),
    "uses_relay": True,
    "is_present": True,
    "is_endpoint_proved": False,
    "endpoint": "",
    "endpoint_error": "",
    "has_left": False,
    "heartbeat_s": 5.0,
    "now": NOW,
}


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, "online: connected to the relay"),
        ({"status": "pending"}, "offline: waits for approval"),
        ({"status": "revoked"}, "revoked"),
        ({"lease_until": NOW, "last_seen": NOW - timedelta(seconds=32)}, "offline: no heartbeat for 32 s"),
        ({"lease_until": NOW, "last_seen": NOW + timedelta(hours=1)}, "offline: no heartbeat for 0 s"),
        ({"lease_until": None, "last_seen": None}, "offline: was never heard of"),
        ({"lease_until": NOW, "has_left": True}, "offline: said that it leaves"),
        ({"is_present": False}, "offline: its socket to the relay has just closed"),
        (
            {"is_present": False, "last_seen": NOW - timedelta(seconds=5)},
            "offline: its socket to the relay has just closed",
        ),
        (
            {"is_present": False, "last_seen": NOW - timedelta(seconds=7)},
            "offline: its connection to the relay has ended; last heartbeat 7 s ago",
        ),
        (
            {"is_present": False, "progress": (450_000_000, 1_000_000_000)},
            "offline: fetches its weights: 45 % of 1,000 MB",
        ),
        ({"progress": (1, 2)}, "online: connected to the relay"),
        ({"closed": "is paused"}, "online: connected to the relay, but it is paused"),
        ({"status": "pending", "closed": "is paused"}, "offline: waits for approval"),
        ({"is_present": False, "is_endpoint_proved": True, "endpoint": "http://x:1"}, "online: reached at http://x:1"),
        (
            {"uses_relay": False, "endpoint": "http://x:1"},
            "offline: http://x:1 hasn't proved yet that it holds the node key",
        ),
        ({"uses_relay": False, "endpoint": "http://x:1", "endpoint_error": "x is private"}, "offline: x is private"),
    ],
)
def test_a_node_is_online_or_it_is_said_why_not(differs: dict[str, Any], said: str) -> None:
    assert str(standing(**(WELL | differs))) == said
