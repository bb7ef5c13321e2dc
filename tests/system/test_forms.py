"""Answers of a given form from a small real model over two nodes, as the official client asks for them: JSON, calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from openai.lib._pydantic import to_strict_json_schema
from openai.types.chat.chat_completion import ChatCompletion, Choice
from pydantic import BaseModel, Field

from tests.lab.site import Site

MODEL = "smollm-formed"
ANIMALS = ["cat", "dog", "owl", "fox", "bee", "cow", "elk", "hen", "ant", "bat"]
PROMPTS = [text % animal for animal in ANIMALS for text in ("Describe the %s.", "What do you know of the %s?")]
NUM_TOKENS = 200
PARALLEL = 6  # a head takes 8 chats at once


class Home(BaseModel):
    zone: Literal["polar", "temperate", "tropical"]
    depth_m: int = Field(ge=0, le=99)


class Animal(BaseModel):
    name: str = Field(max_length=8)
    kg: float = Field(ge=0, le=999, multiple_of=0.25)
    home: Home


SCHEMA = to_strict_json_schema(Animal)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time now.",
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        "strict": True,
    },
}
QUESTION = "What is the weather in Oslo?"
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def pair(site: Site, smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    link = tmp_path_factory.mktemp("formed") / MODEL
    link.symlink_to(smollm, target_is_directory=True)
    with site.mesh(link, ["0:15", "15:30"]):
        yield site


@pytest.fixture(scope="module")
def client(pair: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key=pair.api_key, max_retries=0, timeout=120) as made:
        yield made


def asked(prompt: str, **parameters: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": MODEL, "messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0.8, "seed": 1} | parameters


def test_twenty_of_twenty_answers_satisfy_their_schema(client: openai.OpenAI) -> None:
    def answer(number: int) -> Any:
        fields = asked(PROMPTS[number], seed=number, response_format=Animal)
        return client.chat.completions.parse(**fields).choices[0]

    with ThreadPoolExecutor(PARALLEL) as pool:
        choices = list(pool.map(answer, range(len(PROMPTS))))
    assert [choice.finish_reason for choice in choices] == ["stop"] * 20
    for choice in choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        assert isinstance(choice.message.parsed, Animal)
    assert len({choice.message.content for choice in choices}) > 10


def test_one_that_max_tokens_cuts_off_is_not_mended(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
    choice = client.chat.completions.create(**asked(PROMPTS[0], response_format=form, max_tokens=9)).choices[0]
    assert choice.finish_reason == "length"
    assert (choice.message.content or "").startswith('{"name": "')
    with pytest.raises(ValueError):
        json.loads(choice.message.content or "")


def test_json_without_a_schema_is_an_object(client: openai.OpenAI) -> None:
    fields = asked('Write {"a": 1} as JSON.', response_format={"type": "json_object"}, max_tokens=30)
    choice = client.chat.completions.create(**fields).choices[0]
    assert (choice.message.content or "").startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)


@pytest.fixture(scope="module")
def called(client: openai.OpenAI) -> Choice:
    """Who is asked for the weather and has to ask for it, too."""
    answer: ChatCompletion = client.chat.completions.create(**asked(QUESTION, tools=[TIME, WEATHER], tool_choice=NAMED))
    return answer.choices[0]


def test_a_function_is_called_with_arguments_of_its_schema(called: Choice) -> None:
    assert (called.finish_reason, called.message.content) == ("tool_calls", None)
    for call in called.message.tool_calls or []:
        assert call.type == "function"
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])


def test_a_call_is_streamed_as_it_comes_whole(client: openai.OpenAI, called: Choice) -> None:
    fields = asked(QUESTION, tools=[TIME, WEATHER], tool_choice=NAMED)
    with client.chat.completions.stream(**fields) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        choice = stream.get_final_completion().choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    right = [call.function for call in called.message.tool_calls or [] if call.type == "function"]
    streamed = [call.function for call in choice.message.tool_calls or []]
    assert [(one.name, one.arguments) for one in streamed] == [(one.name, one.arguments) for one in right]
    assert [one.arguments for one in done] == [one.arguments for one in right]


def test_one_of_several_functions_can_be_required(client: openai.OpenAI) -> None:
    fields = asked(QUESTION, tools=[TIME, WEATHER], tool_choice="required", parallel_tool_calls=False)
    [call] = client.chat.completions.create(**fields).choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name in {"get_weather", "get_time"}


def test_what_came_of_a_call_is_answered_in_words(client: openai.OpenAI, called: Choice) -> None:
    said = [*asked(QUESTION)["messages"], called.message.model_dump(exclude_none=True)]
    calls = called.message.tool_calls or []
    said += [{"role": "tool", "tool_call_id": call.id, "content": "Snow, -3 C"} for call in calls]
    fields = asked("", messages=said, tools=[WEATHER], tool_choice="none", max_tokens=8)
    choice = client.chat.completions.create(**fields).choices[0]
    assert choice.message.content
    assert choice.message.tool_calls is None


def test_with_tools_that_may_be_called_text_is_an_answer_too(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**asked("Say hello.", tools=[WEATHER], max_tokens=20)).choices[0]
    assert bool(choice.message.tool_calls) == (choice.finish_reason == "tool_calls")
    assert choice.message.content or choice.message.tool_calls


def test_a_schema_that_can_not_be_kept_is_refused_before_the_stream(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "not": {}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked("Hi", response_format=form, stream=True))
    assert (refused.value.param or "").startswith("response_format.json_schema.schema")
