"""What an operator says of models: which are refused, what their chats are given, and whether nodes bring others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from pytest_django import Settings

from tests.tracker.conftest import FINGERPRINT, MakeNode
from tests.tracker.sessions import begin_chat as begin
from tests.tracker.views.test_nodes import FACTS, Token, error_of, key_in, register
from tracker import chats
from tracker.errors import ApiError
from tracker.models import ChatSession, LanguageModel, Node, RefusedFingerprint

pytestmark = pytest.mark.django_db


@pytest.fixture
def served(make_node: MakeNode, connect: Callable[[Node], None]) -> LanguageModel:
    connect(make_node("node-a"))
    return LanguageModel.objects.get()


def test_a_model_that_is_refused_is_asked_by_nobody_and_isnt_listed(
    served: LanguageModel, client: Client, api_key: Any
) -> None:
    listed = client.get("/v1/models", headers={"Authorization": f"Bearer {api_key.text}"}).json()["data"]
    assert [entry["id"] for entry in listed] == ["tiny"]
    LanguageModel.objects.update(is_refused=True, refusal_reason="its license ended")
    with pytest.raises(ApiError) as error:
        begin()
    assert (error.value.status, error.value.code) == (403, "model_refused")
    assert error.value.message == "The model tiny is refused here by the operator: its license ended."
    headers = {"Authorization": f"Bearer {api_key.text}"}
    assert client.get("/v1/models", headers=headers).json()["data"] == []
    assert client.get("/v1/models/tiny", headers=headers).json()["error"]["code"] == "model_refused"


def test_no_node_joins_with_a_model_that_is_refused(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    LanguageModel.objects.update(is_refused=True, refusal_reason="its license ended")
    for answer in (register(join_token[1], name="another"), register(key)):
        status, code, message = error_of(answer)
        assert (status, code) == (409, "model_refused")
        assert "its license ended" in message
    assert Node.objects.count() == 1


def test_no_node_joins_with_a_copy_that_is_refused_whatever_it_calls_it(join_token: Token) -> None:
    RefusedFingerprint.objects.create(fingerprint=FINGERPRINT, reason="somebody changed its weights")
    status, code, message = error_of(register(join_token[1], model=FACTS | {"name": "another"}))
    assert (status, code) == (409, "fingerprint_refused")
    assert "somebody changed its weights" in message
    assert not LanguageModel.objects.filter(name="another").exists()


def test_no_node_is_approved_with_a_copy_that_is_refused(make_node: MakeNode) -> None:
    node = make_node("node-a", status=Node.Status.PENDING)
    RefusedFingerprint.objects.create(fingerprint=FINGERPRINT)
    with pytest.raises(ValidationError, match="refused here by the operator"):
        node.approve()


@pytest.mark.parametrize(("name", "is_taken"), [("tiny", True), ("another", False)])
def test_a_site_may_take_no_new_models(
    join_token: Token, model: LanguageModel, settings: Settings, name: str, is_taken: bool
) -> None:
    settings.NEW_MODELS = False
    answer = register(join_token[1], model=FACTS | {"name": name})
    if is_taken:
        assert answer.status_code == 200
    else:
        status, code, message = error_of(answer)
        assert (status, code) == (409, "unknown_model")
        assert "ask its operator to add it" in message
        assert not LanguageModel.objects.filter(name=name).exists()


@pytest.mark.parametrize(
    ("default", "asked", "limit"),
    [(None, {}, 256), (100, {}, 100), (100, {"max_tokens": 7}, 7), (5000, {}, 256)],
)
def test_a_chat_that_names_no_number_of_tokens_gets_the_models(
    served: LanguageModel, default: int | None, asked: dict[str, int], limit: int
) -> None:
    LanguageModel.objects.update(default_max_tokens=default)
    begin(**asked)
    assert ChatSession.objects.get().max_tokens == limit


@pytest.mark.parametrize(("deadline_s", "given"), [(None, 300), (60, 60), (5000, 300)])
def test_a_chat_has_the_models_time_and_no_more_than_the_sites(
    served: LanguageModel, settings: Settings, deadline_s: int | None, given: int
) -> None:
    settings.REQUEST_DEADLINE_S = 300
    LanguageModel.objects.update(deadline_s=deadline_s)
    chat = begin()
    session = ChatSession.objects.get()
    assert session.deadline - session.started == timedelta(seconds=given)
    assert chat.deadline_s == given


def test_more_time_than_the_model_has_is_refused(served: LanguageModel) -> None:
    LanguageModel.objects.update(deadline_s=60)
    with pytest.raises(ApiError, match="at most 60 seconds are given here"):
        chats._deadline_s(61, LanguageModel.objects.get())
