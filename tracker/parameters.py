"""Every parameter of the OpenAI API's requests: honoured, or refused by name; docs/api.md shows the same table.

A parameter that is read and not applied would be a wrong answer. So each has a row here that says what it does, or why
it can't be had. What isn't honoured may still be sent while it asks for nothing: null, and the row's neutral values.
Any other value, and any name without a row, is an error that says which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracker.errors import ApiError, writable


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    is_honoured: bool
    words: str  # what it does, or why it is refused; for docs/api.md, the OpenAPI document and errors
    neutral: tuple[Any, ...] = ()  # values, beside null, that ask for nothing


Table = Mapping[str, Parameter]


def _honoured(name: str, words: str) -> Parameter:
    return Parameter(name, True, words)


def _refused(name: str, words: str, *neutral: Any) -> Parameter:
    return Parameter(name, False, words, neutral)


def _table(*rows: Parameter) -> Table:
    return {row.name: row for row in rows}


_BOTH = (
    _honoured("model", "the name of a model, as `GET /v1/models` lists it"),
    _honoured("temperature", "0 to 2; 1 if absent; at 0 the most probable token is always taken"),
    _honoured("top_p", "0 to 1; 1 if absent: only the most probable tokens that make up this share"),
    _honoured("frequency_penalty", "-2 to 2: makes a token less probable each time it has come"),
    _honoured("presence_penalty", "-2 to 2: makes a token less probable once it has come"),
    _honoured("logit_bias", "token ids with -100 to 100, up to 300 of them: added to their logits"),
    _honoured("stop", "a text or up to 4, of 1 to 1000 characters: the answer ends before the first that comes"),
    _honoured("seed", "a whole number of 64 bits: the same seed gives the same choice among tokens"),
    _honoured(
        "n", "1 to 4; 1 if absent: choices that are made side by side, the first with the seed, the next with seed + 1"
    ),
    _honoured("stream", "true: server-sent events while the answer is made"),
    _honoured("stream_options", "only with stream: true; its own parameters are below"),
    _honoured("user", "whom you ask for, up to 512 characters: kept with the record of the request"),
    _honoured("meshnet", "what only this API has; its own parameters are below"),
)

CHAT = _table(
    *_BOTH,
    _honoured("messages", "the chat so far: texts with their roles"),
    _honoured("max_completion_tokens", "1 or more; as many as fit, up to 1024, if absent: most tokens of the answer"),
    _honoured("max_tokens", "the older name of max_completion_tokens; one of the two"),
    _honoured("logprobs", "true: the log probability of each token of the answer"),
    _honoured("top_logprobs", "0 to 20, with logprobs: true: that many of the most probable tokens in each place"),
    _honoured(
        "metadata",
        "an object of up to 16 texts of up to 512 characters, named by up to 64: kept with the record of the request",
    ),
    _honoured("safety_identifier", "the newer name of user, up to 128 characters; one of the two"),
    _honoured("response_format", "`json_object`, or `json_schema` with a schema: the answer is JSON that satisfies it"),
    _honoured("tools", "up to 128 functions that the model may call; see [tools](tools.md)"),
    _honoured("tool_choice", "`none`, `auto`, `required`, or the name of the function that must be called"),
    _honoured("parallel_tool_calls", "false: at most one call in an answer"),
    _refused("functions", "use tools", []),
    _refused("function_call", "use tool_choice", "none", "auto"),
    _refused("audio", "answers are text"),
    _refused("modalities", "answers are text", ["text"]),
    _refused("moderation", "no model that judges texts runs here"),
    _refused("prediction", "nodes guess ahead by themselves"),
    _refused("prompt_cache_key", "prompts aren't kept from one request to the next"),
    _refused("prompt_cache_options", "prompts aren't kept from one request to the next", {}),
    _refused("prompt_cache_retention", "prompts aren't kept from one request to the next"),
    _refused("reasoning_effort", "models here answer as they were trained to", "none"),
    _refused("service_tier", "all requests are served alike", "auto", "default"),
    _refused("store", "no prompt and no answer is ever kept", False),
    _refused("verbosity", "ask for a short or a long answer in words", "medium"),
    _refused("web_search_options", "nothing is searched on the web"),
)

COMPLETION = _table(
    *_BOTH,
    _honoured("prompt", "a text, or a list of one"),
    _honoured("max_tokens", "1 or more; 16 if absent: most tokens of the answer"),
    _honoured("logprobs", "0 to 5: that many of the most probable tokens in each place, and the one that came"),
    _refused("best_of", "answers aren't compared", 1),
    _refused("echo", "the prompt isn't repeated", False),
    _refused("suffix", "text is only continued", ""),
)

STREAM_OPTIONS = _table(
    _honoured("include_usage", "true: a last chunk with the number of tokens"),
    _refused("include_obfuscation", "events aren't padded", False),
)

# Of a message, whatever its role. Some are what a client sends along when it repeats an answer.
MESSAGE = _table(
    _honoured("role", "who said it: `system`, `developer` (the same), `user`, `assistant`, `tool`"),
    _honoured("content", "a text, or a list of text parts, which are joined"),
    _honoured("tool_calls", "of the assistant: the calls that it made, as it made them"),
    _honoured("tool_call_id", "of a tool: which call it answers"),
    _refused("name", "participants aren't told apart by names"),
    _refused("function_call", "use tool_calls"),
    _refused("refusal", "what was refused isn't repeated"),
    _refused("annotations", "text is all there is", []),
    _refused("audio", "messages are text"),
)

# Of a part of a message's content.
PART = _table(
    _honoured("type", "`text`: images, sounds and files aren't understood here"),
    _honoured("text", "the text"),
    _refused("image_url", "images aren't understood here"),
    _refused("input_audio", "sounds aren't understood here"),
    _refused("file", "files aren't read here"),
    _refused("refusal", "what was refused isn't repeated"),
    _refused("prompt_cache_breakpoint", "prompts aren't kept from one request to the next"),
)

MESHNET = _table(
    _honoured("trace", "true: token ids, their positions and the nodes of the route beside the text"),
    _honoured("top_k", "0 or more: only so many of the most probable tokens; 0: all"),
    _honoured("min_p", "0 to 1: only tokens at least this share as probable as the most probable one"),
    _honoured("repetition_penalty", "over 0, up to 10: makes tokens of prompt and answer less probable; below 1, more"),
    _honoured("deadline_s", "0.1 or more: seconds for the whole answer; at most, and if absent, what the site gives"),
)


def honoured_only(fields: Mapping[str, Any], table: Table, within: str = "") -> dict[str, Any]:
    """The honoured parameters; the others are checked and left out. `within`: "messages[0]." Raises ApiError 400."""
    for name, value in fields.items():
        param = within + shown(name)
        if name not in table:
            hint = f" Send it as meshnet.{name}." if name in MESHNET and not within else ""
            raise ApiError(400, f"Unknown parameter: '{param}'.{hint}", code="unknown_parameter", param=param)
        row = table[name]
        if not row.is_honoured and value is not None and not _is_one_of(value, row.neutral):
            raise ApiError(400, _why_refused(param, row), code="unsupported_parameter", param=param)
    return {name: value for name, value in fields.items() if table[name].is_honoured}


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Equal, and for booleans of the same type: 1 is not true."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _why_refused(param: str, row: Parameter) -> str:
    or_send = ", or send " + " or ".join(map(json.dumps, row.neutral)) if row.neutral else ""
    return f"{param} isn't honoured here: {row.words}. Leave it out{or_send}."


def shown(name: str) -> str:
    """A name of the client's, fit for an answer: lone surrogates have no UTF-8."""
    return writable(name[:60])
