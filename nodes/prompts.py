"""A chat's messages as the model's own template writes them, with the functions that may be called.

Where the template knows nothing of functions they are described in the system message, calls of earlier turns become
text and their results the user's words: any model that was trained on chats can then be asked for calls.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError

from nodes.markups import OWN, Markup, learned

Message = Mapping[str, Any]

_LONG_IDS = ("call_0123456789abcdefghijkl00", "call_0123456789abcdefghijkl01")  # as this API gives them out
_SHORT_IDS = ("abcdefg00", "abcdefg01")  # the only ones that some templates take
_TEMPLATE_ERRORS = (
    *(TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    RecursionError,  # JSON in JSON in JSON
)
_DESCRIPTION = """\
You can call functions. These are there, each described by one line of JSON:
<tools>
%s
</tools>
To call one, answer with its name and its arguments in this form:
%s"""


class PromptError(ValueError):
    """The messages or the prompt can't be made into tokens: the user's to mend."""


class ChatTemplateMissing(PromptError):
    """The model has no chat template; plain completions work."""


class ChatTemplate:
    """The template of a tokenizer of transformers."""

    def __init__(self, tokenizer: Any, eos_ids: Collection[int]) -> None:
        self._tokenizer, self._eos_ids = tokenizer, eos_ids

    @property
    def markup(self) -> Markup:
        """Of calls."""
        return self._own_markup or OWN

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """With the beginning of the answer. Raises PromptError, ChatTemplateMissing."""
        if not self._is_there():
            hint = "add chat_template.jinja to its folder, or use /v1/completions"
            raise ChatTemplateMissing(f"the model has no chat template; {hint}")
        try:
            # Tokenizes without adding special tokens: a template that writes BOS gives one BOS.
            encoded = self._tokenizer.apply_chat_template(
                *self._asked(messages, tools), add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except UnicodeError as error:
            raise not_text(error) from error
        except _TEMPLATE_ERRORS as error:
            raise PromptError(f"the model's chat template refuses these messages: {error}") from error
        return list(encoded["input_ids"])

    def _asked(self, messages: Sequence[Message], tools: Sequence[Any]) -> tuple[list[Message], list[Any] | None]:
        """Messages and tools that the template knows what to do with."""
        if not tools and not any(_is_of_calls(message) for message in messages):
            return list(messages), None
        if self._own_markup:
            return [self._native(message) for message in messages], list(tools) or None
        in_words = list(_in_words(messages))
        return (self._described(in_words, tools) if tools else in_words), None

    def _native(self, message: Message) -> Message:
        """Templates write arguments as JSON themselves."""
        changed = dict(message)
        if message.get("tool_calls"):
            changed["tool_calls"] = [
                {"id": self._id(call["id"]), "type": "function", "function": _with_object(call["function"])}
                for call in message["tool_calls"]
            ]
        if "tool_call_id" in message:
            changed["tool_call_id"] = self._id(message["tool_call_id"])
        return changed

    def _described(self, messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        """With the functions in the system message, or in the first one where the template takes none of the system."""
        described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = _DESCRIPTION % (described, OWN.written([("name_of_function", '{"argument": "value"}')]))
        is_first_meant = messages and (messages[0]["role"] == "system" or not self._takes_system)
        if is_first_meant:
            first = messages[0]
            return [{**first, "content": f"{first['content']}\n\n{text}" if first["content"] else text}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]

    def _is_there(self) -> bool:
        template = self._tokenizer.chat_template
        return "default" in template if isinstance(template, dict) else bool(template)

    @cached_property
    def _found(self) -> tuple[Markup | None, bool]:
        """(the markup of the template's own, whether it takes but short ids of calls)"""
        special = special_tokens(self._tokenizer)
        ends = [text for text, token_id in special.items() if token_id in self._eos_ids]
        for ids in (_LONG_IDS, _SHORT_IDS) if self._is_there() else ():
            try:
                markup = learned(self._render, special, ids)
            except _TEMPLATE_ERRORS:
                continue
            is_sayable = markup and not any(end in markup.begin + markup.between for end in ends)
            return markup if is_sayable else None, ids is _SHORT_IDS
        return None, False

    @property
    def _own_markup(self) -> Markup | None:
        return self._found[0]

    def _id(self, call_id: str) -> str:
        return hashlib.sha256(call_id.encode()).hexdigest()[: len(_SHORT_IDS[0])] if self._found[1] else call_id

    @cached_property
    def _takes_system(self) -> bool:
        try:
            text = self._render(
                [{"role": "system", "content": "\u00a7rules\u00a7"}, {"role": "user", "content": "a"}], None
            )
        except _TEMPLATE_ERRORS:
            return False
        return "\u00a7rules\u00a7" in text

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> str:
        text: str = self._tokenizer.apply_chat_template(list(messages), tools, tokenize=False)
        return text


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Of a tokenizer of transformers, by their text."""
    return {str(token): token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}


def not_text(error: Exception) -> PromptError:
    return PromptError(f"this isn't text that can be tokenized: {error}")


def _is_of_calls(message: Message) -> bool:
    return bool(message.get("tool_calls")) or message["role"] == "tool"


def _with_object(function: Mapping[str, Any]) -> dict[str, Any]:
    """With its arguments read, unless a model was cut off in the middle of them."""
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    return {**function, "arguments": arguments if isinstance(arguments, dict) else function["arguments"]}


def _in_words(messages: Sequence[Message]) -> Iterator[Message]:
    """Results that follow each other are one message: many templates want roles to take turns."""
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        yield _calls_in_words(message) if message.get("tool_calls") else message
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _calls_in_words(message: Message) -> Message:
    functions = [call["function"] for call in message["tool_calls"]]
    text = OWN.written([(function["name"], function["arguments"]) for function in functions])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": content}
