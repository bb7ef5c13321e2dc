"""What nodes may say in POST /api/nodes/*. Everything is checked here, so that the rules see only good values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from django.core.validators import RegexValidator
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from relay.headers import DTYPE_BYTES
from relay.wire import WIRE_VERSIONS
from tracker.endpoints import EndpointRefused, parse_endpoint
from tracker.errors import ApiError, writable
from tracker.models.languages import MAX_LAYERS, MODEL_NAME
from tracker.models.nodes import NODE_NAME
from tracker.words import one_line

MAX_BIGINT = 2**63 - 1
MAX_HELD = 256  # sessions that a heartbeat names; of the others it says how many there are


def _is_endpoint(text: str) -> str:
    try:
        parse_endpoint(text)
    except EndpointRefused as error:
        raise ValueError(str(error)) from None
    return text


def _is_dtype(text: str) -> str:
    if text not in DTYPE_BYTES:
        raise ValueError(f"must be one of {', '.join(DTYPE_BYTES)}")
    return text


def _ours(versions: list[Any]) -> list[int]:
    """Those that the relay speaks too, in order; a newer node may name more, and in other words."""
    return sorted({version for version in versions if type(version) is int} & set(WIRE_VERSIONS))


def _cut(max_chars: int) -> Callable[[str], str]:
    """Words for people, in one line, as much of them as a column holds."""
    return lambda text: one_line(writable(text))[:max_chars]


def _pattern(validator: RegexValidator) -> str:
    """The same expression for pydantic's engine, whose `$` is Python's `\\Z`."""
    return re.compile(validator.regex).pattern.replace(r"\Z", "$")


Count = Annotated[int, Field(ge=0, le=MAX_BIGINT)]
Small = Annotated[int, Field(ge=1, le=2**31 - 1)]
Milliseconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=20, pattern=r"^[a-z_-]*$")]
SessionId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Line = Annotated[str, Field(pattern=r"^[\x20-\x7e]*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")  # a newer node may say more


class ModelFacts(_Strict):
    name: str = Field(max_length=200, pattern=_pattern(MODEL_NAME))
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_layers: int = Field(ge=1, le=MAX_LAYERS)
    hidden_size: int = Field(ge=1, le=2**20)
    context_length: Small
    layer_bytes: Count | None = None  # of the weights, as the files have them
    head_bytes: Count | None = None
    tail_bytes: Count | None = None

    def facts(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name"})


class LostHop(_Strict):
    """A hop that its head can't go on with, and why."""

    peer_id: Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
    start_layer: Annotated[int, Field(ge=0, lt=MAX_LAYERS)]
    end_layer: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    code: Annotated[str, AfterValidator(_cut(60))]
    cause: Annotated[str, AfterValidator(_cut(500))] = ""


class Reroute(_Strict):
    """What the head of a session says when it wants another route for it."""

    epoch: Annotated[int, Field(ge=0, lt=2**31 - 1)]
    lost: LostHop
    position: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    failed: Annotated[list[str], Field(max_length=256)] = []


class FailedMove(_Strict):
    """Layers that the site wanted a node to take, and why it couldn't."""

    move: Count
    reason: Annotated[str, AfterValidator(_cut(300))] = ""


class Registration(_Strict):
    name: str = Field(max_length=64, pattern=_pattern(NODE_NAME))
    model: ModelFacts
    layers: Literal["auto"] | None = None  # the site chooses them; else these two are named:
    start_layer: Annotated[int, Field(ge=0)] | None = None
    end_layer: Annotated[int, Field(ge=1)] | None = None
    move: Count | None = None  # that it carries out
    failed_move: FailedMove | None = None
    relay: bool = True
    wire_versions: Annotated[list[Any], AfterValidator(_ours)] = []
    endpoint: Annotated[str, Field(max_length=200), AfterValidator(_is_endpoint)] | None = None
    version: Annotated[Line, Field(max_length=40)] = ""
    device: Annotated[Line, Field(max_length=60)] = ""
    dtype: Annotated[str, AfterValidator(_is_dtype)] = "bfloat16"
    weights: Annotated[Line, Field(max_length=10)] = ""
    threads: Small | None = None
    memory_bytes: Count | None = None
    ms_per_layer: Milliseconds | None = None
    max_cached_tokens: Count | None = None
    budget_bytes: Count | None = None  # for weights and caches together
    layer_bytes: Count | None = None  # of that for a layer with its part of the caches, on this node
    head_bytes: Count | None = None
    tail_bytes: Count | None = None

    @property
    def picks_layers(self) -> bool:
        """It leaves them to the site."""
        return self.layers == "auto"

    @model_validator(mode="after")
    def _layers_exist(self) -> Registration:
        if self.picks_layers:
            if not self.budget_bytes or not self.layer_bytes:
                raise ValueError("layers: auto needs budget_bytes and layer_bytes, or nobody knows what fits")
            return self
        if self.start_layer is None or self.end_layer is None:
            raise ValueError("start_layer and end_layer must be named, or layers: auto")
        if not self.start_layer < self.end_layer <= self.model.num_layers:
            layers, held = f"{self.start_layer}:{self.end_layer}", self.model.num_layers
            raise ValueError(f"layers {layers} don't lie within 0:{held}, the layers of {self.model.name}")
        if not self.relay and not self.endpoint:
            raise ValueError("a node without the relay needs an endpoint, or nobody can reach it")
        return self


class Heartbeat(_Strict):
    registration: Annotated[str, Field(max_length=32)] = ""  # in which it numbers its heartbeats
    number: Count = 0
    session_epochs: Annotated[dict[SessionId, Count], Field(max_length=MAX_HELD)] = {}  # that it holds caches of
    state: Word | None = None
    done_bytes: Count | None = None  # of its weights, while it fetches them
    total_bytes: Count | None = None
    cached_tokens: Count | None = None
    reserved_tokens: Count | None = None
    max_cached_tokens: Count | None = None
    sessions: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    ms_per_layer: Milliseconds | None = None

    def figures(self) -> dict[str, Any]:
        """What the node's row keeps of it."""
        return self.model_dump(exclude={"registration", "number", "session_epochs"}, exclude_none=True)


Message = TypeVar("Message", bound=_Strict)


def check(schema: type[Message], fields: dict[str, Any]) -> Message:
    """The checked message. Raises ApiError 400 naming each bad field."""
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, found['loc'])) or 'the message'}: {found['msg']}" for found in error.errors()]
        raise ApiError(400, "; ".join(problems[:10]), code="bad_request") from None
