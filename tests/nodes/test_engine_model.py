"""Random sessions that join, send prompts and drafts, retry, cancel, fail and leave: each gets what it must get."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodes.engine import Engine, EngineError, OutOfMemory, Step, StepResult
from nodes.sampling import GREEDY
from nodes.schedule import MAX_BATCH_TOKENS, MAX_ROWS
from nodes.sessions import Busy, Missing, Stale
from nodes.work import NotNumbers
from tests.nodes.shards import (
    BREAKS,
    IS_NAN,
    NUM_LAYERS,
    PLAIN_IDS,
    TAKES_MEMORY,
    WIDTH,
    FakeShard,
    digests,
    next_id,
)

MOST_OPEN = 4
PICK = st.integers(0, 10_000)
IDS = st.integers(0, PLAIN_IDS - 1)
FAULTS = {BREAKS: EngineError, IS_NAN: NotNumbers, TAKES_MEMORY: OutOfMemory}


@dataclass
class Head:
    """A session as whoever asks sees it, and what the engine must hold of it by the rules of DESIGN's section 5."""

    id: str
    text: list[int]  # known ids: what was asked and what was answered
    position: int = 0  # of the next step
    step: int = 0
    sent: list[tuple[Step, Future[StepResult]]] = field(default_factory=list)  # in order; not looked at yet
    steps: list[Step] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    highest: int = -1
    kept: StepResult | None = None
    is_closed: bool = False


