"""Limits of a key as requests meet them: what counts, until when, and that a refusal leaves nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tests.tracker.sessions import begin_chat
from tracker import endings, metering
from tracker.chats import Chat
from tracker.endings import Outcome
from tracker.errors import ApiError
from tracker.hopreports import Report
from tracker.models import ApiKey, ChatSession, LanguageModel, Node, Usage
from tracker.models.sessions import LOST_AFTER

pytestmark = pytest.mark.django_db
NOW = timezone.now().replace(hour=12)


@pytest.fixture
def key(make_node: MakeNode, connect: Callable[[Node], None]) -> ApiKey:
    """Of somebody who may ask a model on one node."""
    connect(make_node("only", lease_until=NOW + timedelta(days=2)))
    key = ApiKey(label="somebody")
    key.give_secret()
    key.save()
    return key


def limit(key: ApiKey, **most: Any) -> None:
    ApiKey.objects.filter(pk=key.pk).update(**most)
    key.refresh_from_db()


def begin(key: ApiKey, after_s: float = 0, **fields: Any) -> Chat:
    """With a seed of one digit: it is in what the prompt's length is guessed from."""
    return begin_chat(key=key, at=NOW + timedelta(seconds=after_s), **{"seed": 1} | fields)


def end(chat: Chat, prompt_tokens: int, completion_tokens: int, state: str = ChatSession.State.DONE) -> None:
    chat.answer.report = Report(prompt_tokens, completion_tokens, ())
    endings.finish(chat, Outcome(state), NOW)


def refused(key: ApiKey, after_s: float = 0, **fields: Any) -> ApiError:
    """And nothing was written."""
    before = ChatSession.objects.count()
    with pytest.raises(ApiError) as error:
        begin(key, after_s, **fields)
    assert ChatSession.objects.count() == before
    return error.value


def test_a_key_without_limits_is_asked_nothing_and_told_nothing(key: ApiKey) -> None:
    assert begin(key).answer.completion.headers == {}
    assert metering.standings(key, NOW) == []


def test_requests_count_for_sixty_seconds_from_their_beginning(key: ApiKey) -> None:
    limit(key, requests_per_minute=2)
    end(begin(key), 1, 1)
    begin(key, after_s=10)
    error = refused(key, after_s=20.5)
    assert (error.status, error.headers["Retry-After"]) == (429, "40")
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert error.headers["x-ratelimit-reset-requests"] == "50s"
    refused(key, after_s=59.9)
    begin(key, after_s=60)
    assert refused(key, after_s=61).headers["Retry-After"] == "9"


def test_what_is_left_is_told_with_each_answer(key: ApiKey) -> None:
    limit(key, requests_per_minute=2, tokens_per_minute=10_000)
    told = begin(key, max_tokens=50).answer.completion.headers
    assert told["x-ratelimit-remaining-requests"] == "1"
    assert told["x-ratelimit-reset-requests"] == told["x-ratelimit-reset-tokens"] == "1m0s"
    assert int(told["x-ratelimit-remaining-tokens"]) == 10_000 - ChatSession.objects.get().reserved_tokens


def test_a_running_session_counts_with_what_it_reserves_and_then_with_what_it_was(key: ApiKey) -> None:
    limit(key, tokens_per_minute=300)
    chat = begin(key, max_tokens=200)
    reserved = ChatSession.objects.get().reserved_tokens
    assert 200 < reserved < 260
    error = refused(key, after_s=5, max_tokens=200)
    assert (error.status, error.headers["Retry-After"]) == (429, "55")
    assert f"{reserved} of them are used or reserved" in error.message
    end(chat, 10, 20)
    assert begin(key, after_s=6, max_tokens=200).answer.completion.headers["x-ratelimit-remaining-tokens"] == str(
        300 - 30 - reserved
    )


def test_tokens_count_for_sixty_seconds_from_the_beginning_of_their_session(key: ApiKey) -> None:
    limit(key, tokens_per_minute=300)
    for after_s, tokens in ((0, 100), (10, 100), (20, 90)):
        end(begin(key, after_s, max_tokens=10), 0, tokens)
    assert refused(key, after_s=30, max_tokens=100).headers["Retry-After"] == "40", "when the first two have left"
    assert refused(key, after_s=60, max_tokens=100).headers["Retry-After"] == "10"
    begin(key, after_s=70, max_tokens=100)


@pytest.mark.parametrize("most", [{"requests_per_minute": 4}, {"tokens_per_minute": 400}])
def test_there_is_room_when_retry_after_says_so_and_not_a_second_before(key: ApiKey, most: dict[str, int]) -> None:
    limit(key, **most)
    chance, at_s = random.Random(7), 0.0
    for _ in range(8):
        at_s += chance.choice([0.0, 0.4, 3.0, 11.7])
        tokens = chance.choice([20, 90, 150])
        try:
            chat = begin(key, at_s, max_tokens=tokens)
        except ApiError as error:
            wait_s = int(error.headers["Retry-After"])
            assert wait_s <= 1 or refused(key, at_s + wait_s - 1, max_tokens=tokens).status == 429
            at_s += wait_s
            chat = begin(key, at_s, max_tokens=tokens)
        end(chat, 10, tokens)


