"""What the messages of both versions have in common, checked: ids, methods, headers. Any fault is a WireError."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from relay.wire import MAX_HEADERS, MAX_META_BYTES, Code, WireError

ID = re.compile(r"[\x21-\x7e]{1,128}")
_HEADER_NAMES = re.compile(r"(?:[a-z0-9!#$%&'*+.^_`|~-]{1,64}(?:\n[a-z0-9!#$%&'*+.^_`|~-]{1,64})*)?")
_HEADER_VALUES = re.compile(r"[\x20-\x7e\t\n]*")


def parsed_object(text: str | bytes) -> dict[str, Any]:
    try:
        message = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError):
        raise WireError(Code.BAD_REQUEST, "the message is not JSON") from None
    if not isinstance(message, dict):
        raise WireError(Code.BAD_REQUEST, "the message is not a JSON object")
    return message


def checked_id(value: object, key: str) -> str:
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise WireError(Code.BAD_REQUEST, f"{key} must be 1 to 128 printable characters without spaces")
    return value


def checked_request(message: dict[str, Any], request_id: str) -> tuple[str, str, dict[str, str], int | None]:
    """(method, path, headers, deadline_ms) of a request of either version."""
    method, path = message.get("method"), message.get("path")
    if not isinstance(method, str) or not isinstance(path, str):
        raise WireError(Code.BAD_REQUEST, "method and path must be strings", request_id)
    headers = checked_headers(message, request_id, room=MAX_META_BYTES - len(method) - len(path))
    deadline_ms = message.get("deadline_ms")
    if deadline_ms is not None and (type(deadline_ms) is not int or not 0 < deadline_ms < 2**53):
        raise WireError(Code.BAD_REQUEST, "deadline_ms must be an integer from 1 to 2^53 - 1", request_id)
    return method, path, headers, deadline_ms


def checked_status(message: dict[str, Any], request_id: str) -> int:
    status = message.get("status")
    if type(status) is not int or not 100 <= status <= 599:
        raise WireError(Code.BAD_REQUEST, "status must be an integer from 100 to 599", request_id)
    return status


def checked_headers(message: dict[str, Any], request_id: str, room: int) -> dict[str, str]:
    given = message.get("headers") or {}
    if not isinstance(given, dict) or len(given) > MAX_HEADERS:
        raise WireError(Code.BAD_REQUEST, f"headers must be an object of at most {MAX_HEADERS} entries", request_id)
    names, values = "\n".join(given).lower(), _joined(given.values())
    # One search over all names and one over all values, instead of two for each header.
    is_each_one_line = names.count("\n") == values.count("\n") == max(0, len(given) - 1)
    if not is_each_one_line or not _HEADER_NAMES.fullmatch(names) or not _HEADER_VALUES.fullmatch(values):
        bad = next((name for name, value in given.items() if not _is_header(name, value)), "")
        raise WireError(Code.BAD_REQUEST, f"header {bad[:40]!r} isn't text or has a bad character", request_id)
    if len(names) + len(values) - 2 * max(0, len(given) - 1) > room:
        raise WireError(Code.TOO_LARGE, f"method, path and headers exceed {MAX_META_BYTES} bytes", request_id)
    return dict(zip(names.split("\n"), given.values(), strict=False))


def _joined(values: Iterable[Any]) -> str:
    try:
        return "\n".join(values)
    except TypeError:
        return "\0"  # no header value


def _is_header(name: str, value: object) -> bool:
    is_name = bool(name) and _HEADER_NAMES.fullmatch(name.lower()) and "\n" not in name
    return bool(is_name and isinstance(value, str) and "\n" not in value and _HEADER_VALUES.fullmatch(value))
