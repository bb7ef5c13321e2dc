"""A node's next key: both are good until the new one is used, and the former one opens nothing from then on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tracker.views.test_nodes import Token, beat, error_of, key_in, post, register
from tracker import operating
from tracker.auth import authenticate_peer
from tracker.credentials import Credential, hash_secret
from tracker.models import Node

pytestmark = pytest.mark.django_db


def new_key_in(answer: Any) -> Credential:
    key_id, _, secret = answer.json()["new_key"].partition(".")
    return Credential(key_id, secret)


def beat_with(key: Credential) -> Any:
    """A heartbeat that is in order whatever the row says of keys."""
    node = Node.objects.get()
    return post("heartbeat", key, {"registration": node.registration, "number": node.heartbeat_number + 1})


@pytest.fixture
def key(join_token: Token) -> Credential:
    made = key_in(register(join_token[1]))
    assert "new_key" not in beat(made).json()
    assert operating.rotate_key(None, Node.objects.all()).names == ("node-1",)
    return made


def test_the_new_key_takes_the_place_of_the_former_when_it_is_used(key: Credential) -> None:
    new = new_key_in(beat(key))
    assert Node.objects.get().secret_hash == hash_secret(key.secret), "only a hash is kept, and the former one counts"
    assert authenticate_peer(key.text) is not None
    answer = beat_with(new)
    assert (answer.status_code, "new_key" in answer.json()) == (200, False)
    node = Node.objects.get()
    assert (node.key_id, node.secret_hash) == (new.key_id, hash_secret(new.secret))
    assert (node.next_key_id, node.next_secret_hash, node.rotates_key) == ("", "", False)
    assert error_of(beat_with(key))[:2] == (401, "unauthorized")
    assert authenticate_peer(key.text) is None


def test_the_relay_takes_a_new_key_too(key: Credential) -> None:
    new = new_key_in(beat(key))
    identity = authenticate_peer(new.text)
    assert identity
    assert identity.peer_id == Node.objects.get().peer_id
    assert Node.objects.get().key_id == new.key_id


def test_a_key_whose_answer_was_lost_is_made_again(key: Credential) -> None:
    lost = new_key_in(beat(key))
    new = new_key_in(register(key))
    assert error_of(beat_with(lost))[0] == 401
    assert beat_with(new).status_code == 200


def test_a_wrong_secret_of_a_new_key_opens_nothing(key: Credential) -> None:
    new = new_key_in(beat(key))
    assert error_of(beat_with(Credential(new.key_id, key.secret)))[0] == 401
    assert Node.objects.get().next_key_id == new.key_id


def test_no_key_is_given_to_a_node_that_is_out(key: Credential) -> None:
    operating.revoke(None, Node.objects.all())
    assert operating.rotate_key(None, Node.objects.all()).refused == (
        "Node node-1 is revoked: no key of it opens anything.",
    )