class Sessions(RuleBasedStateMachine):
    """Drives an engine turn by turn, on this thread."""

    hop = (0, NUM_LAYERS)

    def __init__(self) -> None:
        super().__init__()
        self.shard = FakeShard(*self.hop)
        self.engine = Engine(self.shard, 100_000)
        self.heads: list[Head] = []
        self.closing: list[tuple[Head, Future[bool]]] = []

    @property
    def is_tail(self) -> bool:
        return self.hop[1] == NUM_LAYERS

    def head(self, pick: int) -> Head:
        """Mostly one of the last: they are open."""
        among = self.heads[-MOST_OPEN:] if pick % 8 else self.heads
        return among[pick % len(among)]

    @precondition(lambda self: sum(not head.is_closed for head in self.heads) < MOST_OPEN)
    @rule(prompt=st.lists(IDS, min_size=1, max_size=9))
    def join(self, prompt: list[int]) -> None:
        self.heads.append(Head(f"{len(self.heads):032x}", prompt))

    @precondition(lambda self: self.heads)
    @rule(pick=PICK, chunk=st.integers(1, 4), turns=st.integers(0, 2))
    def prompt(self, pick: int, chunk: int, turns: int) -> None:
        """The next part of a prompt, or of a replay; the token that was answered last when nothing else is left."""
        head = self.head(pick)
        self.ask(head, head.text[head.position : head.position + chunk] or head.text[-1:])
        self.turn(turns)

    @precondition(lambda self: self.heads)
    @rule(pick=PICK, num_right=st.integers(0, 3), wrong=st.lists(IDS, max_size=2))
    def draft(self, pick: int, num_right: int, wrong: list[int]) -> None:
        head = self.head(pick)
        drafts: list[int] = []
        for _ in range(num_right):
            drafts.append(next_id([*head.text, *drafts]))
        self.ask(head, [head.text[-1], *drafts, *wrong], num_drafts=len(drafts + wrong), position=len(head.text) - 1)

    @precondition(lambda self: self.heads)
    @rule(pick=PICK, fault=st.sampled_from(sorted(FAULTS)))
    def break_down(self, pick: int, fault: int) -> None:
        self.ask(self.head(pick), [fault])

    def ask(self, head: Head, ids: list[int], num_drafts: int = 0, position: int | None = None) -> None:
        head.step += 1
        position = head.position if position is None else position
        hidden = None
        if self.hop[0] > 0:
            hidden = torch.tensor(ids, dtype=torch.float32).reshape(1, -1, 1).expand(1, len(ids), WIDTH)
        sampling = GREEDY if self.is_tail else None
        step = Step(head.id, 0, head.step, position, *self.hop, tuple(ids), hidden, sampling, 0, num_drafts)
        head.steps.append(step)
        head.sent.append((step, self.engine.submit(step)))

    @precondition(lambda self: any(head.steps for head in self.heads))
    @rule(pick=PICK, back=st.integers(0, 2), turns=st.integers(0, 2))
    def retry(self, pick: int, back: int, turns: int) -> None:
        """The last step again, or a late copy of one before."""
        head = self.head(pick)
        for step in head.steps[::-1][back : back + 1]:
            head.sent.append((step, self.engine.submit(step)))
        self.turn(turns)

    @precondition(lambda self: self.heads)
    @rule(pick=PICK, which=PICK)
    def cancel(self, pick: int, which: int) -> None:
        head = self.head(pick)
        if head.sent:
            assert head.sent[which % len(head.sent)][1].cancel()

    @precondition(lambda self: self.heads)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        head = self.head(pick)
        self.closing.append((head, self.engine.close_session(head.id, 0, time.monotonic() + 1000)))

    @rule(times=st.integers(1, 4))
    def turn(self, times: int) -> None:
        for _ in range(times):
            with torch.inference_mode():
                self.engine.turn()
            self.look()

    def look(self) -> None:
        """Closing comes first, then what was answered, of each session in the order in which it was sent."""
        for head, closed in self.closing:
            assert closed.result(0) == (head.highest >= 0 or bool(head.kept)) or head.step
            head.is_closed, head.cached, head.kept = True, [], None
        self.closing.clear()
        for head in self.heads:
            while head.sent and head.sent[0][1].done():
                self.compare(head, *head.sent.pop(0))
            assert not any(future.done() and not future.cancelled() for _, future in head.sent), "out of order"

    def compare(self, head: Head, step: Step, future: Future[StepResult]) -> None:
        if future.cancelled():
            return
        wanted = self.wanted(head, step)
        if isinstance(wanted, Exception):
            error = future.exception(0)
            assert type(error) is type(wanted), error
            assert getattr(error, "cached_tokens", 0) == getattr(wanted, "cached_tokens", 0)
            head.position = len(head.cached)
            return
        result = future.result(0)
        if step.step == head.highest and head.kept is not None:
            assert result is head.kept
            return
        head.cached, head.highest, head.kept = [*head.cached[: step.position], *step.token_ids], step.step, result
        if self.is_tail:
            assert list(result.token_ids) == wanted
            if step.position + step.num_tokens - step.num_drafts == len(head.text):
                head.text += wanted
        else:
            assert result.hidden is not None
            assert result.hidden[0, :, 0].tolist() == wanted
        head.position = min(len(head.cached), len(head.text) - 1)

    def wanted(self, head: Head, step: Step) -> list[int] | Exception:
        """By the table of sessions.py, written down a second time."""
        if head.is_closed or step.step < head.highest:
            return Stale()
        if step.step == head.highest and head.kept:
            return []
        if step.position > len(head.cached):
            return Missing(len(head.cached))
        for token_id in step.token_ids:
            if token_id in FAULTS:
                head.cached, head.kept = [], None
                return FAULTS[token_id]("")
        after = [*head.cached[: step.position], *step.token_ids]
        if not self.is_tail:
            return digests(after)[step.position :]
        sampled: list[int] = []
        for end in range(len(after) - step.num_drafts, len(after) + 1):
            sampled.append(next_id(after[:end]))
            if end == len(after) or sampled[-1] != after[end]:
                break
        return sampled

    @invariant()
    def the_books_are_right(self) -> None:
        assert self.engine.cached_tokens == sum(len(head.cached) for head in self.heads)
        for rows in self.shard.forwards:
            assert len(rows) <= MAX_ROWS
            assert sum(rows) <= max(MAX_BATCH_TOKENS, rows[0])
        self.shard.forwards.clear()

    def teardown(self) -> None:
        """Whatever still waits is answered: in the end nothing hangs."""
        for _ in range(1 + sum(len(head.sent) for head in self.heads)):
            self.turn(1)
        assert not any(head.sent for head in self.heads)
        assert self.engine.stop(0)
        assert isinstance(self.engine.submit(Step("e" * 32, 0, 1, 0, *self.hop, (1,), None, None)).exception(0), Busy)


class SessionsInTheMiddle(Sessions):
    hop = (1, 3)


QUICK = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestSessionsAtTheWholeModel = Sessions.TestCase
TestSessionsAtTheWholeModel.settings = QUICK
TestSessionsInTheMiddle = SessionsInTheMiddle.TestCase
TestSessionsInTheMiddle.settings = QUICK
