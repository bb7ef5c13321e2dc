from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from relay.auth import authenticator
from tests.tracker.conftest import MakeNode
from tracker.credentials import Credential
from tracker.models import ApiKey, LanguageModel, Node

pytestmark = pytest.mark.django_db


@pytest.fixture
def get(api_key: Credential) -> Callable[[str], Any]:
    return lambda path: Client().get(path, headers={"Authorization": f"Bearer {api_key.text}"})


def test_a_model_is_listed_only_while_a_full_route_exists(
    get: Callable[[str], Any], make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    head, tail = make_node("head", 0, 6), make_node("tail", 6, 12)
    LanguageModel.objects.create(name="nobody-has-it")
    connect(head)
    assert get("/v1/models").json() == {"object": "list", "data": []}
    assert get("/v1/models/tiny").status_code == 404
    connect(tail)
    [entry] = get("/v1/models").json()["data"]
    assert set(entry) == {"id", "object", "created", "owned_by"}
    assert (entry["id"], entry["object"]) == ("tiny", "model")
    assert get("/v1/models/tiny").json() == entry
    Node.objects.filter(pk=tail.pk).update(status=Node.Status.REVOKED)
    assert get("/v1/models").json()["data"] == []


def test_a_model_that_is_away_is_not_found_with_the_reason(get: Callable[[str], Any], make_node: MakeNode) -> None:
    make_node("away")
    error = get("/v1/models/tiny").json()["error"]
    assert error["code"] == "model_not_found"
    assert "layers 0–11 have no node online" in error["message"]


def test_a_name_may_hold_a_slash(
    get: Callable[[str], Any], make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    LanguageModel.objects.update(name="org/tiny")
    connect(make_node("a"))
    LanguageModel.objects.update(name="org/tiny")
    assert get("/v1/models/org/tiny").json()["id"] == "org/tiny"


def test_a_key_sees_the_models_that_it_may_ask(
    get: Callable[[str], Any], make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    connect(make_node("a"))
    ApiKey.objects.get().allowed_models.add(LanguageModel.objects.create(name="other"))
    assert get("/v1/models").json()["data"] == []
    error = get("/v1/models/tiny").json()["error"]
    assert (error["code"], "may not ask it" in error["message"]) == ("model_not_found", True)
    ApiKey.objects.get().allowed_models.add(LanguageModel.objects.get(name="tiny"))
    assert get("/v1/models/tiny").json()["id"] == get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_models_need_a_key() -> None:
    for path in ("/v1/models", "/v1/models/tiny"):
        assert Client().get(path).status_code == 401


def test_an_address_of_many_bad_keys_is_told_to_wait_in_openais_shape(get: Callable[[str], Any]) -> None:
    assert get("/v1/models").status_code == 200
    bad = Client(headers={"Authorization": "Bearer key_bad"})
    assert bad.get("/v1/models").status_code == 401
    for _ in range(12):
        authenticator.throttle.failed("127.0.0.1")
    refused = bad.get("/v1/models")
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    assert refused["Retry-After"] == "3"
    assert get("/v1/models").status_code == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat", "/v1/chat/completions/x"])
def test_other_paths_are_unknown_in_openais_shape(path: str) -> None:
    response = Client().post(path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"


def test_models_are_read_only(get: Callable[[str], Any]) -> None:
    assert Client().post("/v1/models").status_code == 405
