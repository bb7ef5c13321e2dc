"""How a node joins, is heard of and leaves. The rules behind /api/nodes/*; views only carry them.

A node comes first with a join token and gets a key of its own, later with that key. Registering again is the same as
registering once: it brings the row up to date. Heartbeats are numbered within a registration, and leases run by the
tracker's clock: one that comes late revives nothing.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from relay import wire
from relay.auth import forget
from tracker import bans, credentials, holdings, moves, places, proofs, rotation, tickets
from tracker.credentials import Credential, Kind
from tracker.errors import ApiError
from tracker.models import JoinToken, LanguageModel, Node, RefusedFingerprint
from tracker.models.keys import find_by_credential
from tracker.node_schemas import Heartbeat, Registration

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who registers: a node that has a key, or one that brings a join token."""

    node: Node | None = None
    token: JoinToken | None = None


def authenticate(text: str) -> Bearer:
    """Raises ApiError 401 for anything but a node key or a join token, 403 for the key of a node that is banned."""
    node = Node.objects.with_key(text)
    if node:
        _check_let_in(node)
        return Bearer(node=node)
    token: JoinToken | None = find_by_credential(JoinToken.objects.all(), text)
    if token:
        return Bearer(token=token)
    if credentials.is_node_key(text):
        message = "no node here has this key: the node was deleted, or another site gave it the key"
        raise ApiError(401, message, code=wire.Code.UNAUTHORIZED)
    if credentials.describe(text) == credentials.WORDS[credentials.Kind.JOIN]:
        message = "no join token here is this one: it was deleted, or it is another site's, or a part of it is missing"
        raise ApiError(401, message, code=wire.Code.UNAUTHORIZED)
    looks_like = f"it looks like {credentials.describe(text)}" if text else "there is none"
    wanted = "Authorization: Bearer must carry a join token or this node's key"
    raise ApiError(401, f"{wanted}; {looks_like}", code=wire.Code.UNAUTHORIZED)


def check_version(fields: dict[str, Any]) -> None:
    """Before anything else is read: another version may write everything else differently. Raises ApiError 426."""
    theirs, wires = fields.get("protocol_version"), fields.get("wire_versions")
    ours = wire.PROTOCOL_VERSION
    if type(theirs) is not int or theirs != ours:
        said = f"version {theirs}" if type(theirs) is int else "no version"
        what = "this site" if type(theirs) is int and theirs > ours else "the node"
        raise ApiError(426, f"this site speaks node protocol {ours}, the node {said}: upgrade {what}", code="upgrade")
    if not isinstance(wires, list) or not set(wire.WIRE_VERSIONS) & {
        version for version in wires if type(version) is int
    }:
        speaks = ", ".join(map(str, wire.WIRE_VERSIONS))
        raise ApiError(
            426, f"the relay here speaks wire version {speaks}, the node doesn't: upgrade the node", code="upgrade"
        )


def register(bearer: Bearer, wanted: Registration, now: datetime, address: str) -> dict[str, Any]:
    """Makes or updates the node; what it needs to work is in the answer. Raises ApiError."""
    node_key: Credential | None = None
    try:
        with transaction.atomic():
            model = _model_for(wanted)
            if bearer.token:
                node, node_key = _enrol(bearer.token, wanted.name, model, now)
            else:
                assert bearer.node is not None
                node = _again(bearer.node)
            has_other_model = bearer.node is not None and bearer.node.model_id != model.pk
            _update(node, model, wanted, now, address)
    except IntegrityError:
        raise _name_taken(wanted.name) from None
    if has_other_model:
        forget(node.peer_id)  # the relay let it in as a peer of the former one's nodes
    how = "joined" if node_key else "registered"
    logger.info("node %s %s: %s of %s, %s", node.name, how, node.shard, node.model.name, node.status)
    proofs.renew(node, now)
    return _answer(node, now) | ({"node_key": node_key.text} if node_key else {})


def heartbeat(node: Node, news: Heartbeat, now: datetime) -> dict[str, Any]:
    """Renews the lease. Raises ApiError 409 when it is over: the node registers again first."""
    if not node.heartbeat(now, news.registration, news.number, **news.figures()):
        message = f"the lease of node {node.name} is over, or this heartbeat is of an earlier one: register again"
        raise ApiError(409, message, code="not_registered")
    proofs.renew(node, now)
    held = news.session_epochs
    return _state(node, now) | {
        "closed": holdings.closed(node, held),
        "move": holdings.moving(node, held, now),
        "place": moves.place_of(node, now),
    }


def _model_for(wanted: Registration) -> LanguageModel:
    """The row of that name, made if need be. Raises ApiError 409 when the node's copy is another model, or the operator
    takes none of this name or fingerprint."""
    name = wanted.model.name
    if not settings.NEW_MODELS and not LanguageModel.objects.filter(name=name).exists():
        message = f"this site takes no new models, and {name} isn't one of its own: ask its operator to add it"
        raise ApiError(409, message, code="unknown_model")
    model, _ = LanguageModel.objects.select_for_update().get_or_create(name=name)
    if model.refusal:
        raise ApiError(409, model.refusal, code="model_refused")
    if refused := RefusedFingerprint.refusal(wanted.model.fingerprint):
        raise ApiError(409, f"this node's copy of {name} can't be used: its {refused}", code="fingerprint_refused")
    mismatch = model.mismatch(wanted.model.facts())
    if mismatch:
        raise ApiError(409, f"this node's copy doesn't fit: {mismatch}", code="fingerprint_mismatch")
    return model


