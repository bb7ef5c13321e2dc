"""What a node and its tracker say to each other: register, heartbeat, unregister. One HTTP request each.

How often to try again, and when to give up, is decided in membership.py.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from relay.wire import PROTOCOL_VERSION, WIRE_VERSIONS

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 10.0  # the tracker may probe an endpoint before it answers
MAX_ANSWER_BYTES = 256 * 1024
_TLS_HINT = "; where a private authority signed its certificate, name that with --ca-file"


class TrackerUnreachable(Exception):
    """No answer, or one that says "later": try again."""


class TrackerUntrusted(TrackerUnreachable):
    """Its certificate can't be verified, which trying again alone won't mend."""


class TrackerRefused(Exception):
    """The tracker has answered, and the answer is no."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    @property
    def is_revoked(self) -> bool:
        return self.status == 401 and self.code == "revoked"


@dataclass(frozen=True)
class ModelFacts:
    """What the tracker compares between nodes of one model."""

    name: str
    fingerprint: str
    num_layers: int
    hidden_size: int
    context_length: int


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself when it registers."""

    name: str
    model: ModelFacts
    start_layer: int
    end_layer: int
    relay: bool
    endpoint: str | None
    memory_bytes: int
    threads: int
    dtype: str
    weights: str = "dense"
    device: str = "cpu"
    version: str = ""
    ms_per_layer: float | None = None
    max_cached_tokens: int = 0  # of all sessions together
    wire_versions: tuple[int, ...] = WIRE_VERSIONS

    def as_message(self) -> dict[str, Any]:
        return asdict(self) | {"protocol_version": PROTOCOL_VERSION, "wire_versions": list(self.wire_versions)}


@dataclass(frozen=True)
class Standing:
    """What the tracker says with each answer: whether this node may work, its time, its keys."""

    is_approved: bool
    now: float
    heartbeat_s: float
    ticket_keys: Mapping[str, str]
    endpoint_error: str | None

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Standing:
        return cls(
            is_approved=answer["status"] == "approved",
            now=float(answer["now"]),
            heartbeat_s=max(0.2, float(answer["heartbeat_s"])),
            ticket_keys={str(kid): str(key) for kid, key in answer["ticket_keys"].items()},
            endpoint_error=answer.get("endpoint_error"),
        )


@dataclass(frozen=True)
class Registration:
    """The tracker's answer to a node that registers."""

    standing: Standing
    node_key: str
    peer_id: str
    start_layer: int
    end_layer: int
    relay_url: str | None
    wire_versions: tuple[int, ...] = (1,)  # that the relay speaks

    @classmethod
    def read(cls, answer: Mapping[str, Any], credential: str) -> Registration:
        return cls(
            standing=Standing.read(answer),
            node_key=str(answer.get("node_key") or credential),
            peer_id=str(answer["peer_id"]),
            start_layer=int(answer["start_layer"]),
            end_layer=int(answer["end_layer"]),
            relay_url=answer.get("relay_url"),
            wire_versions=tuple(answer.get("wire_versions") or [1]),
        )


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
        self._raise(response.status_code, answer or {})
        raise AssertionError

    def _raise(self, status: int, answer: Mapping[str, Any]) -> None:
        error = answer.get("error")
        code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
        if status >= 500 or status == 429:
            raise TrackerUnreachable(f"{self.url} answers HTTP {status}{f': {message}' if message else ''}")
        if message is None:
            hint = "is this the address of a Meshnet site?"
            raise TrackerRefused(status, "not_a_tracker", f"{self.url} answers HTTP {status}; {hint}")
        raise TrackerRefused(status, str(code), str(message))

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
