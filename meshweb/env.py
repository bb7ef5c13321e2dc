"""Typed readers of environment variables. Only settings read the environment, and only through this."""

from __future__ import annotations

import os

from django.core.exceptions import ImproperlyConfigured

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def integer(name: str, default: int, *, least: int = 0) -> int:
    raw = text(name, str(default))
    if not raw.isascii() or not raw.isdigit() or int(raw) < least:
        raise ImproperlyConfigured(f"{name} must be a whole number, {least} or more; it is {raw!r}")
    return int(raw)


def boolean(name: str, default: bool) -> bool:
    raw = text(name, "on" if default else "off").lower()
    if raw not in _BOOLEANS:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(_BOOLEANS)}; it is {raw!r}")
    return _BOOLEANS[raw]


def words(name: str) -> list[str]:
    """A list separated by commas."""
    return [word.strip() for word in text(name).split(",") if word.strip()]