def _enrol(token: JoinToken, name: str, model: LanguageModel, now: datetime) -> tuple[Node, Credential]:
    refusal = token.refusal(now)
    if refusal or not token.spend(now):
        raise ApiError(
            401, refusal or "this join token is used up", code="revoked" if token.revoked else "unauthorized"
        )
    key = credentials.mint(Kind.NODE)
    node = Node(name=name, model=model, peer_id=secrets.token_hex(16), key_id=key.key_id, secret_hash=key.secret_hash)
    node.status = Node.Status.PENDING if token.needs_approval else Node.Status.APPROVED
    node.joined_with = token
    return node, key


def _name_taken(name: str) -> ApiError:
    if Node.objects.filter(name=name, status=Node.Status.REVOKED).exists():
        what, hint = ", was revoked and keeps its name", "choose another --name"
    else:
        what, hint = "", "choose another --name, or start it with the state folder that holds its key"
    return ApiError(409, f"another node here is called {name}{what}: {hint}", code="name_taken")


def _again(known: Node) -> Node:
    """Its row as it is now, locked: an operator may have revoked or paused it meanwhile. Raises ApiError 401, 403."""
    node = Node.objects.select_for_update().get(pk=known.pk)
    _check_let_in(node)
    return node


def _check_let_in(node: Node) -> None:
    """Raises ApiError 401 for one that is out for good, 403 for one that is banned and may come back."""
    if node.status == Node.Status.REVOKED:
        raise ApiError(401, f"the key of node {node.name} was revoked by the operator", code="revoked")
    now = timezone.now()
    if node.banned_until and (ban := node.ban(now)):
        headers = {"Retry-After": str(bans.wait_s(node.banned_until, now))}
        raise ApiError(403, f"node {node.name} is {ban}", code="banned", headers=headers)


def _update(node: Node, model: LanguageModel, wanted: Registration, now: datetime, address: str) -> None:
    is_of_other_model = node.pk is not None and node.model_id != model.pk
    if node.endpoint != (wanted.endpoint or "") or node.address != (address or None):
        node.endpoint_address, node.endpoint_proved_until, node.endpoint_error = "", None, ""
    node.name, node.model, node.model_facts = wanted.name, model, wanted.model.facts()
    node.uses_relay, node.endpoint, node.address = wanted.relay, wanted.endpoint or "", address or None
    node.wire_versions = wanted.wire_versions
    node.version, node.device = wanted.version, wanted.device
    node.dtype, node.weights = wanted.dtype, wanted.weights
    node.threads, node.memory_bytes, node.ms_per_layer = wanted.threads, wanted.memory_bytes, wanted.ms_per_layer
    node.max_cached_tokens = wanted.max_cached_tokens
    node.picks_layers, node.budget_bytes = wanted.picks_layers, wanted.budget_bytes
    node.layer_bytes, node.head_bytes, node.tail_bytes = wanted.layer_bytes, wanted.head_bytes, wanted.tail_bytes
    node.is_registered, node.last_seen = True, now
    node.cleared = now  # it has begun anew, whatever failed before
    node.registration, node.heartbeat_number = secrets.token_hex(16), 0
    node.done_bytes = node.total_bytes = None
    node.lease_until = now + timedelta(seconds=node.lease_s)
    node.save()
    if node.status == Node.Status.APPROVED:
        model.fix(node.model_facts)
    places.give(node, wanted, now, is_of_other_model=is_of_other_model)


def _answer(node: Node, now: datetime) -> dict[str, Any]:
    model = node.model
    start_layer, end_layer = node.shard.loaded
    return _state(node, now) | {
        "registration": node.registration,
        "peer_id": node.peer_id,
        "start_layer": start_layer,
        "end_layer": end_layer,
        "reason": node.shard.reason,
        "relay_url": f"{node.relay_url}/ws" if node.uses_relay else None,
        "relay_addr": node.relay_addr,
        "wire_versions": list(wire.WIRE_VERSIONS),
        "model": {
            "name": model.name,
            "prefill_chunk_tokens": model.fitting_chunk_tokens,
            "wire_dtype": model.wire_dtype,
        },
    }


def _state(node: Node, now: datetime) -> dict[str, Any]:
    return {
        "status": node.status,
        "duty": holdings.duty(node, now),
        "now": now.timestamp(),
        "heartbeat_s": node.heartbeat_s,
        "ticket_keys": tickets.public_keys(),
        "endpoint_error": node.endpoint_error or None,
    } | ({"new_key": new_key} if (new_key := rotation.next_key(node)) else {})
