"""A site of two processes: clients at one, nodes' sockets at the other, PostgreSQL and Redis between them."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.lab.postgres import Postgres
from tests.lab.processes import Process, free_port, manage_py
from tests.lab.redis import Redis
from tests.lab.site import Site


class SplitSite(Site):
    """Each process can be restarted. `relay_url`: how nodes get to theirs, where that isn't straight."""

    def __init__(
        self,
        folder: Path,
        database: Postgres,
        redis: Redis,
        *,
        public_url: str | None = None,
        relay_url: str | None = None,
        **settings: str,
    ) -> None:
        self.relay_port, self.database, self.redis = free_port(), database, redis
        self.relay_url = relay_url or f"ws://127.0.0.1:{self.relay_port}"
        own = {"DATABASE_URL": database.url, "REDIS_URL": redis.url, "RELAY_URLS": self.relay_url}
        super().__init__(folder, public_url=public_url, **own, **settings)
        self.env["RELAY_URL"] = f"ws://127.0.0.1:{self.port}"
        self.relay: Process | None = None

    def start(self) -> None:
        self.start_relay()
        super().start()

    def start_relay(self) -> None:
        arguments = ["serve", "--port", str(self.relay_port)]
        self.relay = Process([*manage_py(self.python), *arguments], self.env | {"RELAY_URL": self.relay_url})
        self.relay.wait_for("Listening on")

    def kill_relay(self) -> None:
        assert self.relay
        self.relay.kill()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if self.relay and self.relay.is_running:
            self.relay.stop()

    def peer_id(self, name: str) -> str:
        with psycopg.connect(self.database.url) as connection:
            [[peer_id]] = connection.execute("SELECT peer_id FROM tracker_node WHERE name = %s", [name]).fetchall()
        return str(peer_id)
