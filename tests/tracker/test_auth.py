from __future__ import annotations

import pytest
from django.test import RequestFactory
from pytest_django import DjangoAssertNumQueries

from relay.auth import Identity
from tests.tracker.conftest import MakeNode
from tracker.auth import authenticate_peer, bearer, review_peers
from tracker.credentials import Credential
from tracker.models import JoinToken, Node

pytestmark = pytest.mark.django_db


def test_a_nodes_key_names_its_peer_and_its_model(make_node: MakeNode) -> None:
    node = make_node("a")
    assert authenticate_peer(node.key.text) == Identity(node.peer_id, "tiny", True)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("status", "reason"), [(Node.Status.PENDING, "waits for approval"), (Node.Status.REVOKED, "was revoked")]
)
def test_a_node_that_may_not_work_is_known_and_told_why(make_node: MakeNode, status: str, reason: str) -> None:
    identity = authenticate_peer(make_node("a", status=status).key.text)  # type: ignore[attr-defined]
    assert identity
    assert not identity.approved
    assert reason in identity.reason


def test_nobody_elses_credential_opens_the_relay(
    make_node: MakeNode, api_key: Credential, join_token: tuple[JoinToken, Credential]
) -> None:
    node = make_node("a")
    for text in (api_key.text, join_token[1].text, f"{node.key_id}.{'x' * 43}", node.secret_hash, "", "\ud83d"):
        assert authenticate_peer(text) is None


def test_of_connected_peers_those_that_may_stay_no_longer_are_named(
    make_node: MakeNode, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    good, revoked, moved = make_node("a"), make_node("b", status=Node.Status.REVOKED), make_node("c")
    connected = {good.peer_id: "tiny", revoked.peer_id: "tiny", moved.peer_id: "another", "f" * 32: "tiny"}
    with django_assert_num_queries(1):
        refused = review_peers(connected)
    assert refused == {
        revoked.peer_id: "this node's key was revoked",
        moved.peer_id: "this node has moved to another model",
        "f" * 32: "this node was deleted",
    }


@pytest.mark.parametrize(
    ("header", "text"),
    [("Bearer a.b", "a.b"), ("bearer  a.b ", "a.b"), ("Basic a.b", ""), ("Bearer", ""), ("", ""), ("a.b", "")],
)
def test_a_bearer_is_read_from_its_header(header: str, text: str) -> None:
    assert bearer(RequestFactory().get("/", headers={"Authorization": header})) == text
