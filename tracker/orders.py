"""What a head is asked: the request of a chat that begins, and of one that another head has begun."""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import datetime
from typing import Any

from django.conf import settings

from relay import headers, presence, wire
from tracker import epochs
from tracker.answers import Answer
from tracker.epochs import Hops
from tracker.errors import ApiError
from tracker.heads import HeadCall, by_http, through_relay
from tracker.models import ChatSession, Node
from tracker.openai import ChatRequest, CompletionRequest


def body_of(asked: ChatRequest | CompletionRequest, limit: int, seed: int) -> bytes:
    """Raises ApiError 400 where it is too long for the way to the head."""
    fields: dict[str, Any] = asked.for_head() | {"seed": seed}
    fields["max_tokens"] = None if asked.wanted_tokens is None else limit
    body = _encoded(fields)
    if len(body) > wire.MAX_BODY_BYTES:
        param = "messages" if isinstance(asked, ChatRequest) else "prompt"
        message = f"{param}: {len(body)} bytes on the way to the model; the limit is {wire.MAX_BODY_BYTES}."
        raise ApiError(400, message, code="string_above_max_length", param=param)
    return body


def continued(body: bytes, answer: Answer) -> bytes:
    """The same for the next head, which goes on from what the client has. Raises ApiError 502 where it is too long.

    The prompt's ids take the place of its text: a template may write today's date, and a long text may not fit beside
    them.
    """
    if not answer.ids:
        return body
    fields: dict[str, Any] = json.loads(body)
    for name in ("messages", "prompt"):
        fields.pop(name, None)
    fields["meshnet"] = {
        "resume": {
            "prompt_ids": answer.prompt_ids,
            "ids": answer.ids,
            "sent_chars": len(answer.text),
            "sent_sha256": hashlib.sha256(answer.text.encode()).hexdigest(),
        }
    }
    resumed = _encoded(fields)
    if len(resumed) > wire.MAX_BODY_BYTES:
        message = f"its {len(answer.prompt_ids) + len(answer.ids)} tokens are too many to be sent to another node"
        raise ApiError(502, message, code="too_large")
    return resumed


def request_of(
    session: ChatSession, hops: Hops, path: str, body: bytes, deadline_s: float, now: datetime
) -> wire.Request:
    """Its headers are written afresh: of the client's none crosses. Raises ApiError 500 without a key to sign with."""
    route = [epochs.hop_of(node, element, now) for node, element in hops[1:]]
    own = {
        "content-type": "application/json",
        headers.SESSION: session.session_id,
        headers.EPOCH: str(session.epoch),
        headers.TICKET: epochs.ticket_for(session, hops),
        headers.ROUTE: headers.encode_route(route),
        headers.PREFILL_CHUNK: str(session.model.fitting_chunk_tokens),
        headers.DEADLINE_MS: str(int(deadline_s * 1000)),
        headers.FAILOVER_WAIT_MS: str(int(settings.FAILOVER_WAIT_S * 1000)),
    }
    return wire.Request(
        request_id=secrets.token_hex(16),
        method="POST",
        path=path,
        headers=own,
        body=body,
        sender=wire.TRACKER,
        deadline_ms=int(deadline_s * 1000),
    )


def call_of(head: Node) -> HeadCall:
    """A head without an endpoint may have left the relay since it was chosen: then the relay says so."""
    is_connected = head.uses_relay and presence.is_present(head.peer_id)
    return through_relay(head.peer_id) if is_connected or not head.endpoint_address else by_http(head.dial_url)


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
