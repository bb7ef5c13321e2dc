"""Who is connected is asked about again every few seconds: a key may have been revoked by another process.

settings.RELAY_REVIEW names a synchronous callable: of {peer_id: scope} it gives {peer_id: why not} for those that may
stay connected no longer. One question for all, whatever their number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from django.conf import settings
from django.db import close_old_connections
from django.utils.module_loading import import_string

from relay import auth, wire
from relay.hub import Hub, hub

logger = logging.getLogger(__name__)

PERIOD_S = 10.0

Review = Callable[[Mapping[str, str]], Mapping[str, str]]


class Reviewer:
    def __init__(self, hub: Hub, ask: Review, forget: Callable[[str], None]) -> None:
        self._hub, self._ask, self._forget = hub, ask, forget
        self._running: asyncio.Task[None] | None = None
        self._is_failing = False

    def start(self, late_s: float = 0.0) -> None:
        """Unless the last one still waits for its answer."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self.review())

    async def review(self) -> None:
        links = self._hub.switchboard.links
        connected = {link.peer_id: link.scope for link in links if link.peer_id != wire.TRACKER}
        if not connected:
            return
        try:
            refused = await asyncio.get_running_loop().run_in_executor(auth.threads, self._ask, connected)
        except Exception:
            if not self._is_failing:  # peers stay: a database that is away is no reason to lose the mesh
                logger.exception("connected peers can't be checked; they stay, and are checked again")
            self._is_failing = True
            return
        self._is_failing = False
        for peer_id, reason in refused.items():
            logger.warning("peer %s is disconnected: %s", peer_id, reason, extra={"peer_id": peer_id})
            self._forget(peer_id)
            self._hub.expel(peer_id, reason)


def _ask(connected: Mapping[str, str]) -> Mapping[str, str]:
    close_old_connections()  # this thread outlives any connection's welcome
    try:
        refused: Mapping[str, str] = import_string(settings.RELAY_REVIEW)(connected)
        return refused
    finally:
        close_old_connections()


reviewer = Reviewer(hub, _ask, auth.authenticator.forget)
