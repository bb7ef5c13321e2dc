"""System checks: settings that would work and shouldn't, or can't work, said before anybody is surprised."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from tracker.tickets import BadKey, SigningKey

MIN_TOKEN_CHARS = 16
SQLITE = "django.db.backends.sqlite3"


@register
def check_ticket_keys(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    problems: list[CheckMessage] = []
    for position, text in enumerate(settings.TICKET_KEYS, 1):
        try:
            SigningKey.from_text(text)
        except BadKey as error:
            hint = "Make one with: python -c 'import base64, os; print(base64.b64encode(os.urandom(32)).decode())'"
            problems.append(Error(f"TICKET_KEYS, entry {position}: {error}.", hint=hint, id="tracker.E001"))
    return problems


@register
def check_public_url(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    url = urlsplit(settings.PUBLIC_URL)
    if is_loopback(url.hostname or ""):
        return []
    problems: list[CheckMessage] = []
    if url.scheme != "https":
        hint = "Put a TLS terminator in front and set PUBLIC_URL to its https address."
        problems.append(Warning("PUBLIC_URL is http: keys and prompts travel readable.", hint=hint, id="tracker.W001"))
    if not settings.API_KEYS_REQUIRED:
        hint = "Set API_KEYS_REQUIRED=on and give each user a key: manage.py createapikey LABEL."
        problems.append(Warning("Anybody who reaches the site can use it.", hint=hint, id="tracker.W002"))
    return problems


@register(deploy=True)
def check_deployment(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """What a site that others reach wants besides: asked by `check --deploy` alone."""
    problems: list[CheckMessage] = []
    if urlsplit(settings.PUBLIC_URL).scheme == "https" and not settings.TRUSTED_PROXIES:
        hint = "Set TRUSTED_PROXIES to the address that the TLS terminator asks from, like 127.0.0.1."
        message = "All clients seem to come from the proxy, over http: one who guesses keys slows everybody."
        problems.append(Warning(message, hint=hint, id="tracker.W004"))
    if 0 < len(settings.METRICS_TOKEN) < MIN_TOKEN_CHARS:
        hint = "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        message = f"METRICS_TOKEN is shorter than {MIN_TOKEN_CHARS} characters: it can be guessed."
        problems.append(Warning(message, hint=hint, id="tracker.W005"))
    if stat.S_IMODE(os.stat(settings.DATA_DIR).st_mode) & 0o077:
        hint = f"Run: chmod 700 {settings.DATA_DIR}"
        message = "Others on this machine can read DATA_DIR, which holds the site's secret key and its database."
        problems.append(Warning(message, hint=hint, id="tracker.W006"))
    return problems


@register
def check_processes(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    return problems_of_several(settings.RELAY_URLS, settings.REDIS_URL, settings.DATABASES["default"]["ENGINE"])


def problems_of_several(relay_urls: Sequence[str], redis_url: str, engine: str) -> list[CheckMessage]:
    """What several `serve` processes of one site need."""
    has_several = len(relay_urls) > 1
    problems: list[CheckMessage] = []
    if (has_several or redis_url) and engine == SQLITE:
        what = "REDIS_URL joins several processes" if redis_url else "RELAY_URLS names several processes"
        name = "REDIS_URL" if redis_url else "RELAY_URLS"
        hint = f"Set DATABASE_URL to a PostgreSQL database, like postgresql://user:password@host/name, or unset {name}."
        problems.append(Error(f"{what}, and an SQLite file serves one.", hint=hint, id="tracker.E002"))
    if has_several and not redis_url:
        hint = "Set REDIS_URL to the same Redis for all of them, like redis://127.0.0.1:6379/0."
        problems.append(
            Warning("RELAY_URLS names several processes that know nothing of each other.", hint=hint, id="tracker.W003")
        )
    return problems


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
