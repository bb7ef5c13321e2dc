"""Log probabilities of an answer's tokens: as heads tell them, and in the two shapes that OpenAI's endpoints have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_TOP = 20


@dataclass(frozen=True, slots=True)
class Spelled:
    """A token that could have come. `data`: its bytes, which may be half a character."""

    token: str
    data: tuple[int, ...]
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of a token that came. `offset`: of its first character in the answer's text. `top`: most probable first."""

    chosen: Spelled
    offset: int
    top: tuple[Spelled, ...]


def read(value: Any) -> tuple[TokenLogprobs, ...]:
    """[{"token", "bytes", "logprob", "offset", "top": [{"token", "bytes", "logprob"}]}]. Raises ValueError, TypeError,
    KeyError for anything else."""
    return tuple(_token(one) for one in value)


def chat_shape(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    content = [_entry(one.chosen) | {"top_logprobs": [_entry(other) for other in one.top]} for one in tokens]
    return {"content": content, "refusal": None}


def completion_shape(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The chosen token is always among the top ones, so that these may be one more than were asked for."""
    return {
        "tokens": [one.chosen.token for one in tokens],
        "token_logprobs": [one.chosen.logprob for one in tokens],
        "top_logprobs": [{other.token: other.logprob for other in (*one.top, one.chosen)} for one in tokens],
        "text_offset": [one.offset for one in tokens],
    }


def _entry(spelled: Spelled) -> dict[str, Any]:
    return {"token": spelled.token, "logprob": spelled.logprob, "bytes": list(spelled.data)}


def _token(value: Any) -> TokenLogprobs:
    offset, top = value["offset"], tuple(_spelled(one) for one in value["top"])
    if type(offset) is not int or offset < 0 or len(top) > MAX_TOP:
        raise ValueError("an offset, or too many tokens")
    return TokenLogprobs(_spelled(value), offset, top)


def _spelled(value: Any) -> Spelled:
    token, data, logprob = value["token"], tuple(value["bytes"]), value["logprob"]
    if not isinstance(token, str) or not all(type(byte) is int and 0 <= byte < 256 for byte in data):
        raise TypeError("a token and its bytes were expected")
    token.encode()  # half a surrogate pair raises here
    if type(logprob) not in (int, float) or not math.isfinite(logprob):
        raise TypeError("a logarithm was expected")
    return Spelled(token, data, min(0.0, float(logprob)))
