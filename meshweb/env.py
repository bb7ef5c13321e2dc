"""Typed readers of environment variables. Only settings read the environment, and only through this."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def integer(name: str, default: int, *, least: int = 0) -> int:
    raw = text(name, str(default))
    if not raw.isascii() or not raw.isdigit() or int(raw) < least:
        raise ImproperlyConfigured(f"{name} must be a whole number, {least} or more; it is {raw!r}")
    return int(raw)


def number(name: str, default: float, *, least: float) -> float:
    raw = text(name, str(default))
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise ImproperlyConfigured(f"{name} must be a number, {least} or more; it is {raw!r}")
    return value


def boolean(name: str, default: bool) -> bool:
    raw = text(name, "on" if default else "off").lower()
    if raw not in _BOOLEANS:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(_BOOLEANS)}; it is {raw!r}")
    return _BOOLEANS[raw]


def words(name: str) -> list[str]:
    """A list separated by commas."""
    return [word.strip() for word in text(name).split(",") if word.strip()]


def choice(name: str, choices: Sequence[str]) -> str:
    """One of `choices`; the first is the default."""
    value = text(name, choices[0]).lower()
    if value not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}; it is {value!r}")
    return value


def networks(name: str) -> list[IPv4Network | IPv6Network]:
    """Addresses and networks separated by commas: 10.0.0.1, 10.1.0.0/16."""
    try:
        return [ip_network(word, strict=False) for word in words(name)]
    except ValueError as error:
        wanted = "addresses or networks, separated by commas, like 10.0.0.1, 10.1.0.0/16"
        raise ImproperlyConfigured(f"{name} must be {wanted}; {error}") from None


def url(name: str, default: str, schemes: Sequence[str], example: str) -> str:
    """Without a slash at its end. What is wrong isn't repeated: a password may be in it."""
    return _checked(name, text(name, default), schemes, example)


def urls(name: str, schemes: Sequence[str], example: str) -> list[str]:
    return [_checked(name, word, schemes, example) for word in words(name)]


def _checked(name: str, value: str, schemes: Sequence[str], example: str) -> str:
    try:
        parts = urlsplit(value)
        is_right = not value or (parts.scheme in schemes and bool(parts.hostname or parts.scheme == "unix"))
        parts.port  # noqa: B018  (raises where it is no number)
    except ValueError:
        is_right = False
    if not is_right:
        raise ImproperlyConfigured(f"{name} must be like {example}")
    return value.rstrip("/")
