from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from tracker.models import ApiKey, JoinToken, LanguageModel, Usage
from tracker.models.keys import find_by_credential

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_a_new_api_key_is_printed_and_nothing_else() -> None:
    printed = run("createapikey", "for me")
    assert printed.count("\n") == 1
    key = find_by_credential(ApiKey.objects.all(), printed.strip())
    assert key
    assert key.label == "for me"


def test_an_api_key_is_made_with_its_limits_and_models() -> None:
    for name in ("a", "b", "c"):
        LanguageModel.objects.create(name=name)
    limits = ["--requests-per-minute", "60", "--tokens-per-minute", "9000", "--tokens-per-day", "100000"]
    run("createapikey", "x", "--model", "a", "--model", "b", *limits, "--max-concurrent", "2", "--expires", "7d")
    key = ApiKey.objects.get()
    assert list(key.limits().values()) == [60, 9000, 100000, 2]
    assert [model.name for model in LanguageModel.objects.for_key(key.pk)] == ["a", "b"]
    assert key.expires is not None
    assert timedelta(days=6) < key.expires - timezone.now() <= timedelta(days=7)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nobody"], "There is no model 'nobody' here; there are: tiny"),
        (["--tokens-per-day", "0"], "must be a whole number from 1"),
        (["--max-concurrent", "many"], "must be a whole number from 1"),
        (["--expires", "soon"], "must be like 30m"),
        (["--expires", "99999999d"], "is too long"),
    ],
)
def test_a_wrong_api_key_is_refused(arguments: list[str], said: str) -> None:
    LanguageModel.objects.create(name="tiny")
    with pytest.raises(CommandError, match=said):
        run("createapikey", "x", *arguments)
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("label", ["", " ", "x" * 101])
def test_a_label_that_says_nothing_or_is_too_long_is_refused(label: str) -> None:
    with pytest.raises(CommandError, match="must have 1 to 100 characters"):
        run("createapikey", label)


def test_api_keys_are_listed_with_what_they_have_used() -> None:
    assert "no API key" in run("apikeys")
    printed = run("createapikey", "alice", "--requests-per-minute", "60")
    key = ApiKey.objects.get()
    Usage.objects.create(api_key=key, day=timezone.now().date(), model_name="a", requests=1, prompt_tokens=5)
    assert run("apikeys") == (
        f"{key.key_id}  alice: good; limits: 60 requests per minute; models: all; used: 1 request, 5 tokens\n"
    )
    assert printed.strip().partition(".")[2] not in run("apikeys")


def test_an_api_key_is_revoked_by_its_id() -> None:
    printed = run("createapikey", "alice").strip()
    with pytest.raises(CommandError, match="There is no API key 'key_0'"):
        run("apikeys", "--revoke", "key_0")
    run("apikeys", "--revoke", printed.partition(".")[0])
    assert ApiKey.objects.get().revoked
    assert "this API key was revoked" in run("apikeys")


def test_a_new_join_token_is_printed_and_nothing_else() -> None:
    printed = run("createjointoken")
    assert printed.count("\n") == 1
    token = find_by_credential(JoinToken.objects.all(), printed.strip())
    assert token
    assert (token.uses_left, token.needs_approval, token.label) == (None, False, "")
    assert abs(token.expires - timezone.now() - timedelta(hours=24)) < timedelta(minutes=1)


def test_a_join_token_is_made_as_asked() -> None:
    run("createjointoken", "--needs-approval", "--uses", "3", "--expires", "30m", "--label", "office")
    token = JoinToken.objects.get()
    assert (token.uses_left, token.needs_approval, token.label) == (3, True, "office")
    assert token.expires is not None
    assert timedelta(minutes=29) < token.expires - timezone.now() <= timedelta(minutes=30)


def test_a_join_token_may_never_expire() -> None:
    run("createjointoken", "--expires", "never")
    assert JoinToken.objects.get().expires is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--expires", "soon"], "must be like 30m, 24h, 7d, or never"),
        (["--expires", "0h"], "must be like"),
        (["--expires", "-1h"], "expected one argument"),
        (["--uses", "0"], "invalid number of uses"),
        (["--uses", "many"], "invalid number of uses"),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_ones(arguments: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        run("createjointoken", *arguments)
    assert not JoinToken.objects.exists()


def test_a_model_is_made_and_changed() -> None:
    assert run("languagemodel", "tiny", "--wire-dtype", "float32", "--prefill-chunk", "8").count("\n") == 1
    run("languagemodel", "tiny", "--context-length", "99")
    model = LanguageModel.objects.get()
    assert (model.wire_dtype, model.prefill_chunk_tokens, model.context_length) == ("float32", 8, 99)


@pytest.mark.parametrize(
    "arguments", [["a b"], [""], ["x" * 201], ["tiny", "--prefill-chunk", "0"], ["tiny", "--context-length", "-1"]]
)
def test_a_wrong_model_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        run("languagemodel", *arguments)
    assert not LanguageModel.objects.exists()
