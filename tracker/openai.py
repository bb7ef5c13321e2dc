"""The requests of the OpenAI API: what each parameter may be, and what the head is asked in the end."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from tracker.fields import (
    MAX_SAFETY_CHARS,
    MAX_TOP_LOGPROBS,
    MAX_USER_CHARS,
    Biases,
    Choices,
    Metadata,
    Name,
    Penalty,
    Prompt,
    Seed,
    Stops,
    Strict,
    Text,
    Tokens,
    whole,
)
from tracker.messages import Message, check_roles, honoured_message
from tracker.parameters import CHAT, COMPLETION, MESHNET, STREAM_OPTIONS, Table, honoured_only
from tracker.tools import Formed
from tracker.validation import checked, json_object

COMPLETION_MAX_TOKENS = 16  # what OpenAI's /v1/completions does when max_tokens is absent


class StreamOptions(Strict):
    include_usage: bool | None = None


class Extras(Strict):
    """What only this API has."""

    trace: bool = False  # token ids, positions and the hop table beside the text
    top_k: Annotated[int, BeforeValidator(whole), Field(ge=0, lt=2**31)] | None = None  # 0: all
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None  # of the most probable token's probability
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None  # over prompt and answer
    deadline_s: Annotated[float, Field(ge=0.1)] | None = None  # from request to last token; the site has a cap


class _Sampled(Strict):
    model: Annotated[Text, Field(max_length=200)]
    n: Choices | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Biases = Field(default_factory=dict)
    stop: Stops = Field(default_factory=list)
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[Name, Field(max_length=MAX_USER_CHARS)] | None = None
    meshnet: Extras | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> _Sampled:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options: only with stream: true")
        return self

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def limit_param(self) -> str:
        """What names the tokens of the answer."""
        return "max_tokens"

    @property
    def wanted_metadata(self) -> dict[str, str]:
        return {}

    @property
    def wanted_user(self) -> str:
        """Whom the client asks for."""
        return self.user or ""

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_trace(self) -> bool:
        return bool(self.meshnet and self.meshnet.trace)

    @property
    def wanted_deadline_s(self) -> float | None:
        return self.meshnet.deadline_s if self.meshnet else None

    @property
    def wanted_logprobs(self) -> int | None:
        """Most probable tokens to tell beside each that came; None: no log probabilities."""
        raise NotImplementedError

    def _sampling(self) -> dict[str, Any]:
        extras = self.meshnet or Extras()
        asked = {
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "logit_bias": self.logit_bias or None,
            "top_k": extras.top_k,
            "min_p": extras.min_p,
            "repetition_penalty": extras.repetition_penalty,
            "top_logprobs": self.wanted_logprobs,
        }
        return {
            "model": self.model,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "stop": self.stop,
        } | {name: value for name, value in asked.items() if value is not None}


class ChatRequest(_Sampled, Formed):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None
    metadata: Metadata = Field(default_factory=dict)
    logprobs: bool | None = None
    top_logprobs: Annotated[int, BeforeValidator(whole), Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    safety_identifier: Annotated[Name, Field(max_length=MAX_SAFETY_CHARS)] | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens: give max_completion_tokens or max_tokens, not both")
        return self

    @model_validator(mode="after")
    def _top_of_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only with logprobs: true")
        return self

    @model_validator(mode="after")
    def _one_user(self) -> ChatRequest:
        if self.user is not None and self.safety_identifier is not None:
            raise ValueError("user: give safety_identifier or user, not both")
        return self

    @property
    def wanted_metadata(self) -> dict[str, str]:
        return self.metadata

    @property
    def wanted_user(self) -> str:
        return self.safety_identifier or self.user or ""

    @property
    def wanted_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def limit_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def for_head(self) -> dict[str, Any]:
        """What the head is asked, without the limit and the seed, which the tracker sets."""
        return self._sampling() | self.form() | {"messages": [message.for_head() for message in self.messages]}


class CompletionRequest(_Sampled):
    prompt: Prompt
    logprobs: Annotated[int, BeforeValidator(whole), Field(ge=0, le=5)] | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def wanted_tokens(self) -> int:
        return self.max_tokens or COMPLETION_MAX_TOKENS

    def for_head(self) -> dict[str, Any]:
        return self._sampling() | {"prompt": self.prompt}


def read_chat(body: bytes) -> ChatRequest:
    """Raises ApiError 400, with `param` wherever one is to blame."""
    fields = _honoured(body, CHAT)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [honoured_message(index, message) for index, message in enumerate(messages)]
    asked = checked(ChatRequest.model_validate, fields)
    check_roles(asked.messages)
    return asked


def read_completion(body: bytes) -> CompletionRequest:
    """Raises ApiError 400, with `param` wherever one is to blame."""
    return checked(CompletionRequest.model_validate, _honoured(body, COMPLETION))


def _honoured(body: bytes, table: Table) -> dict[str, Any]:
    fields = honoured_only(json_object(body), table)
    for name, own in (("stream_options", STREAM_OPTIONS), ("meshnet", MESHNET)):
        if isinstance(fields.get(name), dict):
            fields[name] = honoured_only(fields[name], own, f"{name}.")
    return fields
