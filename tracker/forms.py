"""What people type: durations on the command line, names and passwords at the admin's door."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta
from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from tracker import gate
from tracker.groups import is_let_in
from tracker.words import one_line

_DURATION = re.compile(r"([1-9][0-9]*)([mhd])", re.ASCII)
MOST_DIGITS = 6
MAX_LABEL_CHARS = 100  # as its column
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta | None:
    """ "30m", "24h", "7d"; None for "never". Raises argparse.ArgumentTypeError."""
    if text == "never":
        return None
    found = _DURATION.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} must be like 30m, 24h, 7d, or never")
    if len(found[1]) > MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is too long: {'9' * MOST_DIGITS}d at most, or never")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def positive(text: str) -> int:
    """A number from 1 on, such as a database keeps. Raises argparse.ArgumentTypeError."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0
    if not 1 <= number < 2**31:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} must be a whole number from 1 to {2**31 - 1}")
    return number


def label(text: str) -> str:
    """For whom a credential is. Raises argparse.ArgumentTypeError."""
    if not one_line(text) or len(text) > MAX_LABEL_CHARS or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} must have 1 to {MAX_LABEL_CHARS} characters")
    return one_line(text)


class Slowed(AuthenticationForm):
    """Like all credentials where many bad ones came from the same address."""

    request: HttpRequest

    def clean(self) -> dict[str, Any]:
        if gate.is_closed(self.request):
            raise ValidationError("Too many failed attempts came from your address; try again in a few seconds.")
        try:
            return super().clean()
        except ValidationError:
            gate.failed(self.request, "a password")
            raise


class SiteLoginForm(Slowed):
    """Of the dashboard: for everybody who has an account."""


class LoginForm(Slowed, AdminAuthenticationForm):
    """Of the admin: for those whom it lets in."""

    def confirm_login_allowed(self, user: Any) -> None:
        AuthenticationForm.confirm_login_allowed(self, user)
        if not is_let_in(user):
            raise self.get_invalid_login_error()
