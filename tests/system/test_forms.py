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
from pydantic import BaseModel, Field

from tests.lab.site import Site

MODEL = "smollm-formed"
ANIMALS = ["cat", "dog", "owl", "fox", "bee", "cow", "elk", "hen", "ant", "bat"]
PROMPTS = [
    *(f"Describe the {animal}." for animal in ANIMALS),
    *(f"What do you know about the {animal}?" for animal in ANIMALS),
]
NUM_TOKENS = 300
PARALLEL = 5


class Place(BaseModel):
    zone: Literal["polar", "temperate", "tropical"]
    altitude_m: int = Field(ge=0, le=8000)


class Animal(BaseModel):
    name: str = Field(max_length=12)
    diet: Literal["plants", "animals", "both"]
    weight_kg: float = Field(ge=0, le=9000)
    num_legs: int = Field(ge=0, le=8)
    home: Place


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
    def answer(prompt: str) -> Any:
        return client.chat.completions.parse(**asked(prompt), response_format=Animal).choices[0]

    with ThreadPoolExecutor(PARALLEL) as pool:
        choices = list(pool.map(answer, PROMPTS))
    assert [choice.finish_reason for choice in choices] == ["stop"] * 20
    for choice in choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        assert isinstance(choice.message.parsed, Animal)
    assert len({choice.message.content for choice in choices}) > 10


def test_one_that_max_tokens_cuts_off_is_not_mended(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
    fields = asked(PROMPTS[0], response_format=form)
    whole, cut = (client.chat.completions.create(**fields | {"max_tokens": most}) for most in (NUM_TOKENS, 9))
    text = cut.choices[0].message.content or ""
    assert cut.choices[0].finish_reason == "length"
    assert (whole.choices[0].message.content or "").startswith(text)
    with pytest.raises(ValueError):
        json.loads(text)


def test_json_without_a_schema_is_an_object(client: openai.OpenAI) -> None:
    fields = asked('Write {"a": 1} as JSON.', response_format={"type": "json_object"}, max_tokens=60)
    choice = client.chat.completions.create(**fields).choices[0]
    assert (choice.message.content or "").startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_comes_back_streamed_as_it_comes_whole(client: openai.OpenAI, choice: Any) -> None:
    fields = asked("What is the weather in Oslo?", tools=[TIME, WEATHER], tool_choice=choice, temperature=0)
    fields |= {"parallel_tool_calls": False}
    whole = client.chat.completions.create(**fields).choices[0]
    with client.chat.completions.stream(**fields) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        streamed = stream.get_final_completion().choices[0]
    for answer in (whole, streamed):
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    [call], [again] = whole.message.tool_calls or [], streamed.message.tool_calls or []
    assert call.type == again.type == "function"
    assert call.function.name == again.function.name in {"get_weather", "get_time"}
    assert call.function.arguments == again.function.arguments == done[0].arguments
    parameters = {one["function"]["name"]: one["function"]["parameters"] for one in (WEATHER, TIME)}
    jsonschema.validate(json.loads(call.function.arguments), parameters[call.function.name])
    if choice is NAMED:
        assert call.function.name == "get_weather"


def test_what_came_of_a_call_is_answered_in_words(client: openai.OpenAI) -> None:
    fields = asked("What is the weather in Oslo?", tools=[WEATHER], tool_choice=NAMED)
    message = client.chat.completions.create(**fields).choices[0].message
    said = [*fields["messages"], message.model_dump(exclude_none=True)]
    said += [{"role": "tool", "tool_call_id": call.id, "content": "Snow, -3 C"} for call in message.tool_calls or []]
    follow_up = asked("", messages=said, tools=[WEATHER], tool_choice="none", max_tokens=12)
    choice = client.chat.completions.create(**follow_up).choices[0]
    assert choice.message.content
    assert choice.message.tool_calls is None


def test_with_tools_that_may_be_called_text_is_an_answer_too(client: openai.OpenAI) -> None:
    fields = asked("Say hello.", tools=[WEATHER], max_tokens=40, temperature=0)
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason in {"stop", "length", "tool_calls"}
    assert bool(whole.message.tool_calls) == (whole.finish_reason == "tool_calls")
    assert whole.message.content or whole.message.tool_calls


def test_a_schema_that_can_not_be_kept_is_refused_before_the_stream(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "not": {}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked("Hi", response_format=form, stream=True))
    assert (refused.value.param or "").startswith("response_format.json_schema.schema")
