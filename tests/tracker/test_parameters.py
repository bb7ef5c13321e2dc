"""The table of parameters: complete by the types of the official client, and what is not honoured refused by name."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from openai.types import chat as chat_types
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.chat.chat_completion_assistant_message_param import ContentArrayOfContentPart as OfAnswers

from tracker import parameters
from tracker.errors import ApiError
from tracker.parameters import Table, honoured_only

TABLES = {
    "chat": parameters.CHAT,
    "completion": parameters.COMPLETION,
    "stream_options": parameters.STREAM_OPTIONS,
    "message": parameters.MESSAGE,
    "part": parameters.PART,
}
REFUSED = [(place, name) for place, table in TABLES.items() for name, row in table.items() if not row.is_honoured]


def declared(*types: Any) -> set[str]:
    """The parameters that the official client knows of these."""
    return {name for one in types for name in getattr(one, "model_fields", one.__annotations__)}


def refused(fields: dict[str, Any], table: Table) -> ApiError:
    with pytest.raises(ApiError) as error:
        honoured_only(fields, table)
    return error.value


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("chat", declared(chat_create_params.CompletionCreateParamsStreaming) | {"meshnet"}),
        ("completion", declared(completion_create_params.CompletionCreateParamsStreaming) | {"meshnet"}),
        ("stream_options", declared(chat_types.ChatCompletionStreamOptionsParam)),
        ("message", declared(*get_args(chat_types.ChatCompletionMessageParam), chat_types.ChatCompletionMessage)),
        ("part", declared(*get_args(chat_types.ChatCompletionContentPartParam), *get_args(OfAnswers))),
    ],
    ids=list(TABLES),
)
def test_every_parameter_of_the_official_client_has_a_row(place: str, names: set[str]) -> None:
    assert set(TABLES[place]) == names
    assert all(name == row.name for name, row in TABLES[place].items())


@pytest.mark.parametrize(("place", "name"), REFUSED)
def test_what_is_not_honoured_is_refused_by_name_and_says_why(place: str, name: str) -> None:
    row = TABLES[place][name]
    error = refused({name: {"a": ["real", "wish"]}}, TABLES[place])
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    assert f"{name} isn't honoured here: {row.words}." in error.message


@pytest.mark.parametrize(("place", "name"), REFUSED)
def test_a_value_that_asks_for_nothing_is_accepted_and_left_out(place: str, name: str) -> None:
    for value in (None, *TABLES[place][name].neutral):
        assert honoured_only({name: value}, TABLES[place]) == {}


@pytest.mark.parametrize("value", [0, 1, "false", []])
def test_a_near_miss_of_a_neutral_value_is_refused(value: Any) -> None:
    assert refused({"store": value}, parameters.CHAT).param == "store"


def test_a_name_without_a_row_is_refused_by_name() -> None:
    error = refused({"top_k": 5}, parameters.CHAT)
    assert (error.param, error.code) == ("top_k", "unknown_parameter")
    assert "Send it as meshnet.top_k." in error.message
    assert "meshnet" not in refused({"best_k": 5}, parameters.CHAT).message
    assert refused({"\ud800": 1}, parameters.CHAT).param == "?"


def test_what_is_in_something_is_named_with_it() -> None:
    with pytest.raises(ApiError) as error:
        honoured_only({"name": "me"}, parameters.MESSAGE, "messages[0].")
    assert error.value.param == "messages[0].name"
