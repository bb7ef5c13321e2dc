"""A hub that speaks as huggingface.co does: which files a model has at a commit, and bytes of them by plain requests.

What huggingface_hub reads from the environment holds: HF_ENDPOINT, HF_TOKEN (or `hf auth login`), HF_HUB_OFFLINE,
HF_HUB_DOWNLOAD_TIMEOUT. Requests go through its session, which drops the token when a redirect leads to another host.
One attempt each; fetch.py tries again.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2
import huggingface_hub
from huggingface_hub import constants, get_session
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from nodes.layout import ModelError

_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w.-]+(?:/[\w.-]+)*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_MAX_REDIRECTS = 5


class TryAgain(Exception):
    """This attempt failed; a later one may not. `after_s`: the server's wish."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class Changed(Exception):
    """The file isn't the one that its first bytes are of."""


@dataclass(frozen=True)
class HubId:
    """A model of a hub: `org/name`, perhaps with `@` and a branch, tag or commit."""

    name: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        return bool(_COMMIT.fullmatch(self.revision))

    @classmethod
    def read(cls, text: str) -> HubId | None:
        """None for what can't be one."""
        found = _ID.fullmatch(text)
        try:
            validate_repo_id(found[1] if found else "")
        except HFValidationError:
            return None
        return cls(found[1], found[2] or "main") if found else None


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it. `sha256` and `git_sha1` may be unknown, which is empty."""

    size: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True)
class Listing:
    """A model's files at one commit."""

    name: str
    commit: str
    files: Mapping[str, HubFile]


@dataclass(frozen=True)
class Part:
    """The beginning of an answer to a request for bytes: `end` may come before the one that was asked for."""

    end: int
    etag: str
    chunks: Iterator[bytes]


class Hub:
    def __init__(
        self, endpoint: str = "", token: str | None = None, is_offline: bool = False, timeout_s: float = 10.0
    ) -> None:
        self.endpoint, self.is_offline, self._timeout_s = endpoint.rstrip("/"), is_offline, timeout_s
        self._headers = {"user-agent": f"meshnet; hf_hub/{huggingface_hub.__version__}"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    @classmethod
    def of_environment(cls) -> Hub:
        # `constants` has read the environment. build_hf_headers would add what this process runs in and with.
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else huggingface_hub.get_token()
        timeout_s = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        return cls(constants.ENDPOINT, token, constants.is_offline_mode(), timeout_s)

    @property
    def host(self) -> str:
        """With its port, as part of a file's name."""
        return re.sub(r"[^\w.-]+", "_", self.endpoint.split("://")[-1])

    def list(self, model: HubId) -> Listing:
        """Raises ModelError, TryAgain."""
        revision = quote(model.revision, safe="")
        url = f"{self.endpoint}/api/models/{model.name}/revision/{revision}?blobs=true"
        with self._answer(model, url, {}) as response:
            _check_status(response, self.endpoint, model)
            try:
                response.read()
                return _listing(model, response.json())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelError(f"{url} answers what no hub does ({error!r}); check HF_ENDPOINT") from None

    def read(self, listing: Listing, file: str) -> bytes:
        """All of a file. Raises ModelError, TryAgain."""
        listed = listing.files[file]
        with self._answer(HubId(listing.name, listing.commit), self._url(listing, file), {}) as response:
            _check_status(response, self.endpoint, HubId(listing.name, listing.commit), file)
            data = b"".join(_bounded(response.iter_bytes(), listed.size, file))
        if len(data) != listed.size:
            raise TryAgain(f"{file} came with {len(data)} bytes, not {listed.size}")
        return data

    @contextmanager
    def open(self, listing: Listing, file: str, start: int, end: int, etag: str = "") -> Iterator[Part]:
        """Bytes from `start` on, at most up to `end`. Raises ModelError, TryAgain, and Changed where the file's
        sender has another one than when it said `etag`."""
        headers = {"range": f"bytes={start}-{end - 1}", "accept-encoding": "identity"}
        if etag:
            headers["if-range"] = etag
        model, listed = HubId(listing.name, listing.commit), listing.files[file]
        with self._answer(model, self._url(listing, file), headers) as response:
            _check_status(response, self.endpoint, model, file)
            _check_identity(response, file, listed)
            until = _check_range(response, file, start, end, listed.size, has_condition=bool(etag))
            yield Part(
                until, _strong(response.headers.get("etag", "")), _bounded(response.iter_raw(), until - start, file)
            )

    def _url(self, listing: Listing, file: str) -> str:
        return huggingface_hub.hf_hub_url(listing.name, file, revision=listing.commit, endpoint=self.endpoint)

    @contextmanager
    def _answer(self, model: HubId, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        if self.is_offline:
            raise ModelError(
                f"HF_HUB_OFFLINE is set, and {model} isn't wholly in the cache: unset it to fetch the rest"
            )
        try:
            with get_session().stream(
                "GET", url, headers={**self._headers, **headers}, timeout=self._timeout_s
            ) as response:
                if response.url.scheme != "https" and url.startswith("https:"):
                    raise ModelError(
                        f"{self.endpoint} sends on to {response.url.scheme}://{response.url.host}: refused"
                    )
                yield response
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise ModelError(f"{self.endpoint or 'HF_ENDPOINT'} is no address of a hub: {error}") from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            if _is_untrusted(error):
                hint = "where a private authority signed its certificate, name that in SSL_CERT_FILE"
                raise ModelError(f"{self.endpoint} can't be trusted: {error}; {hint}") from None
            raise TryAgain(f"{type(error).__name__}: {error}") from None


def _listing(model: HubId, fields: Any) -> Listing:
    if not _COMMIT.fullmatch(fields["sha"]):
        raise ValueError(fields["sha"])
    files = {}
    for entry in fields["siblings"]:
        lfs = entry.get("lfs") or {}
        sha256, size = str(lfs.get("sha256") or ""), entry.get("size", lfs.get("size"))
        if sha256 and not _SHA256.fullmatch(sha256):
            raise ValueError(sha256)
        if type(size) is int and size >= 0:
            # What an LFS file's blob id is the hash of is the pointer to it.
            files[str(entry["rfilename"])] = HubFile(size, sha256, "" if lfs else str(entry.get("blobId") or ""))
    return Listing(model.name, fields["sha"], files)


def _check_status(response: httpx2.Response, endpoint: str, model: HubId, file: str = "") -> None:
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


def _check_identity(response: httpx2.Response, file: str, listed: HubFile) -> None:
    """The hub says on the way which file it leads to: its SHA-256, for those of LFS."""
    linked = [answer.headers.get("x-linked-etag", "") for answer in (*response.history, response)]
    said = next((etag.strip('W/"') for etag in linked if etag), "")
    if listed.sha256 and _SHA256.fullmatch(said) and said != listed.sha256:
        raise ModelError(f"{file} is another file now, with SHA-256 {said}, than the hub listed: {listed.sha256}")


def _check_range(response: httpx2.Response, file: str, start: int, end: int, size: int, *, has_condition: bool) -> int:
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


def _bounded(chunks: Iterator[bytes], num_bytes: int, file: str) -> Iterator[bytes]:
    """Raises TryAgain when more come than were promised; fewer is for the caller to see."""
    for chunk in chunks:
        num_bytes -= len(chunk)
        if num_bytes < 0:
            raise TryAgain(f"more bytes of {file} come than were promised")
        yield chunk


def _retry_after_s(response: httpx2.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() else 0.0


def _strong(etag: str) -> str:
    """Only such a one may stand in If-Range."""
    return "" if etag.startswith("W/") else etag


def _is_untrusted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
