from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tests.tracker.sessions import begin_chat
from tracker.credentials import Credential
from tracker.models import ApiKey, LanguageModel, Node, Usage

pytestmark = pytest.mark.django_db
Get = Callable[[str], Any]


@pytest.fixture
def get(api_key: Credential) -> Get:
    return lambda path: Client().get(path, headers={"Authorization": f"Bearer {api_key.text}"})


def day(days_ago: int) -> date:
    return timezone.now().date() - timedelta(days=days_ago)


def use(key: ApiKey | None, days_ago: int, model_name: str, **counts: int) -> None:
    Usage.objects.create(api_key=key, day=day(days_ago), model_name=model_name, **counts)


def test_a_key_without_limits_that_was_never_used(get: Get) -> None:
    answer = get("/v1/usage")
    assert answer["Cache-Control"] == "no-store"
    key = ApiKey.objects.get()
    assert answer.json() == {
        "object": "usage",
        "key": {"id": key.key_id, "label": "test", "models": None, "expires": None},
        "limits": {},
        "since": day(29).isoformat(),
        "total": {"requests": 0, "failed": 0, "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        "data": [],
    }


def test_what_was_used_is_told_by_day_and_model_the_newest_first(get: Get) -> None:
    key, other = ApiKey.objects.get(), ApiKey.objects.create(key_id="key_other")
    use(key, 2, "a", requests=1, prompt_tokens=10, completion_tokens=1)
    use(key, 0, "b", requests=2, failed=1, prompt_tokens=20, completion_tokens=2)
    use(key, 0, "a", requests=3)
    use(key, 30, "a", requests=100)
    for somebody_else in (other, None):
        use(somebody_else, 0, "a", requests=1000)
    told = get("/v1/usage").json()
    assert [(row["day"], row["model"], row["requests"]) for row in told["data"]] == [
        (day(0).isoformat(), "a", 3),
        (day(0).isoformat(), "b", 2),
        (day(2).isoformat(), "a", 1),
    ]
    sums = {"requests": 6, "failed": 1, "prompt_tokens": 30, "completion_tokens": 3, "total_tokens": 33}
    assert told["total"] == sums
    assert len(get("/v1/usage?days=2").json()["data"]) == 2
    assert get("/v1/usage?days=31").json()["total"]["requests"] == 106


def test_limits_are_told_with_what_is_left(
    get: Get, make_node: MakeNode, connect: Callable[[Node], None], model: LanguageModel
) -> None:
    connect(make_node("only"))
    expires = timezone.now() + timedelta(days=1)
    ApiKey.objects.update(requests_per_minute=5, max_concurrent=2, expires=expires)
    key = ApiKey.objects.get()
    key.allowed_models.add(model)
    begin_chat(key=key)
    told = get("/v1/usage").json()
    assert (told["key"]["models"], told["key"]["expires"]) == (["tiny"], expires.isoformat())
    requests, concurrent = told["limits"]["requests_per_minute"], told["limits"]["max_concurrent"]
    assert (requests["limit"], requests["used"], requests["left"]) == (5, 1, 4)
    assert 0 < requests["resets_s"] <= 60
    assert (concurrent["limit"], concurrent["used"], concurrent["left"]) == (2, 1, 1)
    assert set(told["limits"]) == {"requests_per_minute", "max_concurrent"}


@pytest.mark.parametrize("days", ["0", "-1", "367", "1.5", "", "x", "9" * 5000, "٣"])
def test_a_wrong_number_of_days_is_refused(get: Get, days: str) -> None:
    answer = get(f"/v1/usage?days={days}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "days"


def test_two_numbers_of_days_are_one_too_many(get: Get) -> None:
    answer = get("/v1/usage?days=1&days=3")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "days")


def test_an_unknown_parameter_is_refused_by_name(get: Get) -> None:
    answer = get("/v1/usage?since=2026-01-01")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


def test_usage_is_told_to_the_keys_holder_alone(get: Get, settings: Settings) -> None:
    assert Client().get("/v1/usage").status_code == 401
    settings.API_KEYS_REQUIRED = False
    assert Client().get("/v1/usage").json()["error"]["code"] == "invalid_api_key"
    assert get("/v1/usage").status_code == 200
    assert Client().post("/v1/usage").status_code == 405
