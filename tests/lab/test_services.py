"""The services that tests start: there, on their own port, and gone afterwards."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis

from tests.lab import services
from tests.lab.postgres import Postgres
from tests.lab.redis import Redis


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_every_system_program_is_there_or_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert services.missing() == {}
    monkeypatch.setitem(services.PACKAGES, "no-such-program", "no-such-package")
    assert services.missing() == {"no-such-program": "no-such-package"}


def test_redis_answers_survives_a_restart_on_its_port_and_ends(tmp_path: Path) -> None:
    with Redis(tmp_path / "redis", "client-output-buffer-limit pubsub 32mb 8mb 60") as server:
        client = redis.Redis.from_url(server.url)
        assert client.ping()
        limits = client.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
        assert str(limits).endswith("pubsub 33554432 8388608 60")
        server.kill()
        server.start()
        assert client.ping()
    assert not is_listening(server.port)


def test_postgres_listens_survives_a_restart_and_ends_with_its_folder() -> None:
    with Postgres() as server:
        assert is_listening(server.port)
        server.stop()
        assert not is_listening(server.port)
        server.start()
        assert is_listening(server.port)
    assert not is_listening(server.port)
    assert not server.folder.exists()
