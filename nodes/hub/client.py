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
from urllib.parse import quote

import httpx2
import huggingface_hub
from huggingface_hub import constants, get_session

from nodes.hub.answers import TryAgain, bounded, check_identity, check_range, check_status, strong
from nodes.hub.listing import HubId, Listing, read_listing
from nodes.layout import ModelError


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
            check_status(response, self.endpoint, model)
            try:
                response.read()
                return read_listing(model, response.json())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelError(f"{url} answers what no hub does ({error!r}); check HF_ENDPOINT") from None

    def read(self, listing: Listing, file: str) -> bytes:
        """All of a file. Raises ModelError, TryAgain."""
        listed = listing.files[file]
        with self._answer(HubId(listing.name, listing.commit), self._url(listing, file), {}) as response:
            check_status(response, self.endpoint, HubId(listing.name, listing.commit), file)
            data = b"".join(bounded(response.iter_bytes(), listed.size, file))
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
            check_status(response, self.endpoint, model, file)
            check_identity(response, file, listed)
            until = check_range(response, file, start, end, listed.size, has_condition=bool(etag))
            yield Part(
                until, strong(response.headers.get("etag", "")), bounded(response.iter_raw(), until - start, file)
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


def _is_untrusted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
