"""What people type: durations on the command line, new credentials in the admin."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta

_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta | None:
    """ "30m", "24h", "7d"; None for "never". Raises argparse.ArgumentTypeError."""
    if text == "never":
        return None
    found = _DURATION.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} must be like 30m, 24h, 7d, or never")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
