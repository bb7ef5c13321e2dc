"""The four ways to ask one thing: raw or with the official `openai` package, streamed or at once.

What comes back is the same for all four, so that a case is written once. On the way the raw ones check what packages
hide: which events a stream has, in which order, and what each of them must carry.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.lab import rawhttp
from tests.lab.site import Site

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDPOINTS = (CHAT, COMPLETIONS)
OBJECTS = {CHAT: ("chat.completion", "chat.completion.chunk"), COMPLETIONS: ("text_completion", "text_completion")}


@dataclass
class Got:
    status: int = 200
    error: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    deltas: list[str] = field(default_factory=list)


Way = Callable[[Site, str, dict[str, Any]], Got]


def raw_whole(site: Site, path: str, body: dict[str, Any]) -> Got:
    with rawhttp.ask(site.local_url, path, body, site.headers) as answer:
        content = answer.json()
        assert answer.headers["content-type"].startswith("application/json")
    if answer.status != 200:
        return Got(answer.status, _checked_error(content))
    [choice] = content["choices"]
    assert (content["object"], choice["index"]) == (OBJECTS[path][0], 0)
    assert content["model"] == body["model"]
    return Got(text=text_of(choice, "message"), reason=choice["finish_reason"], usage=content["usage"])


def raw_stream(site: Site, path: str, body: dict[str, Any]) -> Got:
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    with rawhttp.ask(site.local_url, path, asked, site.headers) as answer:
        if answer.status != 200:
            return Got(answer.status, _checked_error(answer.json()))
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = list(_events(answer))
    *said, last = events
    assert {event["object"] for event in events} == {OBJECTS[path][1]}
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert [event["usage"] for event in said] == [None] * len(said), "usage comes once, at the end"
    assert last["choices"] == []
    choices = [event["choices"][0] for event in said]
    assert all(choice["index"] == 0 for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    if path == CHAT:
        assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    deltas = [text_of(choice, "delta") for choice in choices]
    return Got(text="".join(deltas), reason=reasons[-1], usage=last["usage"], deltas=deltas)


def openai_whole(site: Site, path: str, body: dict[str, Any]) -> Got:
    kind: Any = ChatCompletion if path == CHAT else Completion
    try:
        whole = _client(site).post(path.removeprefix("/v1"), cast_to=kind, body=body)
    except openai.APIStatusError as error:
        return _refused(error)
    [choice] = whole.choices
    text = choice.message.content if path == CHAT else choice.text
    return Got(text=text, reason=choice.finish_reason, usage=whole.usage.model_dump(exclude_none=True))


def openai_stream(site: Site, path: str, body: dict[str, Any]) -> Got:
    kind: Any = ChatCompletionChunk if path == CHAT else Completion
    asked, got = body | {"stream": True, "stream_options": {"include_usage": True}}, Got()
    try:
        sent = {"body": asked, "stream": True, "stream_cls": openai.Stream[kind]}
        for chunk in _client(site).post(path.removeprefix("/v1"), cast_to=kind, **sent):
            for choice in chunk.choices:
                got.deltas.append((choice.delta.content if path == CHAT else choice.text) or "")
                got.reason = choice.finish_reason or got.reason
            got.usage = chunk.usage.model_dump(exclude_none=True) if chunk.usage else got.usage
    except openai.APIStatusError as error:
        return _refused(error)
    got.text = "".join(got.deltas)
    return got


RAW: tuple[Way, ...] = (raw_whole, raw_stream)
ALL: tuple[Way, ...] = (*RAW, openai_whole, openai_stream)


@functools.cache  # making one takes a tenth of a second
def _client(site: Site) -> Any:
    return openai.OpenAI(base_url=f"{site.local_url}/v1", api_key=site.api_key, max_retries=0, timeout=60)


def _events(answer: rawhttp.Answer) -> Iterator[dict[str, Any]]:
    """Up to [DONE], after which nothing comes."""
    blocks = [block for block in answer.blocks() if not block.startswith(":")]
    assert blocks[-1] == "data: [DONE]"
    for block in blocks[:-1]:
        assert block.startswith("data: ")
        event = json.loads(block.removeprefix("data: "))
        assert "error" not in event, event
        assert "meshnet" not in event, "nobody has asked for a trace"
        yield event


def text_of(choice: dict[str, Any], part: str) -> str:
    return str((choice[part].get("content") if part in choice else choice["text"]) or "")


def _checked_error(content: dict[str, Any]) -> dict[str, Any]:
    """In OpenAI's shape, whatever it is."""
    assert set(content) == {"error"}
    error: dict[str, Any] = content["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    return error


def _refused(error: openai.APIStatusError) -> Got:
    told = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return Got(error.status_code, told)
