"""POST /forward as it arrives: headers read and checked, the body's length too, before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodes import activations
from nodes.drafts import MAX_DRAFTS
from nodes.engine import Step
from nodes.grammar import MAX_GRAMMAR_BYTES, digest_of
from nodes.sampling import Sampling
from relay import headers as names
from relay.headers import is_session_id
from relay.wire import Code, WireError

MAX_INTEGER = 2**31 - 1
_WHOLE_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Layers:
    """What a step may ask of this node."""

    start_layer: int
    end_layer: int
    num_layers: int
    width: int
    vocab_size: int
    context_length: int


@dataclass(frozen=True, slots=True)
class StepHeaders:
    """The headers of a step, each of the right form; whether they fit this node and the body comes next."""

    session: str
    epoch: int
    step: int
    position: int
    shape: tuple[int, int, int]
    dtype: str
    start_layer: int
    end_layer: int
    reserve_tokens: int
    token_ids: tuple[int, ...] | None
    sampling: Sampling | None
    num_drafts: int
    grammar_bytes: int

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> StepHeaders:
        """Raises WireError 400 naming the header."""
        return cls(
            session=session_of(headers),
            epoch=integer(headers, names.EPOCH),
            step=integer(headers, names.STEP),
            position=integer(headers, names.POSITION),
            shape=_shape(headers),
            dtype=_dtype(headers),
            start_layer=integer(headers, names.START_LAYER),
            end_layer=integer(headers, names.END_LAYER),
            reserve_tokens=integer(headers, names.RESERVE, default=0),
            token_ids=_token_ids(headers),
            sampling=_sampling(headers),
            num_drafts=integer(headers, names.DRAFTS, default=0),
            grammar_bytes=integer(headers, names.GRAMMAR_BYTES, default=0),
        )

    def grammar_text(self, body: bytes) -> str | None:
        """The grammar's, where it has come with the step. Raises WireError 400 for one that the sampling doesn't
        name."""
        if not self.grammar_bytes:
            return None
        if self.grammar_bytes > min(len(body), MAX_GRAMMAR_BYTES):
            raise _bad(names.GRAMMAR_BYTES, f"must be of the body, and at most {MAX_GRAMMAR_BYTES}")
        try:
            text = body[-self.grammar_bytes :].decode()
        except UnicodeDecodeError:
            raise _bad(names.GRAMMAR_BYTES, "of the body must be UTF-8") from None
        if self.sampling is None or self.sampling.grammar != digest_of(text):
            raise _bad(names.SAMPLING, "must name the grammar that comes with the step")
        return text

    def for_engine(self, body: bytes, layers: Layers) -> Step:
        """The engine's step. Raises WireError 400 for what doesn't fit the node or the body."""
        self._check_layers(layers)
        batch, num_tokens, width = self.shape
        if batch != 1 or num_tokens < 1 or width != layers.width:
            raise _bad(names.SHAPE, f"must be 1,tokens,{layers.width}")
        if self.num_drafts > min(num_tokens - 1, MAX_DRAFTS):
            raise _bad(names.DRAFTS, f"must be fewer than the step's tokens, and at most {MAX_DRAFTS}")
        if self.position + num_tokens > layers.context_length:
            raise _bad(names.POSITION, f"and the step's tokens exceed the context of {layers.context_length}")
        try:
            hidden = activations.decode(body[: len(body) - self.grammar_bytes], self.shape, self.dtype)
        except activations.ActivationError as error:
            raise WireError(Code.BAD_REQUEST, f"{names.SHAPE}, {names.DTYPE} and the body don't fit: {error}") from None
        return Step(
            session=self.session,
            epoch=self.epoch,
            step=self.step,
            position=self.position,
            start_layer=self.start_layer,
            end_layer=self.end_layer,
            token_ids=self.token_ids or (),
            hidden=hidden,
            sampling=self.sampling,
            reserve_tokens=self.reserve_tokens,
            num_drafts=self.num_drafts,
        )

    def _check_layers(self, layers: Layers) -> None:
        if not layers.start_layer <= self.start_layer < self.end_layer <= layers.end_layer:
            held = f"{layers.start_layer}:{layers.end_layer}"
            raise _bad(names.START_LAYER, f"and {names.END_LAYER} must lie in {held}, the layers of this node")
        is_tail = self.end_layer == layers.num_layers
        if not is_tail and self.sampling is not None:
            raise _bad(names.SAMPLING, "goes only to the hop that holds the last layer")
        if is_tail and (self.token_ids is None or len(self.token_ids) != self.shape[1]):
            raise _bad(names.TOKENS, f"must name the {self.shape[1]} ids of the step")
        if self.token_ids and max(self.token_ids) >= layers.vocab_size:
            raise _bad(names.TOKENS, f"must be below {layers.vocab_size}")
        if self.sampling and any(token_id >= layers.vocab_size for token_id, _ in self.sampling.logit_bias):
            raise _bad(names.SAMPLING, f"biases tokens that must be below {layers.vocab_size}")


def session_of(headers: Mapping[str, str]) -> str:
    session = required(headers, names.SESSION)
    if not is_session_id(session):
        raise _bad(names.SESSION, "must be 32 hex digits")
    return session


def required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise _bad(name, "is missing")
    return value


def integer(headers: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and name not in headers:
        return default
    text = required(headers, name)
    if not (text.isascii() and text.isdigit() and len(text) <= _WHOLE_DIGITS) or int(text) > MAX_INTEGER:
        raise _bad(name, f"must be a whole number up to {MAX_INTEGER}")
    return int(text)


def _shape(headers: Mapping[str, str]) -> tuple[int, int, int]:
    try:
        return activations.parse_shape(required(headers, names.SHAPE))
    except activations.ActivationError as error:
        raise _bad(names.SHAPE, f"can't be read: {error}") from None


def _dtype(headers: Mapping[str, str]) -> str:
    dtype = required(headers, names.DTYPE)
    if dtype not in names.DTYPE_BYTES:
        raise _bad(names.DTYPE, f"must be one of {', '.join(names.DTYPE_BYTES)}")
    return dtype


def _token_ids(headers: Mapping[str, str]) -> tuple[int, ...] | None:
    text = headers.get(names.TOKENS)
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= _WHOLE_DIGITS for part in parts):
        raise _bad(names.TOKENS, "must be ids separated by commas")
    return tuple(map(int, parts))


def _sampling(headers: Mapping[str, str]) -> Sampling | None:
    text = headers.get(names.SAMPLING)
    if text is None:
        return None
    try:
        return Sampling.from_json(text)
    except ValueError as error:
        raise _bad(names.SAMPLING, f"can't be read: {error}") from None


def _bad(name: str, fault: str) -> WireError:
    return WireError(Code.BAD_REQUEST, f"{name} {fault}")
