"""What is asked while a mesh is disturbed, and whether the answer is the undisturbed one, whole, once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import requests

SHORT = 10  # what is told whole where it differs
END_OF_TEXT = "2"  # of the tests' tokenizer; banned, so that each answer has the length that was asked for


@dataclass(frozen=True)
class Question:
    prompt: str
    is_chat: bool
    parameters: dict[str, Any]

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, model: str, *, streamed: bool) -> dict[str, Any]:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": self.prompt}]}
        body = {"model": model, "stream": streamed, "meshnet": {"trace": True}, "logit_bias": {END_OF_TEXT: -100}}
        body |= asked if self.is_chat else {"prompt": self.prompt}
        return body | ({"stream_options": {"include_usage": True}} if streamed else {}) | self.parameters


SAMPLED = {"temperature": 0.9, "top_p": 0.95}
QUESTIONS = [
    Question("the quick brown fox", True, {"temperature": 0, "max_tokens": 150}),
    Question("hello world", True, {**SAMPLED, "seed": 11, "max_tokens": 250}),
    Question("what is the lazy dog? " * 20, True, {"temperature": 0, "max_tokens": 100}),
    Question("a list of the words of a long story: " * 30, False, {**SAMPLED, "seed": 12, "max_tokens": 150}),
    Question("jumps over", False, {"temperature": 0, "frequency_penalty": 0.7, "max_tokens": 200}),
    Question("漢字 é 한국어", True, {**SAMPLED, "seed": 13, "presence_penalty": 0.5, "max_tokens": 120}),
    Question("is it home?", True, {"temperature": 0.7, "seed": 14, "max_tokens": 40}),
    Question("user assistant system", False, {"temperature": 0, "max_tokens": 400}),
]


@dataclass
class Told:
    """What one asking brought. `error`: the code of the one that ended it. `broken`: what no answer may be."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    error: str = ""
    message: str = ""
    broken: str = ""
    hung: bool = False
    took_s: float = 0.0

    def compare(self, expected: Told) -> str:
        """What is wrong with it, as far as it came, in words; "" when nothing is."""
        if self.broken:
            return self.broken
        if self.error or self.hung:
            is_part = expected.text.startswith(self.text) and expected.ids[: len(self.ids)] == self.ids
            return "" if is_part else "what came before its end isn't how the answer begins"
        for name in ("text", "ids", "finish_reason", "usage"):
            if getattr(self, name) != getattr(expected, name):
                return f"{name}: {_difference(getattr(self, name), getattr(expected, name))}"
        return ""


def ask(
    url: str, headers: dict[str, str], model: str, question: Question, *, streamed: bool, limit_s: float = 60
) -> Told:
    """Asks to the end, but no longer than `limit_s`."""
    told, began = Told(), time.monotonic()
    body = question.body(model, streamed=streamed)
    try:
        with requests.post(url + question.path, json=body, headers=headers, stream=True, timeout=limit_s) as response:
            if response.status_code != 200:
                _take_error(told, response.json()["error"])
            elif streamed:
                take_stream(told, _events(told, response, began + limit_s))
            else:
                _take_whole(told, response.json())
    except requests.Timeout:
        told.hung = True
    except (requests.RequestException, ValueError, KeyError) as error:
        told.broken = told.broken or f"no whole answer: {error!r}"
    told.took_s = time.monotonic() - began
    return told


def _events(told: Told, response: requests.Response, until: float) -> Iterator[dict[str, Any]]:
    """Up to [DONE], which must come. Comments and empty lines come each second: time is looked at there, too."""
    response.encoding = "utf-8"
    for line in response.iter_lines(decode_unicode=True):
        if line == "data: [DONE]":
            return
        if time.monotonic() > until:
            told.hung = True
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    told.broken = "the stream ended without [DONE]"


def take_stream(told: Told, events: Iterator[dict[str, Any]]) -> None:
    seen: Counter[str] = Counter()
    for event in events:
        if told.error:
            told.broken = "something follows the error"
        if "error" in event:
            _take_error(told, event["error"])
        told.ids += event.get("meshnet", {}).get("ids", [])
        if event.get("usage"):
            seen["usage"] += 1
            told.usage = event["usage"]
        for choice in event.get("choices", []):
            if told.finish_reason:
                told.broken = "text follows the finish_reason"
            delta = choice.get("delta", choice)
            seen["role"] += "role" in delta
            told.text += delta.get("content") or delta.get("text") or ""
            told.finish_reason = choice.get("finish_reason") or told.finish_reason
    twice = [name for name, number in seen.items() if number > 1]
    told.broken = told.broken or (f"{' and '.join(twice)} came more than once" if twice else "")


def _take_whole(told: Told, answer: dict[str, Any]) -> None:
    [choice] = answer["choices"]
    told.text = choice["message"]["content"] if "message" in choice else choice["text"]
    told.ids, told.usage = answer["meshnet"]["ids"], answer["usage"]
    told.finish_reason = choice["finish_reason"]


def _take_error(told: Told, error: dict[str, Any]) -> None:
    told.error, told.message = error["code"] or error["type"], error["message"]


def _difference(told: Any, expected: Any) -> str:
    if len(expected) < SHORT:
        return f"{told!r} instead of {expected!r}"
    same = 0
    while same < min(len(told), len(expected)) and told[same] == expected[same]:
        same += 1
    around = slice(max(0, same - 3), same + 8)
    lengths = f"{len(told)} long instead of {len(expected)}"
    return f"other from {same} on, {lengths}: …{told[around]!r}… instead of …{expected[around]!r}…"
