"""What a chat or a plain completion asks for, read from the body that the tracker has made regular."""

from __future__ import annotations

import json
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

from nodes.forms import FREE, Form
from nodes.resume import PARAM as RESUME
from nodes.resume import Resume, ResumeError
from nodes.sampling import MAX_BIAS, Sampling, SamplingError
from nodes.tools import FormError
from relay.wire import Code

DEFAULT_MAX_TOKENS = 1024  # when the request names no number
MAX_STOPS = 4
_SAMPLING = frozenset(field.name for field in fields_of(Sampling)) - {"prompt_tokens", "grammar"}


class CompletionError(Exception):
    """A request ends with an error that its user is shown: a code, words, and the parameter to mend."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    def body(self) -> dict[str, Any]:
        param = {"param": self.param} if self.param else {}
        return {"code": self.code, "message": self.message} | param


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    is_chat: bool  # or a plain completion
    messages: list[dict[str, Any]] | None  # of a chat
    prompt: str | None  # of a plain completion
    max_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...]
    form: Form = FREE  # of a chat's answer
    resume: Resume | None = None  # stands in for the messages or the prompt, with the ids another head made of them

    @property
    def prompt_param(self) -> str:
        """What the prompt is called."""
        return "messages" if self.is_chat else "prompt"

    @classmethod
    def read(cls, path: str, body: bytes, default_seed: int) -> CompletionRequest:
        """Raises CompletionError 400 naming the parameter."""
        fields = _object(body)
        is_chat, resume = path == "/v1/chat/completions", _resume(fields.get("meshnet"))
        return cls(
            is_chat=is_chat,
            messages=_messages(fields.get("messages")) if is_chat and not resume else None,
            prompt=None if is_chat or resume else _text(fields.get("prompt"), "prompt"),
            max_tokens=_max_tokens(fields.get("max_tokens")),
            sampling=_sampling(fields, default_seed),
            stops=_stops(fields.get("stop")),
            form=_form(fields) if is_chat else FREE,
            resume=resume,
        )


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise _bad("the body is not JSON", None) from None
    if not isinstance(fields, dict):
        raise _bad("the body is not a JSON object", None)
    return fields


def _resume(value: Any) -> Resume | None:
    asked = value.get("resume") if isinstance(value, dict) else None
    try:
        return None if asked is None else Resume.read(asked)
    except ResumeError as error:
        raise _bad(str(error), RESUME) from None


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise _bad("messages must be a list with at least one message", "messages")
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise _bad("a message must be an object with role and content", f"messages[{number}]")
        param = f"messages[{number}]"
        for key in ("role", "content"):
            _text(message.get(key), f"{param}.{key}")
        if message["role"] == "tool":
            _text(message.get("tool_call_id"), f"{param}.tool_call_id")
        _check_calls(message.get("tool_calls") or [], f"{param}.tool_calls")
    return value


def _check_calls(calls: Any, param: str) -> None:
    if not isinstance(calls, list):
        raise _bad(f"{param} must be a list", param)
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise _bad("a call must be an object with id and function", f"{param}[{number}]")
        _text(call.get("id"), f"{param}[{number}].id")
        for key in ("name", "arguments"):
            _text(function.get(key), f"{param}[{number}].function.{key}")


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise _bad(f"{param} must be a string", param)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _bad(f"{param} holds half a surrogate pair, which no text can", param) from None
    return value


def _form(fields: dict[str, Any]) -> Form:
    try:
        return Form.read(fields)
    except FormError as error:
        raise _bad(str(error), error.param) from None


def _max_tokens(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise _bad("max_tokens must be a whole number, 1 or more", "max_tokens")
    return value


def _sampling(fields: dict[str, Any], default_seed: int) -> Sampling:
    asked = {name: fields[name] for name in _SAMPLING if fields.get(name) is not None}
    if "logit_bias" in asked:
        asked["logit_bias"] = _biases(asked["logit_bias"])
    try:
        return Sampling(**{"temperature": 1.0, "top_p": 1.0, "seed": default_seed} | asked)
    except SamplingError as error:
        raise _bad(str(error), error.param) from None


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    """{"50256": -100}, of which what is 0 changes nothing. Three decimals travel: they must fit beside the ids."""
    if not isinstance(value, dict) or not all(key.isascii() and key.isdigit() and len(key) < 11 for key in value):
        raise _bad("logit_bias must be an object of token ids and numbers", "logit_bias")
    if not all(type(bias) in (int, float) and abs(bias) <= MAX_BIAS for bias in value.values()):
        raise _bad(f"logit_bias must hold numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}", "logit_bias")
    rounded = ((int(key), round(bias, 3)) for key, bias in value.items())
    return tuple((token_id, bias) for token_id, bias in rounded if bias)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise _bad(f"stop must be a string or a list of at most {MAX_STOPS}", "stop")
    if any(not _text(stop, "stop") for stop in stops):
        raise _bad("stop must not hold an empty string", "stop")
    return tuple(stops)


def _bad(message: str, param: str | None) -> CompletionError:
    return CompletionError(400, Code.BAD_REQUEST, message, param)
