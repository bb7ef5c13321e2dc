"""What a hub's answers mean: whether they are what was asked for, worth another try, or a refusal, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2

from nodes.hub.listing import SHA256, HubFile, HubId
from nodes.layout import ModelError

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RETRIED = (408, 425, 429, 500, 502, 503, 504)


class TryAgain(Exception):
    """This attempt failed; a later one may not. `after_s`: the server's wish."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class Changed(Exception):
    """The file isn't the one that its first bytes are of."""


def check_status(response: httpx2.Response, endpoint: str, model: HubId, file: str = "") -> None:
    """Raises ModelError where trying again is pointless, else TryAgain."""
    status, code = response.status_code, response.headers.get("x-error-code", "")
    if status in (200, 206):
        return
    what = f"{file} of {model}" if file else str(model)
    is_elsewhere = not str(response.url).startswith(endpoint + "/")
    if status in _RETRIED or (is_elsewhere and status in (401, 403)):  # a signed address that has run out
        raise TryAgain(f"{response.url.host} answers HTTP {status} for {what}", _retry_after_s(response))
    if code == "GatedRepo" or status == 403:
        raise ModelError(
            f"{what} is gated: accept its terms at {endpoint}/{model.name}, and set HF_TOKEN to your token"
        )
    if status == 401 or code == "RepoNotFound":
        hint = "check the name; a private or gated model needs HF_TOKEN, the token of an account that may read it"
        raise ModelError(f"{endpoint} shows no model {model.name}: {hint}")
    if code == "RevisionNotFound":
        raise ModelError(f"{endpoint}/{model.name} has no branch, tag or commit {model.revision}")
    if status == 416:
        raise ModelError(f"{what} is shorter than {endpoint} lists it")
    if status == 404:
        raise ModelError(f"{endpoint} has no {what}; check the name and HF_ENDPOINT")
    raise ModelError(f"{response.url.host} answers HTTP {status} for {what}")


def check_identity(response: httpx2.Response, file: str, listed: HubFile) -> None:
    """The hub says on the way which file it leads to: its SHA-256, for those of LFS."""
    linked = [answer.headers.get("x-linked-etag", "") for answer in (*response.history, response)]
    said = next((etag.strip('W/"') for etag in linked if etag), "")
    if listed.sha256 and SHA256.fullmatch(said) and said != listed.sha256:
        raise ModelError(f"{file} is another file now, with SHA-256 {said}, than the hub listed: {listed.sha256}")


def check_range(response: httpx2.Response, file: str, start: int, end: int, size: int, *, has_condition: bool) -> int:
    """Where the bytes that come end."""
    if response.status_code == 200:
        if has_condition:
            raise Changed(file)
        if (start, end) != (0, size):
            hint = "only all of it could be had there; use another HF_ENDPOINT"
            raise ModelError(f"{response.url.host} answers no byte ranges of {file}: {hint}")
        return size
    found = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if response.headers.get("content-encoding", "identity") != "identity" or not found:
        raise TryAgain(f"{response.url.host} answers a part of {file} that can't be read")
    first, last, total = map(int, found.groups())
    if total != size:
        raise ModelError(f"{file} has {total} bytes at {response.url.host}, and {size} as the hub lists it")
    if first != start or not start <= last < end:
        raise TryAgain(f"{response.url.host} answers bytes {first}-{last} of {file}, not {start}-{end - 1}")
    return last + 1


def bounded(chunks: Iterator[bytes], num_bytes: int, file: str) -> Iterator[bytes]:
    """Raises TryAgain when more come than were promised; fewer is for the caller to see."""
    for chunk in chunks:
        num_bytes -= len(chunk)
        if num_bytes < 0:
            raise TryAgain(f"more bytes of {file} come than were promised")
        yield chunk


def _retry_after_s(response: httpx2.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() else 0.0


def strong(etag: str) -> str:
    """Only such a one may stand in If-Range."""
    return "" if etag.startswith("W/") else etag
