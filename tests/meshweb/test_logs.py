from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from meshweb import logs
from meshweb.logs import JsonFormatter, LineFormatter, Traced, Unexpected

SECRET = "q3Zx8vN1t0yR7wK2m5Lb9cD4fG6hJ"
SESSION = "4e5f" * 6  # all of an id but the eight characters that logs may show


def record(message: str, *arguments: Any, exc_info: Any = None, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("relay.consumers", logging.INFO, "file.py", 1, message, arguments, exc_info)
    made.__dict__.update(extra)
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    return dict(json.loads(line))


def test_a_line_for_people_has_time_level_and_logger() -> None:
    assert (
        LineFormatter(logs.LINE)
        .format(record("peer %s is here", "aa11"))
        .endswith(" INFO relay.consumers: peer aa11 is here")
    )


FORGED = "slow\r\n2026-01-01 00:00:00,000 INFO tracker.audit: admin: approve node evil\x1b[2J\x9b31m\u2028\u202e"


def test_nobody_writes_a_line_of_their_own_into_the_log() -> None:
    for made in (record("%s", FORGED), record(FORGED)):
        line = LineFormatter(logs.LINE).format(made)
        assert line.isprintable()
        assert "slow\\r\\n2026" in line
        assert "evil\\x1b[2J\\x9b31m\\u2028\\u202e" in line


def test_nor_with_the_text_of_an_exception() -> None:
    made = record("failed", exc_info=(ValueError, ValueError(FORGED), None))
    first, *others = LineFormatter(logs.LINE).format(made).split("\n")
    assert first.endswith("failed")
    assert len(others) == 2
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_a_json_line_has_the_calls_fields_beside_its_own() -> None:
    entry = as_json(record("peer %s is here", "aa11", peer_id="aa11", version=2, generation=3, rtt_s=None, where=[1]))
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "INFO",
        "logger": "relay.consumers",
        "message": "peer aa11 is here",
        "peer_id": "aa11",
        "version": 2,
        "generation": 3,
        "rtt_s": None,
        "where": "[1]",
    }


def test_an_exception_is_one_field_with_its_traceback() -> None:
    try:
        raise ValueError("no such thing\nhere \ud83d")
    except ValueError:
        entry = as_json(record("failed", exc_info=sys.exc_info()))
    assert entry["exception"].startswith("Traceback")
    assert "no such thing" in entry["exception"]


@pytest.mark.parametrize(
    "text",
    [
        f"refused node_0a1b2c3d4e5f.{SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"bearer {SECRET} was bad",
        f"can't reach postgresql://mesh:{SECRET}@db/mesh",
        f"redis://:{SECRET}@127.0.0.1:6379/0 is away",
        f"Service Unavailable: /api/sessions/0a1b2c3d{SESSION}/reroute",
        f"Not Found: /sessions/chatcmpl-0a1b2c3d{SESSION}.json",
    ],
)
def test_what_looks_like_a_secret_is_cut_out_of_every_line(text: str) -> None:
    made = record("%s", text, exc_info=(ValueError, ValueError(text), None), note=text)
    for line in (LineFormatter(logs.LINE).format(made), JsonFormatter().format(made)):
        assert SECRET not in line
        assert SESSION not in line
        assert "…" in line or "\\u2026" in line


@pytest.mark.parametrize(
    "text", ["Authorization: Bearer must carry a join token", "Authorization: Bearer <credential>"]
)
def test_advice_about_credentials_stays_readable(text: str) -> None:
    assert logs.redacted(text) == text


@pytest.mark.parametrize(
    "name", ["token", "join_token", "ticket", "api_key", "node_key", "Authorization", "body", "prompt"]
)
def test_fields_that_hold_secrets_or_bodies_are_never_written(name: str) -> None:
    assert as_json(record("x", **{name: "something private"}))[name] == "…"


def test_bytes_are_written_as_their_number_and_long_fields_are_cut() -> None:
    entry = as_json(record("x", raw=b"1234", long="y" * 10_000))
    assert entry["raw"] == "4 bytes"
    assert len(entry["long"]) == logs.MAX_FIELD_CHARS


def test_a_quiet_library_is_heard_only_when_it_warns() -> None:
    configuration = logs.configuration("info", "json", quiet=["twisted"])
    assert configuration["root"]["level"] == "INFO"
    assert configuration["handlers"]["console"]["formatter"] == "json"
    assert configuration["loggers"]["twisted"] == {"level": "WARNING"}


@pytest.mark.parametrize(("status", "is_written"), [(500, True), (501, True), (503, False), (504, False), (404, True)])
def test_of_answers_only_the_unexpected_have_a_line(status: int, is_written: bool) -> None:
    made = record("Service Unavailable: /v1/chat/completions", status_code=status)
    assert Unexpected().filter(made) is is_written


@pytest.mark.parametrize(
    ("logger", "status", "is_traced"),
    [
        ("django.request", 403, False),
        ("django.security.TooManyFieldsSent", 400, False),
        ("django.request", 500, True),
        ("relay.consumers", 403, True),
    ],
)
def test_what_a_visitor_did_wrong_has_no_traceback(logger: str, status: int, is_traced: bool) -> None:
    made = record("Forbidden", exc_info=(ValueError, ValueError("not you"), None), status_code=status)
    made.name = logger
    assert Traced().filter(made)
    assert ("not you" in LineFormatter(logs.LINE).format(made)) is is_traced
    assert "traced" in logs.configuration("info", "line")["handlers"]["console"]["filters"]


def test_the_filter_is_that_of_djangos_requests() -> None:
    configuration = logs.configuration("info", "line")
    assert configuration["filters"][configuration["loggers"]["django.request"]["filters"][0]] == {"()": Unexpected}


def test_a_line_of_a_request_names_it() -> None:
    made = record("here", request_id="req_1")
    assert LineFormatter(logs.LINE).format(made).endswith(" here [req_1]")
    assert as_json(made)["request_id"] == "req_1"
