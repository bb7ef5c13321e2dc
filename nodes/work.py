"""What the engine is given and gives back: a step, its result, the errors that take a result's place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from nodes.grammar import Grammar
from nodes.sampling import Sampled, Sampling, TokenLogprobs
from nodes.sessions import Busy, StepKey
from nodes.shard import Shard


class EngineError(Exception):
    """The engine can't work the step: its shape or layers are wrong, or the shard failed."""


class NotNumbers(EngineError):
    """A NaN or an infinity came out of the layers."""


class NoGrammar(EngineError):
    """The grammar that the answer is held to isn't known here. Nothing was touched."""


class GrammarFailed(EngineError):
    """The answer can't be held to its grammar: whoever asked for it has to ask for another."""


class OutOfMemory(Busy):
    """There is less memory than the node was told to use. The text says what to lower."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass through a hop's layers."""

    session: str
    epoch: int
    step: int
    position: int  # index of the first token
    start_layer: int
    end_layer: int
    token_ids: tuple[int, ...]  # at the step's positions; may be empty in the middle of a route
    hidden: torch.Tensor | None  # [1, tokens, width] before start_layer; None: embed token_ids
    sampling: Sampling | None  # at the tail: how to choose the next token; None: nothing is sampled
    reserve_tokens: int = 0  # on the first step: tokens the session may come to hold
    num_drafts: int = 0  # of the last tokens, how many are guesses that the tail accepts or replaces
    grammar: Grammar | None = None  # the one that the sampling names

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) if self.hidden is None else self.hidden.shape[1]

    def key(self) -> StepKey:
        layers = (self.start_layer, self.end_layer)
        return StepKey(self.session, self.epoch, self.step, self.position, self.num_tokens, layers, self.reserve_tokens)


@dataclass(frozen=True, slots=True)
class StepResult:
    """hidden: [1, tokens, width], None after the model's last layer; token_ids: what the tail sampled."""

    hidden: torch.Tensor | None
    token_ids: tuple[int, ...]
    queue_ms: float
    compute_ms: float
    logprobs: tuple[TokenLogprobs, ...] | None = None  # of token_ids, where the step's sampling asks for them


def step_result(
    hidden: torch.Tensor | None, sampled: Sequence[Sampled], queue_ms: float, compute_ms: float
) -> StepResult:
    logprobs = tuple(one.logprobs for one in sampled if one.logprobs)
    return StepResult(hidden, tuple(one.token_id for one in sampled), queue_ms, compute_ms, logprobs or None)


class Work:
    """A step that waits, the future that waits for it, and what schedule.py looks at."""

    __slots__ = ("future", "hop", "is_decode", "key", "num_tokens", "queued_at", "session", "step")

    def __init__(self, step: Step, queued_at: float) -> None:
        self.step, self.queued_at = step, queued_at
        self.future: Future[StepResult] = Future()
        self.key = key = step.key()
        self.session, self.hop, self.num_tokens = key.session, key.layers, key.num_tokens
        # One token and its drafts; everything else is a part of a prompt.
        self.is_decode = key.num_tokens == 1 + step.num_drafts


def check(step: Step, num_tokens: int, shard: Shard) -> None:
    """Raises EngineError for a step that doesn't fit the shard."""
    if not shard.start_layer <= step.start_layer < step.end_layer <= shard.end_layer:
        held = f"{shard.start_layer}:{shard.end_layer}"
        raise EngineError(f"layers {step.start_layer}:{step.end_layer} aren't in this node's {held}")
    if num_tokens < 1 or step.position < 0 or step.position + num_tokens > shard.context_length:
        end = step.position + num_tokens
        raise EngineError(f"positions {step.position}:{end} aren't in the context of {shard.context_length}")
    if not 0 <= step.num_drafts < num_tokens:
        raise EngineError(f"{step.num_drafts} drafts aren't fewer than the step's {num_tokens} tokens")
    if step.sampling and step.sampling.grammar != (step.grammar.digest if step.grammar else ""):
        raise EngineError("the grammar that the answer is held to isn't here")
    if step.hidden is None:
        if step.start_layer > 0:
            raise EngineError("a step that starts after layer 0 brings activations")
        if min(step.token_ids) < 0 or max(step.token_ids) >= shard.vocab_size:
            raise EngineError(f"token ids must be from 0 to {shard.vocab_size - 1}")
    elif step.hidden.dim() != 3 or (step.hidden.shape[0], step.hidden.shape[2]) != (1, shard.width):
        raise EngineError(f"activations must have the shape 1,tokens,{shard.width}")
    elif step.token_ids and len(step.token_ids) != num_tokens:
        raise EngineError(f"{len(step.token_ids)} token ids come with activations of {num_tokens} tokens")
