"""A node's next key: made when the operator asked for it, told with the answer to a heartbeat, used from then on.

The present key stays good until the new one is first shown (Node.objects.with_key), so an answer that is lost on its
way locks nobody out: the node comes again with the key it has, and is told another.
"""

from __future__ import annotations

from tracker import credentials
from tracker.credentials import Kind
from tracker.models import Node


def next_key(node: Node) -> str | None:
    """The whole of it, this once; None where none was asked for."""
    if not node.rotates_key:
        return None
    key = credentials.mint(Kind.NODE)
    asked = Node.objects.filter(pk=node.pk, rotates_key=True)
    is_kept = asked.update(next_key_id=key.key_id, next_secret_hash=key.secret_hash)
    return key.text if is_kept else None
