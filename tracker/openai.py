"""The requests of the OpenAI API: what each parameter may be, and what the head is asked in the end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tracker.errors import ApiError
from tracker.parameters import CHAT, COMPLETION, honoured_only, plain_message, shown

MAX_STOPS = 4
MAX_STOP_CHARS = 1000
MAX_BIASES = 300
MAX_BIAS = 100
MAX_TOP_LOGPROBS = 20  # of a chat; a completion's logprobs are at most 5, as OpenAI has it
INT64 = (-(2**63), 2**63 - 1)
COMPLETION_MAX_TOKENS = 16  # what OpenAI's /v1/completions does when max_tokens is absent


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 and 1e8 are whole."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _stops(value: Any) -> Any:
    """null, a text or a list of texts, as a list. An empty text would stop before the first character: refused."""
    stops = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"must be a string, or a list of up to {MAX_STOPS} strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"has {len(stops)} entries; up to {MAX_STOPS} are allowed")
    if any(not stop or len(stop) > MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"must be strings of 1 to {MAX_STOP_CHARS} characters")
    return [_is_text(stop) for stop in stops]


def _one_prompt(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _is_text(value: str) -> str:
    """Not empty, and such that it can be sent on: half a surrogate pair has no UTF-8."""
    if not value:
        raise ValueError("must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a surrogate pair, which is no text") from None
    return value


def _joined(value: Any) -> Any:
    """Content given as a list of text parts is their text, one after the other."""
    if not isinstance(value, list):
        return value
    return "".join(_Part.model_validate(part).text for part in value)


def _biases(value: Any) -> Any:
    """{"50256": -100}: token ids of the model, as JSON writes keys, and what is added to their logits."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(re.fullmatch("[0-9]{1,10}", key) for key in value):
        raise ValueError("must be an object whose keys are token ids")
    if len(value) > MAX_BIASES:
        raise ValueError(f"has {len(value)} entries; up to {MAX_BIASES} are allowed")
    if not all(type(bias) in (int, float) and -MAX_BIAS <= bias <= MAX_BIAS for bias in value.values()):
        raise ValueError(f"must hold numbers from -{MAX_BIAS} to {MAX_BIAS}")
    if len({int(key) for key in value}) < len(value):
        raise ValueError("names a token twice")
    return {str(int(key)): float(bias) for key, bias in value.items()}


Tokens = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Seed = Annotated[int, BeforeValidator(_whole), Field(ge=INT64[0], le=INT64[1])]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Biases = Annotated[dict[str, float], BeforeValidator(_biases)]
Text = Annotated[str, AfterValidator(_is_text)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)


class _Part(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Text, BeforeValidator(_joined)]


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None  # padding against the guessing of lengths: not built


class Extras(_Strict):
    """What only this API has."""

    trace: bool = False  # token ids, positions and the hop table beside the text
    top_k: Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**31)] | None = None  # 0: all
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None  # of the most probable token's probability
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None  # over prompt and answer
    deadline_s: Annotated[float, Field(ge=0.1)] | None = None  # from request to last token; the site has a cap


class _Sampled(_Strict):
    model: Annotated[Text, Field(max_length=200)]
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Biases = Field(default_factory=dict)
    stop: Annotated[list[str], BeforeValidator(_stops)] = Field(default_factory=list)
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    meshnet: Extras | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> _Sampled:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options: only with stream: true")
        return self

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


class ChatRequest(_Sampled):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

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

    @property
    def wanted_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def for_head(self) -> dict[str, Any]:
        """What the head is asked, without the limit and the seed, which the tracker sets."""
        roles = {"developer": "system"}  # newer models' word for it; chat templates know the older one
        messages = [{"role": roles.get(said.role, said.role), "content": said.content} for said in self.messages]
        return self._sampling() | {"messages": messages}


class CompletionRequest(_Sampled):
    prompt: Annotated[Text, BeforeValidator(_one_prompt)]
    logprobs: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=5)] | None = None

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
    fields = honoured_only(_object(body), CHAT)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [plain_message(index, message) for index, message in enumerate(messages)]
    return _checked(ChatRequest.model_validate, fields)


def read_completion(body: bytes) -> CompletionRequest:
    """Raises ApiError 400, with `param` wherever one is to blame."""
    fields = honoured_only(_object(body), COMPLETION)
    return _checked(CompletionRequest.model_validate, fields)


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body of your request is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "The body of your request must be a JSON object.", code="invalid_json")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


Asked = TypeVar("Asked")


def _checked(validate: Callable[[Any], Asked], fields: dict[str, Any]) -> Asked:
    try:
        return validate(fields)
    except ValidationError as error:
        found = error.errors()[0]
    message, param = str(found["msg"]).removeprefix("Value error, "), _param(found["loc"])
    if not found["loc"]:  # a rule over several fields says in front which one is to blame
        param, _, message = message.partition(": ")
    raise ApiError(400, f"{param}: {message}", code=_code(found["type"]), param=param)


def _param(location: tuple[int | str, ...]) -> str:
    """messages[0].content"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in location).removeprefix(".")


def _code(kind: str) -> str:
    return "missing_required_parameter" if kind == "missing" else "invalid_value"