def test_choices_are_one_request_with_one_prompt(key: ApiKey) -> None:
    limit(key, requests_per_minute=9, max_concurrent=9, tokens_per_minute=900)
    first = ChatSession.objects.get(pk=begin(key).session_pk)
    fields = {"model": first.model, "api_key": key, "seed": 1, "started": NOW, "last_news": NOW}
    fields |= {"completion_id": first.completion_id, "reserved_tokens": 50}
    second = ChatSession.objects.create(session_id="a" * 32, choice=1, **fields)
    used = {one.limit.name: one.used for one in metering.standings(key, NOW)}
    assert used == {"requests_per_minute": 1, "max_concurrent": 1, "tokens_per_minute": first.reserved_tokens + 50}
    for session in (first, second):
        session.state, session.ended, session.prompt_tokens, session.completion_tokens = "done", NOW, 7, 3
        session.save()
    used = {one.limit.name: one.used for one in metering.standings(key, NOW)}
    assert used == {"requests_per_minute": 1, "max_concurrent": 0, "tokens_per_minute": 7 + 3 + 3}


def test_requests_at_the_same_time_are_counted_until_they_end(key: ApiKey) -> None:
    limit(key, max_concurrent=2)
    chat, _ = begin(key), begin(key)
    error = refused(key)
    assert (error.status, error.code, error.headers["Retry-After"]) == (429, "rate_limit_exceeded", "2")
    assert "2 requests at the same time" in error.message
    end(chat, 1, 1, ChatSession.State.CANCELLED)
    begin(key)


def test_sessions_whose_process_died_hold_no_room(key: ApiKey) -> None:
    limit(key, max_concurrent=1, tokens_per_minute=300, tokens_per_day=300)
    begin(key, max_tokens=200)
    refused(key, after_s=1, max_tokens=200)
    begin(key, after_s=LOST_AFTER.seconds, max_tokens=200)


def test_a_day_is_one_of_utc_and_its_tokens_are_those_of_usage_and_of_who_runs(key: ApiKey) -> None:
    limit(key, tokens_per_day=300)
    end(begin(key, max_tokens=100), 50, 100)
    running = begin(key, after_s=61, max_tokens=70)
    error = refused(key, after_s=75, max_tokens=100)
    assert error.headers["Retry-After"] == "2", "its room comes when the running one ends"
    end(running, 20, 70)
    midnight = NOW.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    left_s = (midnight - NOW).total_seconds()
    error = refused(key, after_s=left_s - 50, max_tokens=100)
    assert (error.headers["Retry-After"], error.headers["x-ratelimit-remaining-tokens"]) == ("50", "60")
    begin(key, after_s=left_s, max_tokens=100)


def test_of_two_full_limits_the_one_that_is_full_longer_is_told(key: ApiKey) -> None:
    limit(key, requests_per_minute=1, max_concurrent=1)
    begin(key)
    error = refused(key, after_s=10)
    assert (error.headers["Retry-After"], "1 request per minute" in error.message) == ("50", True)


def test_what_never_fits_is_told_so_at_once(key: ApiKey) -> None:
    limit(key, tokens_per_minute=100, requests_per_minute=5)
    error = refused(key, max_tokens=100)
    assert (error.status, error.param) == (400, "max_tokens")
    begin(key, max_tokens=40)


def test_the_limits_come_before_the_route_and_the_models_before_the_limits(key: ApiKey) -> None:
    limit(key, requests_per_minute=1)
    begin(key)
    Node.objects.update(status=Node.Status.REVOKED)
    assert refused(key).code == "rate_limit_exceeded"
    assert refused(key, model="nobody").code == "model_not_found"
    assert refused(key, after_s=60).code == "no_route"


def test_a_request_that_no_node_could_serve_counts_for_nothing(key: ApiKey) -> None:
    limit(key, requests_per_minute=1)
    Node.objects.update(duty=Node.Duty.PAUSED)
    assert refused(key).code == "no_route"
    Node.objects.update(duty=Node.Duty.WORKS)
    begin(key)


def test_limits_that_were_changed_meanwhile_hold(key: ApiKey) -> None:
    limit(key, requests_per_minute=5)
    ApiKey.objects.update(max_concurrent=0)
    assert "has 0 requests at the same time in all" in refused(key).message
    ApiKey.objects.filter(pk=key.pk).delete()
    assert "was deleted" in refused(key).message


def test_a_key_asks_only_the_models_that_it_names(key: ApiKey) -> None:
    other = LanguageModel.objects.create(name="other")
    begin(key)
    key.allowed_models.add(other)
    assert [model.name for model in LanguageModel.objects.for_key(key.pk)] == ["other"]
    messages = {refused(key, model=name).message.replace(name, "…") for name in ("tiny", "none")}
    assert messages == {
        "The model '…' does not exist here, or this API key may not ask it. "
        "GET /v1/models lists those that can be asked."
    }
    key.allowed_models.add(LanguageModel.objects.get(name="tiny"))
    begin(key)


def test_a_session_counts_on_the_day_on_which_it_began(key: ApiKey) -> None:
    limit(key, tokens_per_day=300)
    late = NOW.astimezone(UTC).replace(hour=23, minute=59, second=59) - NOW
    chat = begin(key, after_s=late.total_seconds(), max_tokens=200)
    begin(key, after_s=late.total_seconds() + 5, max_tokens=200)
    end(chat, 10, 200)
    assert [(row.day, row.completion_tokens) for row in Usage.objects.all()] == [(chat.started.date(), 200)]
