"""How the next token is chosen, and the choice: the greedy one, or one drawn so that drawing again gives the same.

What a request may ask for travels with each step to the tail, as JSON. In this order it acts on the model's logits:
repetition penalty, frequency and presence penalty, logit bias; then its grammar, which takes away what can't follow;
then temperature; then top_k, top_p, min_p (draws.py).
Log probabilities are of the model's own distribution, before all of these.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from nodes.draws import draw, highest

MAX_TEMPERATURE = 2.0
MAX_PENALTY = 2.0  # of frequency and presence
MAX_REPETITION_PENALTY = 10.0
MAX_BIAS = 100.0
MAX_BIASES = 300
MAX_TOP_LOGPROBS = 20
LEAST_LOGPROB = -9999.0  # OpenAI's word for a token that can't come; JSON has no infinity
_MAX_ID = 2**31 - 1
_GRAMMAR = re.compile(r"[0-9a-f]{32}")

Logits = np.ndarray[Any, np.dtype[np.float32]]


class Constraint(Protocol):
    """What an answer must be like (grammar.py)."""

    def forbid(self, row: Logits, ids: Sequence[int]) -> None:
        """Makes minus infinity, in place, of the logits of all that can't follow `ids`, the answer so far; some stay.
        Raises GrammarError."""


class SamplingError(ValueError):
    """A parameter out of its range (the sender's to mend: `param`), or logits that aren't numbers."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        _refuse(name, f"must be a number from {least:g} to {most:g}")


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        _refuse(name, "must be a whole number" + (f" from {least} to {most}" if most < _MAX_ID else ""))


def _check_biases(pairs: tuple[tuple[int, float], ...]) -> None:
    if len(pairs) > MAX_BIASES:
        _refuse("logit_bias", f"has {len(pairs)} entries; up to {MAX_BIASES} are allowed")
    for token_id, bias in pairs:
        if type(token_id) is not int or not 0 <= token_id <= _MAX_ID:
            _refuse("logit_bias", "must name tokens by their ids")
        _check_number("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
    if len({token_id for token_id, _ in pairs}) < len(pairs):
        _refuse("logit_bias", "names a token twice")


def _refuse(name: str, fault: str) -> NoReturn:
    raise SamplingError(f"{name} {fault}", name)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose. temperature 0: the token with the highest logit. The defaults from top_k on ask for nothing."""

    temperature: float
    top_p: float
    seed: int
    top_k: int = 0  # 0: all
    min_p: float = 0.0  # of the most probable token's probability
    frequency_penalty: float = 0.0  # for each time a token was generated
    presence_penalty: float = 0.0  # once it was generated
    repetition_penalty: float = 1.0  # of tokens of the prompt and of the answer
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    top_logprobs: int | None = None  # None: no log probabilities; 0: of the sampled token alone
    prompt_tokens: int = 0  # where the prompt ends and what was generated begins
    grammar: str = ""  # which one the answer is held to: its digest

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _check_number("top_p", self.top_p, 0, 1)
        if type(self.seed) is not int or not -(2**63) <= self.seed < 2**63:
            _refuse("seed", "must be a whole number of 64 bits")
        _check_whole("top_k", self.top_k, 0, _MAX_ID)
        _check_number("min_p", self.min_p, 0, 1)
        _check_number("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check_number("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check_number("repetition_penalty", self.repetition_penalty, 0, MAX_REPETITION_PENALTY)
        if self.repetition_penalty == 0:
            _refuse("repetition_penalty", "must be above 0")
        if self.top_logprobs is not None:
            _check_whole("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        _check_whole("prompt_tokens", self.prompt_tokens, 0, _MAX_ID)
        if self.grammar != "" and not (isinstance(self.grammar, str) and _GRAMMAR.fullmatch(self.grammar)):
            _refuse("grammar", "must be 32 hex digits")
        if self.logit_bias:
            _check_biases(self.logit_bias)

    @property
    def is_penalised(self) -> bool:
        """Whether the tokens so far count."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    def to_json(self) -> str:
        """Without what asks for nothing: it travels with every step."""
        return _written(self)

    @classmethod
    def from_json(cls, text: str) -> Sampling:
        """Raises SamplingError: also for a name it doesn't know, since what isn't applied would be a wrong answer."""
        return _read(text)


_DEFAULTS = {field.name: field.default for field in fields(Sampling)}
_REQUIRED = ("temperature", "top_p", "seed")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one sampled token, in the model's own distribution: its logprob, and the most probable (id, logprob)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprobs: TokenLogprobs | None = None


GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=0)


def verify(
    logits: torch.Tensor,
    sampling: Sampling,
    position: int,
    token_ids: Sequence[int],
    drafts: Sequence[int] = (),
    constraint: Constraint | None = None,
) -> list[Sampled]:
    """The tokens from `position` on: those of the drafts that are what would have been chosen, and the next one.

    logits: [1 + drafts, vocab_size], float32, after the token before `position` and after each draft. token_ids: of
    all positions before, ending with the drafts; looked at only where something is penalised or the answer is held to
    a grammar. Without drafts this is the choice of one token. Raises SamplingError where logits aren't numbers, and
    GrammarError.
    """
    rows: Logits = logits.cpu().numpy()
    num_before = len(token_ids) - len(drafts)
    looks_back = sampling.is_penalised or constraint is not None
    sampled = []
    for number, row in enumerate(rows):
        before = token_ids[: num_before + number] if looks_back else ()
        sampled.append(_choose(row, sampling, position + number, before, constraint))
        if number < len(drafts) and sampled[-1].token_id != drafts[number]:
            break
    return sampled


def sample(logits: torch.Tensor, sampling: Sampling, position: int, token_ids: Sequence[int] = ()) -> int:
    """The id of the token at `position`. logits: [vocab_size], float32. Of equals, the lower id."""
    return verify(logits.unsqueeze(0), sampling, position, token_ids)[0].token_id


def _choose(
    row: Logits, sampling: Sampling, position: int, before: Sequence[int], constraint: Constraint | None
) -> Sampled:
    best = int(row.argmax())  # the first of equals; a NaN, if there is one
    if not math.isfinite(row[best]):
        raise SamplingError("the model's logits are not numbers")
    asked = sampling.top_logprobs
    changed = row
    if sampling.is_penalised or sampling.logit_bias or constraint:
        changed = row.copy()
        _penalise(changed, sampling, before)
        _add_biases(changed, sampling)
        if constraint:
            constraint.forbid(changed, before[sampling.prompt_tokens :])
        best = int(changed.argmax())
        if not math.isfinite(changed[best]):
            raise SamplingError("the model thinks nothing possible that its answer's grammar allows")
    chosen = best if sampling.temperature == 0 else _draw(changed, best, sampling, position)
    return Sampled(chosen, None if asked is None else logprobs_of(row, chosen, asked))


def _draw(row: Logits, best: int, sampling: Sampling, position: int) -> int:
    with np.errstate(over="ignore"):  # a tiny temperature: to minus infinity, which is never drawn
        scaled = (row.astype(np.float64) - float(row[best])) / sampling.temperature
    return draw(scaled, sampling.seed, position, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p)


def _penalise(row: Logits, sampling: Sampling, before: Sequence[int]) -> None:
    """Repetition as transformers has it (CTRL, Keskar et al. 2019), over prompt and answer; frequency and presence
    as OpenAI has them, over the answer."""
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.asarray(before, dtype=np.int64))
        values, penalty = row[seen], np.float32(sampling.repetition_penalty)
        row[seen] = np.where(values < 0, values * penalty, values / penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        generated = np.asarray(before[sampling.prompt_tokens :], dtype=np.int64)
        said, times = np.unique(generated, return_counts=True)
        row[said] -= (sampling.frequency_penalty * times + sampling.presence_penalty).astype(np.float32)


def _add_biases(row: Logits, sampling: Sampling) -> None:
    if not sampling.logit_bias:
        return
    pairs = np.array(sampling.logit_bias, dtype=np.float64)
    ids = pairs[:, 0].astype(np.int64)
    if ids.max() >= len(row):
        raise SamplingError(f"logit_bias names token {ids.max()}; the model's are 0 to {len(row) - 1}")
    row[ids] += pairs[:, 1].astype(np.float32)


def logprobs_of(row: Logits, token_id: int, num_top: int) -> TokenLogprobs:
    """Natural logarithms. Most probable first, of equals the lower id."""
    values = row.astype(np.float64)
    values -= values.max()
    values = np.maximum(values - math.log(np.exp(values).sum()), LEAST_LOGPROB)
    top = highest(row, num_top).tolist() if num_top else []
    ordered = sorted(top, key=lambda one: (-row[one], one))
    return TokenLogprobs(float(values[token_id]), tuple((one, float(values[one])) for one in ordered))


@lru_cache(maxsize=256)
def _written(sampling: Sampling) -> str:
    said = {name: getattr(sampling, name) for name in _DEFAULTS}
    said = {name: value for name, value in said.items() if name in _REQUIRED or value != _DEFAULTS[name]}
    if sampling.logit_bias:
        said["logit_bias"] = [number for pair in sampling.logit_bias for number in pair]  # flat: the shortest
    return json.dumps(said, separators=(",", ":"))


@lru_cache(maxsize=256)  # a session's steps all bring the same text
def _read(text: str) -> Sampling:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise SamplingError("sampling is not JSON") from None
    if not isinstance(said, dict) or not said.keys() >= set(_REQUIRED):
        raise SamplingError(f"sampling must be an object with {', '.join(_REQUIRED)}")
    unknown = said.keys() - _DEFAULTS.keys()
    if unknown:
        raise SamplingError(f"sampling holds {min(unknown)[:40]!r}, which this node doesn't know")
    if "logit_bias" in said:
        flat = said["logit_bias"]
        if not isinstance(flat, list) or len(flat) % 2:
            _refuse("logit_bias", "must be a list of ids and biases in turn")
        said["logit_bias"] = tuple(zip(flat[::2], flat[1::2], strict=True))
    return Sampling(**said)
