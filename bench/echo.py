"""A bare WebSocket echo, and the settings under which `manage.py serve` runs it: the relay's server, bare."""

from __future__ import annotations

from typing import Any

SECRET_KEY = "only for benchmarks"
INSTALLED_APPS = ["relay"]  # for its command `serve`
ASGI_APPLICATION = "bench.echo.application"
DATABASES: dict[str, dict[str, object]] = {}
USE_TZ = True
RELAY_PING_S = 10.0  # as the site's
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.receive":
            await send({"type": "websocket.send", "bytes": message["bytes"]})
