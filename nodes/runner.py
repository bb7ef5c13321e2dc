"""Works steps on a shard: what they mean for their sessions before and after, and one forward pass in between.

What fails, fails alone. When a forward of several sessions raises, or gives what isn't numbers, each of its sessions is
cropped to where it was and worked again by itself; only those that fail then are told so, and lose their caches.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from nodes.grammar import Grammar, GrammarError, GrammarState
from nodes.sampling import Sampled, SamplingError, verify
from nodes.sessions import Busy, Missing, Session, Sessions, Stale
from nodes.shard import Row, Shard, ShardCache
from nodes.work import EngineError, GrammarFailed, NotNumbers, OutOfMemory, StepResult, Work, check, step_result

logger = logging.getLogger(__name__)

EngineSessions = Sessions[ShardCache, StepResult]

# What torch's allocator says on a CPU, where it has no error of its own for it.
_NO_MEMORY = ("can't allocate memory", "not enough memory")


@dataclass(slots=True)
class Task:
    """A step that is being worked."""

    work: Work
    session: Session[ShardCache, StepResult]
    row: Row
    started: float


class Runner:
    """Used by one thread, inside torch.inference_mode()."""

    def __init__(
        self, shard: Shard, sessions: EngineSessions, max_cached_tokens: int, clock: Callable[[], float], node: str
    ) -> None:
        self._shard, self._sessions, self._max_cached_tokens = shard, sessions, max_cached_tokens
        self._clock, self._node = clock, node

    def begin(self, works: Sequence[Work]) -> list[Task]:
        """What there is to compute for steps of different sessions and the same layers."""
        now = self._clock()
        return [task for work in works if (task := self._begin(work, now))]

    def _begin(self, work: Work, now: float) -> Task | None:
        """None where there is nothing to compute: it was cancelled, answered before, or can't be worked."""
        if not work.future.set_running_or_notify_cancel():
            return None
        try:
            check(work.step, work.num_tokens, self._shard)
            session, kept = self._sessions.begin(work.key, now)
        except (Stale, Missing, Busy, EngineError) as error:
            work.future.set_exception(error)
            return None
        if kept is not None:
            work.future.set_result(kept)
            return None
        try:
            return Task(work, session, self._row(work, session), now)
        except Exception as error:
            self._fail(work, error)
            return None

    def _row(self, work: Work, session: Session[ShardCache, StepResult]) -> Row:
        step = work.step
        if session.cache is None:
            session.cache = self._shard.new_cache(*work.hop, room_tokens=session.reserved_tokens)
        elif session.cache.num_tokens > step.position:
            session.cache.crop_to(step.position)
        inputs = step.token_ids if step.hidden is None else step.hidden[0]
        return Row(session.cache, step.position, inputs, 0 if step.sampling is None else 1 + step.num_drafts)

    def forward(self, tasks: Sequence[Task]) -> list[torch.Tensor | Exception]:
        """In one forward pass: of each its hidden states [tokens, width] or logits [1 + drafts, vocab_size]."""
        if len(tasks) == 1:
            return [self._alone(tasks[0])]
        try:
            outputs = self._shard.forward([task.row for task in tasks], *tasks[0].work.hop)
        except Exception as error:
            logger.warning("a forward of %d sessions failed, each is worked alone: %s", len(tasks), error)
            return [self._again(task) for task in tasks]
        return [
            output if _are_numbers(output) else self._again(task) for task, output in zip(tasks, outputs, strict=True)
        ]

    def _again(self, task: Task) -> torch.Tensor | Exception:
        """By itself, after a forward with others that may have reached some of the cache's layers."""
        try:
            task.row.cache.crop_to(task.row.position)
        except Exception as error:
            return error
        return self._alone(task)

    def _alone(self, task: Task) -> torch.Tensor | Exception:
        start_layer, end_layer = task.work.hop
        try:
            [output] = self._shard.forward([task.row], start_layer, end_layer)
        except Exception as error:
            return error
        if end_layer == self._shard.num_layers or _are_numbers(output):  # whoever samples looks at logits
            return output
        return self._not_numbers(task)

    def finish(self, task: Task, output: torch.Tensor | Exception) -> None:
        """Whoever waits is told. Never raises: the result, or Stale, Missing, Busy or EngineError."""
        work, step = task.work, task.work.step
        try:
            if isinstance(output, Exception):
                raise output
            is_tail = step.end_layer == self._shard.num_layers
            hidden, sampled = (None, self._sample(output, task)) if is_tail else (output.unsqueeze(0), [])
            queue_ms, compute_ms = (task.started - work.queued_at) * 1000, (self._clock() - task.started) * 1000
            result = step_result(hidden, sampled, queue_ms, compute_ms)
            self._sessions.finish(task.session, work.key, step.token_ids, result)
        except Exception as error:
            self._fail(work, error)
        else:
            work.future.set_result(result)

    def _sample(self, logits: torch.Tensor, task: Task) -> list[Sampled]:
        """logits: [1 + drafts, vocab_size]"""
        step, num_tokens = task.work.step, task.work.num_tokens
        if step.sampling is None:
            return []
        so_far: Sequence[int] = step.token_ids
        if step.sampling.is_penalised or step.grammar:  # only then they are looked at
            so_far = [*task.session.token_ids, *so_far]
        drafts, end = step.token_ids[num_tokens - step.num_drafts :], step.position + num_tokens
        try:
            state = _state(task.session, step.grammar) if step.grammar else None
            return verify(logits, step.sampling, end - step.num_drafts, so_far, drafts, state)
        except GrammarError as error:
            raise GrammarFailed(f"the answer can't be held to its form: {error}") from None
        except SamplingError as error:
            raise EngineError(str(error)) if _are_numbers(logits) else self._not_numbers(task) from error

    def _fail(self, work: Work, error: Exception) -> None:
        self._sessions.drop_cache(work.session)  # some layers may have the step's tokens, others not
        work.future.set_exception(self._named(error, work.hop))

    def _named(self, error: Exception, hop: tuple[int, int]) -> Exception:
        """The error as whoever waits is told it."""
        if isinstance(error, EngineError):
            return error
        where = f"layers {hop[0]}–{hop[1] - 1} of node {self._node}"
        if _is_out_of_memory(error):
            held = f"{self._sessions.cached_tokens} of at most {self._max_cached_tokens} tokens are cached"
            logger.error("%s ran out of memory: %s", where, error)
            return OutOfMemory(f"{where} ran out of memory; {held}: lower its --max-kv-tokens or give it fewer layers")
        logger.error("a step failed in %s", where, exc_info=error)
        return EngineError(f"{where} failed: {type(error).__name__}: {error}")

    def _not_numbers(self, task: Task) -> NotNumbers:
        inputs, (start_layer, end_layer) = task.row.inputs, task.work.hop
        where = f"layers {start_layer}–{end_layer - 1} of node {self._node}"
        if isinstance(inputs, torch.Tensor) and not _are_numbers(inputs):
            return NotNumbers(f"the activations that came to {where} are not numbers (NaN or infinity)")
        what = "logits" if end_layer == self._shard.num_layers else "activations"
        return NotNumbers(f"the {what} that {where} computed are not numbers (NaN or infinity)")


def _state(session: Session[ShardCache, StepResult], grammar: Grammar) -> GrammarState:
    """The session's, begun anew where it is of another grammar."""
    state = session.grammar_state
    if not isinstance(state, GrammarState) or state.digest != grammar.digest:
        state = session.grammar_state = grammar.begin()
    return state


def _are_numbers(output: torch.Tensor) -> bool:
    """Whether there is neither a NaN nor an infinity."""
    if math.isfinite(output.sum().item()):  # one pass; what isn't finite stays so in a sum
        return True
    return bool(output.isfinite().all())  # large ones may add up to an infinity


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(text in str(error) for text in _NO_MEMORY)
