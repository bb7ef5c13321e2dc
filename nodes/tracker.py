"""The tracker as a node asks it: register, heartbeat, unregister, one HTTP request each, and what went wrong in words.

How often to try again, and when to give up, is decided in membership.py.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from nodes.registration import NodeFacts, Registration, Standing

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 10.0  # the tracker may probe an endpoint before it answers
MAX_ANSWER_BYTES = 256 * 1024
_TLS_HINT = "; where a private authority signed its certificate, name that with --ca-file"


class TrackerUnreachable(Exception):
    """No answer, or one that says "later": try again."""


class TrackerUntrusted(TrackerUnreachable):
    """Its certificate can't be verified, which trying again alone won't mend."""


class TrackerRefused(Exception):
    """The tracker has answered, and the answer is no."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after_s = status, code, message, retry_after_s

    @property
    def is_revoked(self) -> bool:
        return self.status == 401 and self.code == "revoked"


class Tracker:
    """Used by one thread at a time."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        self.url = url.rstrip("/")
        self._http = requests.Session()
        self._http.trust_env = False  # the same ways out as the WebSocket's: no proxies of the environment
        self._http.mount("https://", _TlsAdapter(tls))

    def register(self, credential: str, facts: NodeFacts) -> Registration:
        """Raises TrackerUnreachable, TrackerRefused."""
        answer = self._post("register", credential, facts.as_message())
        try:
            return Registration.read(answer, credential)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._not_a_tracker(error) from None

    def heartbeat(self, node_key: str, news: Mapping[str, Any]) -> Standing:
        """Raises TrackerUnreachable, TrackerRefused."""
        answer = self._post("heartbeat", node_key, news)
        try:
            return Standing.read(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._not_a_tracker(error) from None

    def unregister(self, node_key: str) -> None:
        """Raises TrackerUnreachable, TrackerRefused."""
        self._http.close()  # the connection that was kept may be dead, and the last word doesn't wait to find out
        self._post("unregister", node_key, {})

    def close(self) -> None:
        self._http.close()

    def _post(self, verb: str, credential: str, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            response = self._http.post(
                f"{self.url}/api/nodes/{verb}",
                json=message,
                headers={"Authorization": f"Bearer {credential}"},
                timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            cause = _innermost(error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise TrackerUntrusted(f"{self.url}: {_words(cause)}{_TLS_HINT}") from None
            raise TrackerUnreachable(f"{self.url}: {_words(cause)}") from None
        answer = _json_object(response)
        if response.status_code == 200 and answer is not None:
            return answer
        self._raise(response.status_code, answer or {}, response.headers.get("retry-after", ""))
        raise AssertionError

    def _raise(self, status: int, answer: Mapping[str, Any], retry_after: str) -> None:
        error = answer.get("error")
        code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
        if status >= 500 or status == 429:
            raise TrackerUnreachable(f"{self.url} answers HTTP {status}{f': {message}' if message else ''}")
        if message is None:
            hint = "is this the address of a Meshnet site?"
            raise TrackerRefused(status, "not_a_tracker", f"{self.url} answers HTTP {status}; {hint}")
        is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 8
        raise TrackerRefused(status, str(code), str(message), float(retry_after) if is_number else None)

    def _not_a_tracker(self, error: Exception) -> TrackerRefused:
        return TrackerRefused(200, "not_a_tracker", f"{self.url} answered what no tracker does ({error!r})")


class _TlsAdapter(HTTPAdapter):
    """requests with this process's one TLS context, private authority included."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._tls, **kwargs)


def _json_object(response: requests.Response) -> dict[str, Any] | None:
    if len(response.content) > MAX_ANSWER_BYTES:
        return None
    try:
        answer = response.json()
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _innermost(error: BaseException) -> BaseException:
    """The cause at the bottom: "Connection refused", not the four libraries it came through."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
