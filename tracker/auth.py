"""Who asks: nodes on the relay's doors and in the node API, people with API keys. Reads credentials, decides little.

An API key opens no door of the relay, and a node key none of the chat API: each is looked for in its own table only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from relay.auth import Identity
from tracker import bans, credentials, gate, registration
from tracker.errors import ApiError
from tracker.models import ApiKey, Node
from tracker.models.keys import find_by_credential
from tracker.registration import Bearer

USE_REMEMBERED_EACH = timedelta(minutes=1)
_REASONS = {Node.Status.PENDING: "this node waits for approval", Node.Status.REVOKED: "this node's key was revoked"}


def authenticate_peer(credential: str) -> Identity | None:
    """For the relay (settings.RELAY_AUTHENTICATE): the peer a node key names, and the model whose peers it may ask."""
    node = Node.objects.with_key(credential)
    if node is None:
        return None
    why_not = _why_not(node.status, node.ban(timezone.now()))
    return Identity(node.peer_id, node.model.name, not why_not, why_not)


def review_peers(connected: Mapping[str, str]) -> dict[str, str]:
    """For the relay (settings.RELAY_REVIEW): of {peer_id: scope} those that may stay no longer, and why."""
    now = timezone.now()
    columns = "peer_id", "status", "model__name", "banned_until", "ban_reason"
    rows = Node.objects.filter(peer_id__in=connected).values_list(*columns)
    why = {
        peer_id: _why_not(status, bans.in_words(banned_until, ban_reason, now))
        or ("" if connected[peer_id] == model_name else "this node has moved to another model")
        for peer_id, status, model_name, banned_until, ban_reason in rows
    }
    told = {peer_id: why.get(peer_id, "this node was deleted") for peer_id in connected}
    return {peer_id: reason for peer_id, reason in told.items() if reason}


def _why_not(status: str, ban: str | None) -> str:
    """Why the relay doesn't let a node in, for its owner to read; empty when it does."""
    if ban and status != Node.Status.REVOKED:
        return f"this node is {ban}"
    return _REASONS.get(Node.Status(status), "")


def authenticate_api_key(request: HttpRequest) -> ApiKey | None:
    """The key of a chat request; None where keys aren't required and none is good. Raises ApiError 401 or 429."""
    text = bearer(request)
    if settings.API_KEYS_REQUIRED:
        gate.check(request, text)
    key: ApiKey | None = find_by_credential(ApiKey.objects.all(), text)
    refusal = key.refusal(timezone.now()) if key else None
    if key and not refusal:
        gate.passed(text)
        _remember_use(key)
        return key
    if not settings.API_KEYS_REQUIRED:
        return None
    gate.failed(request, text)
    raise ApiError(401, why_refused(text, refusal), code="invalid_api_key")


def registering(request: HttpRequest) -> Bearer:
    """Who says something to the node API: a node, or one that wants to be. Raises ApiError 401 or 429."""
    text = bearer(request)
    gate.check(request, text)
    try:
        who = registration.authenticate(text)
    except ApiError:
        gate.failed(request, text)
        raise
    gate.passed(text)
    return who


def asking_node(request: HttpRequest) -> Node:
    """Raises ApiError 401 or 429."""
    node = registering(request).node
    if node is None:
        raise ApiError(401, "Authorization: Bearer must carry this node's key, not a join token", code="unauthorized")
    return node


def bearer(request: HttpRequest) -> str:
    """The credential in `Authorization: Bearer …`; empty when there is none."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _remember_use(key: ApiKey) -> None:
    """To the minute: otherwise each request would wait for the database's one writer."""
    now = timezone.now()
    if key.last_used is None or now - key.last_used > USE_REMEMBERED_EACH:
        ApiKey.objects.filter(pk=key.pk).update(last_used=now)


def why_refused(text: str, refusal: str | None) -> str:
    """`refusal`: of a key that is known, why it opens nothing."""
    if not text:
        return "You didn't provide an API key: send it as `Authorization: Bearer KEY`."
    if refusal:
        return f"{refusal[0].upper()}{refusal[1:]}: ask whoever runs this site for another."
    looks_like = credentials.describe(text)
    if looks_like == credentials.WORDS[credentials.Kind.API]:
        return "This API key is unknown here: it was deleted, or it is another site's, or a part of it is missing."
    return f"This is no API key: it looks like {looks_like}. Ask whoever runs this site for a key."
