"""Keeps the proof of a node's endpoint fresh: that what listens there holds its key. How it is proved: endpoints.py.

Sessions reach a node by its endpoint only while a proof is good, so it is renewed with the node's heartbeats.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings

from tracker import endpoints
from tracker.endpoints import EndpointRefused
from tracker.models import Node

logger = logging.getLogger(__name__)


def renew(node: Node, now: datetime) -> None:
    """When half of what the last proof is good for is over. It is asked within seconds, on this thread."""
    half_lease = timedelta(seconds=node.lease_s / 2)
    if not node.endpoint or (node.endpoint_proved_until and node.endpoint_proved_until > now + half_lease):
        return
    try:
        node.endpoint_address = _proved_address(node)
        node.endpoint_proved_until, node.endpoint_error = now + timedelta(seconds=node.lease_s), ""
    except EndpointRefused as error:  # an earlier proof stays good until its end: one lost answer is no reason
        if node.endpoint_error != str(error)[:300]:
            logger.warning("node %s: its endpoint isn't used: %s", node.name, error)
        node.endpoint_error = str(error)[:300]
    node.save(update_fields=["endpoint_address", "endpoint_proved_until", "endpoint_error"])


def _proved_address(node: Node) -> str:
    endpoint = endpoints.parse_endpoint(node.endpoint)
    address = endpoints.resolve(
        endpoint, allow_private=settings.ALLOW_PRIVATE_ENDPOINTS, registered_from=node.address or ""
    )
    endpoints.prove(endpoint, address, node.secret_hash)
    return address
