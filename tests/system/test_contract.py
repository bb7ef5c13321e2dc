"""What docs/api.md promises, over a real mesh: each honoured parameter acts and doesn't stick, and the OpenAPI document
that is served describes what is answered. Random weights do: only what differs between two answers matters here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.lab.site import Site
from tests.tracker.test_openapi import validator
from tracker import parameters

MODEL = "tiny-contract"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
EOS = "2"
HOT = {"temperature": 1.5, "seed": 2}
ZONES = {"type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}}, "required": ["zone"]}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": ZONES | {"additionalProperties": False}}}]
COLOUR = {"type": "json_schema", "json_schema": {"name": "colour", "schema": {"enum": ["red", "blue"]}}}
SHAPES = {CHAT: ("ChatCompletion", "ChatCompletionChunk"), COMPLETION: ("Completion", "CompletionChunk")}


@pytest.fixture(scope="module")
def served(site: Site, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    link = tmp_path_factory.mktemp("contract") / MODEL
    link.symlink_to(tiny, target_is_directory=True)
    with site.mesh(link, ["0:7"], "--drafts", "off"):
        yield site


@dataclass
class Got:
    """What came: whole, or as the events of a stream."""

    status: int
    whole: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def code(self) -> str:
        return str(self.whole["error"]["code"])

    @property
    def ids(self) -> list[int]:
        return list(self.whole["meshnet"]["ids"])

    @property
    def prompt_ids(self) -> list[int]:
        return list(self.whole["meshnet"]["prompt_ids"])

    @property
    def choice(self) -> dict[str, Any]:
        return dict(self.whole["choices"][0])

    @property
    def text(self) -> str:
        return said(self.choice)


def said(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@dataclass
class Asker:
    """Asks one endpoint, and holds every answer against the document."""

    site: Site
    path: str

    def __call__(self, **fields: Any) -> Got:
        """Greedy, of 12 tokens and with the trace, unless `fields` say otherwise."""
        body: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12, "meshnet": {"trace": True}}
        body |= {"prompt": "hello"} if self.path == COMPLETION else {"messages": [{"role": "user", "content": "hello"}]}
        fields = {name: value for name, value in (body | fields).items() if value is not None}
        answer = self.site.post(self.path, fields, stream=True)
        check_headers(answer)
        whole, chunk = SHAPES[self.path]
        if answer.headers["Content-Type"].startswith("text/event-stream"):
            events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith(b"data: {")]
            for event in events:
                validator(chunk).validate(event)
            return Got(answer.status_code, {}, events)
        validator(whole if answer.status_code == 200 else "Error").validate(answer.json())
        return Got(answer.status_code, answer.json())

    def story(self, got: Got) -> dict[str, Any]:
        return self.site.story(got.whole["id"])


def check_headers(answer: requests.Response) -> None:
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])
    assert re.search(r"total;dur=[0-9.]+$", answer.headers["Server-Timing"])


# For each honoured parameter, whether it does what docs/api.md says. `plain` is what comes without it.
Acts = Callable[[Asker, Got], bool]


def greedy_though_hot(extra: dict[str, Any]) -> Acts:
    return lambda ask, plain: ask(**HOT).ids != plain.ids == ask(**HOT, **extra).ids


def differs(**fields: Any) -> Acts:
    return lambda ask, plain: ask(**fields).ids != plain.ids


def limits(name: str) -> Acts:
    return lambda ask, plain: ask(**{"max_tokens": None, name: 3}).ids == plain.ids[:3]


def is_told(name: str, value: Any, shown: str) -> Acts:
    return lambda ask, plain: ask.story(ask(**{name: value}))[shown] == value != ask.story(plain)[shown]


def seed_draws_the_same_again(ask: Asker, plain: Got) -> bool:
    first, other = ask(temperature=1.5, seed=7), ask(temperature=1.5, seed=8)
    return first.ids == ask(temperature=1.5, seed=7).ids != other.ids


def stop_ends_before_the_first(ask: Asker, plain: Got) -> bool:
    letter = next(letter for letter in plain.text if "!" <= letter <= "~")
    cut = ask(stop=["no such text", letter])
    return cut.text == plain.text[: plain.text.index(letter)] and cut.choice["finish_reason"] == "stop"


def choices_have_seeds_one_after_the_other(ask: Asker, plain: Got) -> bool:
    both = ask(temperature=1.5, seed=5, n=2, meshnet=None).whole
    alone = [ask(temperature=1.5, seed=seed).text for seed in (5, 6)]
    return [said(choice) for choice in both["choices"]] == alone and alone[0] != alone[1]


def stream_is_the_text_in_pieces(ask: Asker, plain: Got) -> bool:
    events = ask(stream=True).events
    pieces = [choice.get("text", choice.get("delta", {}).get("content")) for e in events for choice in e["choices"]]
    return len(events) > 2 and "".join(piece or "" for piece in pieces) == plain.text


def usage_is_told_last(ask: Asker, plain: Got) -> bool:
    events = ask(stream=True, stream_options={"include_usage": True}).events
    return events[-1]["usage"] == plain.whole["usage"] and "usage" not in ask(stream=True).events[-1]


def logprobs_are_told(ask: Asker, plain: Got) -> bool:
    told = ask(logprobs=True if ask.path == CHAT else 2).choice["logprobs"]
    return len(told["content"] if ask.path == CHAT else told["tokens"]) == 12 and plain.choice["logprobs"] is None


def so_many_top_logprobs(ask: Asker, plain: Got) -> bool:
    content = ask(logprobs=True, top_logprobs=3).choice["logprobs"]["content"]
    return all(len(one["top_logprobs"]) == 3 for one in content)


def a_call_of_the_tool(ask: Asker, plain: Got) -> bool:
    choice = ask(tools=TOOLS, tool_choice="required", max_tokens=200).choice
    [call] = choice["message"]["tool_calls"]
    zone = json.loads(call["function"]["arguments"])["zone"]
    return call["function"]["name"] == "now" and zone in ("utc", "cet") and choice["finish_reason"] == "tool_calls"


def one_call_though_it_would_go_on(ask: Asker, plain: Got) -> bool:
    asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 150, "logit_bias": {EOS: -100}}
    several, one = ask(**asked).choice["message"], ask(**asked, parallel_tool_calls=False).choice["message"]
    return len(several["tool_calls"]) > 1 == len(one["tool_calls"])


def deadline_ends_it(ask: Asker, plain: Got) -> bool:
    late = ask(max_tokens=2000, logit_bias={EOS: -100}, meshnet={"deadline_s": 0.1})
    return (late.status, late.code) == (504, "deadline_exceeded")


BOTH: dict[str, Acts] = {
    "model": lambda ask, plain: ask(model="nobody-has-it").code == "model_not_found",
    "temperature": differs(temperature=1.5),
    "top_p": greedy_though_hot({"top_p": 1e-6}),
    "frequency_penalty": differs(frequency_penalty=2, max_tokens=40),
    "presence_penalty": differs(presence_penalty=2, max_tokens=40),
    "logit_bias": lambda ask, plain: ask(logit_bias={str(plain.ids[0]): -100}).ids[0] != plain.ids[0],
    "stop": stop_ends_before_the_first,
    "seed": seed_draws_the_same_again,
    "stream": stream_is_the_text_in_pieces,
    "stream_options.include_usage": usage_is_told_last,
    "user": is_told("user", "alice", "user"),
    "n": choices_have_seeds_one_after_the_other,
    "max_tokens": limits("max_tokens"),
    "logprobs": logprobs_are_told,
    "meshnet.trace": lambda ask, plain: "meshnet" in plain.whole and "meshnet" not in ask(meshnet={}).whole,
    "meshnet.top_k": greedy_though_hot({"meshnet": {"trace": True, "top_k": 1}}),
    "meshnet.min_p": greedy_though_hot({"meshnet": {"trace": True, "min_p": 1}}),
    "meshnet.repetition_penalty": differs(meshnet={"trace": True, "repetition_penalty": 10}, max_tokens=40),
    "meshnet.deadline_s": deadline_ends_it,
}
ACTS: dict[str, dict[str, Acts]] = {
    CHAT: BOTH
    | {
        "messages": lambda ask, plain: (
            ask(messages=[{"role": "user", "content": "fox"}]).prompt_ids != plain.prompt_ids
        ),
        "max_completion_tokens": limits("max_completion_tokens"),
        "top_logprobs": so_many_top_logprobs,
        "safety_identifier": is_told("safety_identifier", "5f2b", "user"),
        "metadata": is_told("metadata", {"project": "a"}, "metadata"),
        "response_format": lambda ask, plain: json.loads(ask(response_format=COLOUR).text) in ("red", "blue"),
        "tools": lambda ask, plain: len(ask(tools=TOOLS).prompt_ids) > len(plain.prompt_ids),
        "tool_choice": a_call_of_the_tool,
        "parallel_tool_calls": one_call_though_it_would_go_on,
    },
    COMPLETION: BOTH | {"prompt": lambda ask, plain: ask(prompt="fox").prompt_ids != plain.prompt_ids},
}


@pytest.fixture(scope="module")
def plain(served: Site) -> dict[str, Got]:
    """What each endpoint answers when nothing is asked of it."""
    return {path: Asker(served, path)() for path in ACTS}


@pytest.mark.parametrize(("path", "table"), [(CHAT, parameters.CHAT), (COMPLETION, parameters.COMPLETION)])
def test_every_honoured_parameter_is_tried(path: str, table: parameters.Table) -> None:
    own = {"stream_options": parameters.STREAM_OPTIONS, "meshnet": parameters.MESHNET}
    inner = {f"{name}.{row.name}" for name, one in own.items() for row in one.values() if row.is_honoured}
    assert set(ACTS[path]) == inner | {row.name for row in table.values() if row.is_honoured and row.name not in own}


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, acts in ACTS.items() for name in acts])
def test_a_parameter_acts_and_does_not_stick_to_the_next_request(
    served: Site, plain: dict[str, Got], path: str, name: str
) -> None:
    ask = Asker(served, path)
    assert ACTS[path][name](ask, plain[path])
    assert ask().ids == plain[path].ids


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_parameter_that_nobody_knows_is_refused_by_name(served: Site, path: str) -> None:
    refused = Asker(served, path)(best_k=5)
    assert (refused.status, refused.whole["error"]["param"], refused.code) == (400, "best_k", "unknown_parameter")


OPERATIONS = [
    (CHAT, "post"),
    (COMPLETION, "post"),
    ("/v1/models", "get"),
    ("/v1/models/{model}", "get"),
    ("/v1/usage", "get"),
]
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]


def aimed(body: dict[str, Any], *, is_plain: bool) -> None:
    """A request that is as it should be is made one of the model that is there, and of few tokens."""
    body |= {"model": MODEL, "max_tokens": 3}
    body.pop("max_completion_tokens", None)
    if is_plain and "messages" in body:  # what follows from one another in messages no schema says
        body["messages"] = [{"role": "user", "content": "hello"}]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    database=None,
)
@given(
    operation=st.sampled_from(OPERATIONS + OPERATIONS[:2] * 3),
    mode=st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]),
    is_plain=st.booleans(),
    data=st.data(),
)
def test_the_document_that_is_served_describes_what_is_answered(
    served: Site, operation: tuple[str, str], mode: GenerationMode, is_plain: bool, data: st.DataObject
) -> None:
    path, method = operation
    case = data.draw(schema_of(served)[path][method].as_strategy(generation_mode=mode))
    if mode is GenerationMode.POSITIVE and method == "post":
        aimed(case.body, is_plain=is_plain)
    answer = case.call(headers=served.headers)
    is_strict = method == "post" and mode is GenerationMode.NEGATIVE
    case.validate_response(answer, checks=[*CHECKS, *([checks.negative_data_rejection] if is_strict else [])])


_schemas: dict[str, Any] = {}


def schema_of(site: Site) -> Any:
    if site.url not in _schemas:
        _schemas[site.url] = schemathesis.openapi.from_url(f"{site.url}/v1/openapi.json")
    return _schemas[site.url]
