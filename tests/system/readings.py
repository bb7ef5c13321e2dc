"""A chat that is read while other things happen, for as long as they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tests.lab.site import Site, events

NUM_TOKENS = 3500  # more than are read: the chat still runs when all has happened
NEVER_ENDS = {"2": -100}  # its end token
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "temperature": 1.0,
    "seed": 11,
    "logit_bias": NEVER_ENDS,
    "stream": True,
    "meshnet": {"trace": True},
}


@dataclass
class Reading:
    """A chat's stream so far."""

    model: str
    completion_id: str = ""
    ids: list[int] = field(default_factory=list)
    enough: int = NUM_TOKENS
    num_seen: int = 0

    def has_grown_or(self, done: Future[None]) -> bool:
        return len(self.ids) > self.num_seen + 5 or done.done()

    def read(self, site: Site) -> None:
        """Until there is enough of it; then the client leaves."""
        asked = ASKED | {"model": self.model, "max_tokens": self.enough}
        with site.post("/v1/chat/completions", asked, stream=True) as response:
            assert response.status_code == 200, response.text
            for event in events(response):
                assert "error" not in event, event
                self.completion_id = event["id"]
                self.ids += event.get("meshnet", {}).get("ids", [])
                if len(self.ids) >= self.enough:
                    return


def wait_until(holds: Callable[[], Any], site: Site, deadline_s: float = 60) -> None:
    until = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < until, site.log()[-3000:]
        time.sleep(0.05)
