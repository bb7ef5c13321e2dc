"""System checks: settings that would work and shouldn't, or can't work, said before anybody is surprised."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from tracker.tickets import BadKey, SigningKey

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
