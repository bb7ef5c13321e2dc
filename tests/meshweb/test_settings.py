"""Settings are read in a process of their own, as at start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.processes import ROOT, environment


def read(expression: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = f"from django.conf import settings; print({expression})"
    variables = environment(DJANGO_SETTINGS_MODULE="meshweb.settings", **env)
    return subprocess.run([sys.executable, "-c", code], env=variables, cwd=ROOT, capture_output=True, text=True)


def test_hosts_and_relay_address_follow_from_the_public_url(tmp_path: Path) -> None:
    run = read(
        "settings.ALLOWED_HOSTS[0], settings.CSRF_TRUSTED_ORIGINS, settings.RELAY_URL, settings.SESSION_COOKIE_SECURE",
        DATA_DIR=str(tmp_path),
        PUBLIC_URL="https://mesh.example.org/",
    )
    assert run.stdout.strip() == "mesh.example.org ['https://mesh.example.org'] wss://mesh.example.org True"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"PUBLIC_URL": "http://127.0.0.1:8000"}, "False False 0"),
        ({"PUBLIC_URL": "https://mesh.example.org"}, "True False 3600"),
        ({"PUBLIC_URL": "https://mesh.example.org", "TRUSTED_PROXIES": "127.0.0.1", "HSTS_S": "60"}, "True True 60"),
    ],
)
def test_pages_are_sent_on_to_https_where_a_proxy_says_how_its_client_came(
    tmp_path: Path, env: dict[str, str], told: str
) -> None:
    names = ("CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS")
    run = read(", ".join(f"settings.{name}" for name in names), DATA_DIR=str(tmp_path), **env)
    assert run.stdout.strip() == told


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("PUBLIC_URL", "mesh.example.org", "https://mesh.example.org"),
        ("RELAY_URL", "https://mesh.example.org", "wss://mesh.example.org"),
        ("RELAY_URLS", "wss://a.example.org,b.example.org", "wss://mesh.example.org"),
        ("REDIS_URL", "127.0.0.1:6379", "redis://127.0.0.1:6379/0"),
        ("DATABASE_URL", "mysql://127.0.0.1/x", "postgresql://user:password@host:5432/name"),
        ("DEBUG", "perhaps", "true"),
        ("LOG_LEVEL", "loud", "warning"),
    ],
)
def test_a_wrong_value_stops_the_start_and_says_what_is_right(
    tmp_path: Path, name: str, value: str, right: str
) -> None:
    run = read("settings.DEBUG", DATA_DIR=str(tmp_path), **{name: value})
    assert run.returncode != 0
    assert name in run.stderr
    assert right in run.stderr.splitlines()[-1]


def test_the_data_folder_and_its_secret_are_the_owners_alone_and_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = read("settings.SECRET_KEY", DATA_DIR=str(data)).stdout
    assert len(first.strip()) > 50
    assert read("settings.SECRET_KEY", DATA_DIR=str(data)).stdout == first
    assert os.stat(data).st_mode & 0o777 == 0o700
    assert os.stat(data / "secret_key").st_mode & 0o777 == 0o600


def test_debug_is_off_and_api_keys_are_on_unless_said_otherwise(tmp_path: Path) -> None:
    run = read("settings.DEBUG, settings.API_KEYS_REQUIRED, settings.ALLOW_PRIVATE_ENDPOINTS", DATA_DIR=str(tmp_path))
    assert run.stdout.strip() == "False True False"


@pytest.mark.parametrize(
    ("env", "urls"),
    [
        ({}, "ws://127.0.0.1:8000 ['ws://127.0.0.1:8000']"),
        ({"RELAY_URL": "ws://r:1"}, "ws://r:1 ['ws://r:1']"),
        ({"RELAY_URLS": "ws://r:1,ws://r:2"}, "ws://r:1 ['ws://r:1', 'ws://r:2']"),
        ({"RELAY_URLS": "ws://r:1,ws://r:2", "RELAY_URL": "ws://r:2"}, "ws://r:2 ['ws://r:1', 'ws://r:2']"),
    ],
)
def test_a_process_has_one_relay_url_of_all(tmp_path: Path, env: dict[str, str], urls: str) -> None:
    run = read("settings.RELAY_URL, settings.RELAY_URLS", DATA_DIR=str(tmp_path), **env)
    assert run.stdout.strip() == urls
