"""The tests' site on uvicorn, in the place of `manage.py serve`: python -m tests.relay.on_uvicorn."""

from __future__ import annotations

import os
import signal
import socket

import uvicorn

from relay import wire


class Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"Listening on http://127.0.0.1:{port}", flush=True)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.relay.settings")
    ping_s = float(os.environ.get("RELAY_PING_S", wire.PING_S))
    config = uvicorn.Config(
        "tests.relay.site:application",
        port=0,
        ws_max_size=wire.MAX_MESSAGE_BYTES,
        ws_ping_interval=wire.SERVER_PING_PERIODS * ping_s,
        ws_ping_timeout=wire.STALL_PERIODS * ping_s,
        ws_per_message_deflate=False,  # bodies don't compress, and each costs time
        lifespan="off",
        log_level="warning",
        timeout_graceful_shutdown=3,
    )
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn stops and then raises it again
    Server(config).run()


if __name__ == "__main__":
    main()
