from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from tests.tracker.conftest import FINGERPRINT, MakeNode
from tracker.credentials import Credential
from tracker.models import ApiKey, ChatSession, JoinToken, LanguageModel, Node, SessionHop
from tracker.models.keys import find_by_credential

NOW = timezone.now()
pytestmark = pytest.mark.django_db


def test_two_nodes_at_once_cannot_take_the_same_use(join_token: tuple[JoinToken, Credential]) -> None:
    JoinToken.objects.update(uses_left=1)
    one, other = JoinToken.objects.get(), JoinToken.objects.get()  # both have read that one is left
    assert (one.refusal(NOW), other.refusal(NOW)) == (None, None)
    assert [one.spend(NOW), other.spend(NOW)] == [True, False]
    assert JoinToken.objects.get().uses_left == 0


def test_a_token_without_a_number_of_uses_is_never_used_up(join_token: tuple[JoinToken, Credential]) -> None:
    token = join_token[0]
    assert all(token.spend(NOW) for _ in range(3))
    token.refresh_from_db()
    assert (token.uses_left, token.last_used) == (None, NOW)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"revoked": True}, "revoked"),
        ({"expires": NOW}, "expired"),
        ({"uses_left": 0}, "used up"),
    ],
)
def test_a_token_that_is_spent_says_why_and_cannot_be_spent(
    join_token: tuple[JoinToken, Credential], fields: dict[str, object], why: str
) -> None:
    JoinToken.objects.update(**fields)
    token = JoinToken.objects.get()
    assert why in (token.refusal(NOW) or "")
    assert not token.spend(NOW)


def test_a_row_is_found_by_its_own_secret_only(api_key: Credential) -> None:
    rows = ApiKey.objects.all()
    assert find_by_credential(rows, api_key.text) == ApiKey.objects.get()
    for text in ("", "x", f"{api_key.key_id}.{'x' * 43}", f"key_{'0' * 12}.{api_key.secret}", api_key.secret):
        assert find_by_credential(rows, text) is None


def test_no_secret_is_in_the_database(api_key: Credential, join_token: tuple[JoinToken, Credential]) -> None:
    for row, credential in ((ApiKey.objects.get(), api_key), (JoinToken.objects.get(), join_token[1])):
        assert credential.secret not in str(vars(row))


def test_approval_fixes_the_model_once(make_node: MakeNode, model: LanguageModel) -> None:
    LanguageModel.objects.update(fingerprint="", num_layers=None, hidden_size=None)
    facts = {"fingerprint": "cd" * 32, "num_layers": 12, "hidden_size": 64, "context_length": 256}
    first = make_node("first", status=Node.Status.PENDING, model_facts=facts)
    other = make_node("other", status=Node.Status.PENDING)
    first.approve()
    assert LanguageModel.objects.get().fingerprint == "cd" * 32
    with pytest.raises(ValidationError, match="not the same weights"):
        other.approve()
    other.refresh_from_db()
    assert other.status == Node.Status.PENDING


def test_a_revoked_node_loses_its_lease(make_node: MakeNode) -> None:
    node = make_node("a")
    node.revoke()
    node.refresh_from_db()
    assert (node.status, node.lease_until) == (Node.Status.REVOKED, None)
    assert not node.heartbeat(NOW, "", 1)


def test_leases_are_short_where_no_socket_tells_of_a_death(make_node: MakeNode) -> None:
    assert make_node("a").lease_s == 20
    assert make_node("b", uses_relay=False).lease_s == 5


@pytest.mark.parametrize(
    ("hidden_size", "dtype", "tokens"),
    [
        (None, "bfloat16", 128),
        (576, "bfloat16", 128),
        (4096, "bfloat16", 128),
        (4096, "float32", 64),
        (2**20, "float32", 1),
    ],
)
def test_a_step_of_the_prompt_fits_in_a_body(hidden_size: int | None, dtype: str, tokens: int) -> None:
    assert LanguageModel(hidden_size=hidden_size, wire_dtype=dtype).fitting_chunk_tokens == tokens


def make_session(model: LanguageModel, **fields: object) -> ChatSession:
    row = {"session_id": "12" * 16, "completion_id": "chatcmpl-1", "model": model, "seed": 1, "started": NOW}
    return ChatSession.objects.create(**(row | fields))


def test_a_session_without_news_for_30_s_is_lost(model: LanguageModel) -> None:
    session = make_session(model, last_news=NOW + timedelta(seconds=100))
    assert session.state_at(NOW + timedelta(seconds=129)) == "running"
    assert session.state_at(NOW + timedelta(seconds=130)) == "lost"
    session.state = ChatSession.State.DONE
    assert session.state_at(NOW + timedelta(days=1)) == "done"


def test_a_clock_that_was_set_back_gives_no_negative_duration(model: LanguageModel) -> None:
    session = make_session(model, ended=NOW - timedelta(seconds=9), completion_tokens=5, ttft_ms=10.0)
    assert session.duration_s == 0
    assert session.tokens_per_s is None


def test_tokens_per_second_are_those_after_the_first_text(model: LanguageModel) -> None:
    session = make_session(model, ended=NOW + timedelta(seconds=3), completion_tokens=21, ttft_ms=1000.0)
    assert session.tokens_per_s == pytest.approx(10)


def test_a_session_shows_eight_characters_of_its_id(model: LanguageModel) -> None:
    session = make_session(model)
    assert str(session) == session.short_id == "12121212"


def test_a_hop_survives_its_node(make_node: MakeNode, model: LanguageModel) -> None:
    node = make_node("gone")
    session = make_session(model, completion_tokens=4)
    SessionHop.objects.create(
        session=session, position=0, node=node, node_name="gone", start_layer=0, end_layer=12, ms_total=10.0
    )
    node.delete()
    hop = SessionHop.objects.get()
    assert (str(hop), hop.ms_per_token) == ("gone, layers 0–11", 2.5)


def test_a_model_that_nodes_hold_cannot_be_deleted(make_node: MakeNode, model: LanguageModel) -> None:
    make_node("a")
    with pytest.raises(Exception, match="protected"):
        model.delete()
    assert model.fingerprint == FINGERPRINT
