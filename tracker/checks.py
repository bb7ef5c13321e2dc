"""System checks: settings that would work and shouldn't, or can't work, said before anybody is surprised."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from tracker.tickets import BadKey, SigningKey


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
    if _is_loopback(url.hostname or ""):
        return []
    problems: list[CheckMessage] = []
    if url.scheme != "https":
        hint = "Put a TLS terminator in front and set PUBLIC_URL to its https address."
        problems.append(Warning("PUBLIC_URL is http: keys and prompts travel readable.", hint=hint, id="tracker.W001"))
    if not settings.API_KEYS_REQUIRED:
        hint = "Set API_KEYS_REQUIRED=on and give each user a key: manage.py createapikey LABEL."
        problems.append(Warning("Anybody who reaches the site can use it.", hint=hint, id="tracker.W002"))
    return problems


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
