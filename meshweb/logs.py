"""How log lines look, for the site and for a node: for people, or one JSON object a line for what collects them.

Nobody logs a secret on purpose. Whatever looks like one is cut out here all the same: an exception's text, a library's
debug line, a field of a careless call. Nor does anybody write lines of their own into it: what a person or a program
sent stands in one line, without what a terminal obeys.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

LEVELS = ("info", "debug", "warning", "error", "critical")  # the first one is the default
FORMATS = ("line", "json")
LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_FIELD_CHARS = 500

_CREDENTIAL = re.compile(r"\b((?:join|node|key)_[0-9a-f]{4,60})\.[A-Za-z0-9_-]{16,120}")  # <key_id>.<secret>
_BEARER = re.compile(r"(?i)\b(bearer\s+)(?!must\b|<)[A-Za-z0-9._~+/=-]{8,}")
_SESSION = re.compile(r"(sessions/(?:[a-z]+-)?[0-9a-f]{8})[0-9a-f]{24}\b")  # in the path of a request
_PASSWORD_IN_URL = re.compile(r"(://[^/\s:@]*:)[^@/\s]+@")
_SECRET_NAMES = re.compile(r"(?i).*(token|ticket|secret|credential|authorization|password|cookie|api_?key|node_?key)")
_BODY_NAMES = frozenset({"body", "data", "content", "messages", "prompt", "text"})
# What ends a line, moves a terminal's cursor, colours it, or turns the direction of writing.
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]")
_EXPECTED_STATUSES = frozenset({503, 504})  # no node now, no time left: whoever gives such an answer says why
_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "asctime", "taskName"}


def configuration(level: str, form: str, *, quiet: Sequence[str] = (), naming: str = "") -> dict[str, Any]:
    """Django's LOGGING. `quiet`: loggers of which only warnings matter. `naming`: a filter that adds to each record."""
    own = {"own": {"()": naming}} if naming else {}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": LineFormatter, "fmt": LINE}, "json": {"()": JsonFormatter}},
        "filters": {"unexpected": {"()": Unexpected}, "traced": {"()": Traced}, **own},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "formatter": form, "filters": ["traced", *own]},
        },
        "root": {"handlers": ["console"], "level": level.upper()},
        "loggers": {
            "django": {"handlers": [], "level": "INFO"},  # its own handlers would say everything twice
            "django.request": {"filters": ["unexpected"]},
            **{name: {"level": "WARNING"} for name in quiet},
        },
    }


class Unexpected(logging.Filter):
    """Drops Django's bare error lines of answers that are expected; a 500 stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        return getattr(record, "status_code", None) not in _EXPECTED_STATUSES


class Traced(logging.Filter):
    """A line without a traceback for what a visitor did wrong: Django adds one for who may not see a page, and for a
    request that is too large, and whoever wants to could fill a disk with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("django.") and 400 <= getattr(record, "status_code", 0) < 500:
            record.exc_info = record.exc_text = None
        return True


class LineFormatter(logging.Formatter):
    """The id of the request that a line belongs to stands behind it. A traceback is set in, so that no line of the
    text of an exception looks like one of the log's."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", "")
        return escaped(super().formatMessage(record)) + (f" [{request_id}]" if request_id else "")

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"  {escaped(line)}" for line in super().formatException(ei).split("\n"))

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, what the call gave in `extra`, and `exception` with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in entry:
                entry[name] = _field(name, value)
        if record.exc_info:
            entry["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(entry)  # in ASCII: half a surrogate pair in somebody's name can't be written otherwise


def escaped(text: str) -> str:
    """In one line, and nothing in it that a terminal obeys."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def redacted(text: str) -> str:
    """Without the secret parts of credentials, bearers, session ids in paths, and URLs."""
    text = _CREDENTIAL.sub(r"\1.…", text)
    text = _BEARER.sub(r"\1…", text)
    text = _SESSION.sub(r"\1…", text)
    return _PASSWORD_IN_URL.sub(r"\1…@", text)


def _field(name: str, value: object) -> Any:
    if _SECRET_NAMES.fullmatch(name) or name in _BODY_NAMES:
        return "…"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    return redacted(str(value))[:MAX_FIELD_CHARS]
