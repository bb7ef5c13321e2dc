"""Every parameter of the OpenAI API's requests: honoured, accepted while it asks for nothing, or refused by name.

A parameter that is read and not applied would be a wrong answer. So each is in one of three tables: honoured; a label
of the client's, which changes no answer; or not honoured yet, with the values that change nothing. Any other value, and
any other name, is an error that says which.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tracker.errors import ApiError, writable

HONOURED = frozenset(
    {
        "model",
        "n",
        "max_tokens",
        "temperature",
        "top_p",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "logprobs",
        "stop",
        "seed",
        "stream",
        "stream_options",
        "meshnet",
    }
)
CHAT_HONOURED = HONOURED | {"messages", "max_completion_tokens", "top_logprobs"}
COMPLETION_HONOURED = HONOURED | {"prompt"}

# What other servers of this API take beside OpenAI's, and this one in an object of its own.
EXTRAS = frozenset({"top_k", "min_p", "repetition_penalty"})

# Text that says something about the client and nothing about the answer.
LABELS = frozenset({"user"})
CHAT_LABELS = LABELS | {"safety_identifier", "prompt_cache_key"}

# The values, beside null, that ask for nothing.
CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),  # of no functions
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),  # of no tools
    "prediction": (),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {"best_of": (1,), "echo": (False,), "suffix": ("",)}

# In a message, what a client sends along when it repeats an answer of ours.
MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_calls": ([],),
}


@dataclass(frozen=True, slots=True)
class Table:
    honoured: frozenset[str]
    labels: frozenset[str]
    neutral: dict[str, tuple[Any, ...]]


CHAT = Table(CHAT_HONOURED, CHAT_LABELS, CHAT_NEUTRAL)
COMPLETION = Table(COMPLETION_HONOURED, LABELS, COMPLETION_NEUTRAL)


def honoured_only(fields: dict[str, Any], table: Table) -> dict[str, Any]:
    """The honoured parameters; the others are checked against the tables and dropped. Raises ApiError 400."""
    honoured, labels, neutral = table.honoured, table.labels, table.neutral
    for name, value in fields.items():
        if name in honoured or (value is None and (name in neutral or name in labels)):
            continue
        if name in labels:
            if not isinstance(value, str):
                raise ApiError(400, f"{name}: must be a string", code="invalid_type", param=name)
        elif name not in neutral:
            hint = f" Send it as meshnet.{name}." if name in EXTRAS else ""
            message = f"Unknown parameter: '{shown(name)}'.{hint}"
            raise ApiError(400, message, code="unknown_parameter", param=shown(name))
        elif not _is_one_of(value, neutral[name]):
            raise ApiError(400, _not_honoured(name, neutral[name]), code="unsupported_parameter", param=name)
    return {name: value for name, value in fields.items() if name in honoured}


def plain_message(index: int, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    for name, value in message.items():
        if value is not None and name in MESSAGE_NEUTRAL and not _is_one_of(value, MESSAGE_NEUTRAL[name]):
            param = f"messages[{index}].{name}"
            raise ApiError(400, _not_honoured(param, MESSAGE_NEUTRAL[name]), code="unsupported_parameter", param=param)
    return {name: value for name, value in message.items() if name not in MESSAGE_NEUTRAL}


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Equal, and for booleans of the same type: 1 is not true."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _not_honoured(param: str, neutral: tuple[Any, ...]) -> str:
    or_send = "".join(f" or send {json.dumps(value)}" for value in neutral)
    return f"{param} isn't honoured here yet: leave it out{or_send}."


def shown(name: str) -> str:
    """A name of the client's, fit for an answer: lone surrogates have no UTF-8."""
    return writable(name[:60])
