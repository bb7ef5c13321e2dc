"""Which steps wait for their grammar, where, and what becomes of them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

import pytest

from nodes.compiling import MAX_WAITING, Compiler
from nodes.grammar import Grammar, Grammars, digest_of
from nodes.sampling import GREEDY
from nodes.sessions import Busy
from nodes.text import Tokenizer
from nodes.work import EngineError, NoGrammar, Step, StepResult
from tests.nodes.models import make_tokenizer

TOKENIZER = Tokenizer(make_tokenizer(), {2})
FORM = 'start: "the quick"'
PLAIN = Step("a" * 32, 0, 1, 0, 2, 4, (5, 6), None, GREEDY)
DEADLINE_S = 20.0


def step_of(form: str = FORM) -> Step:
    return replace(PLAIN, sampling=replace(GREEDY, grammar=digest_of(form), prompt_tokens=2))


class Bench:
    """`submitted`: what came to the engine, which answers when it is told to."""

    def __init__(self, grammars: Grammars | None) -> None:
        self.submitted: list[Step] = []
        self.came = threading.Event()
        self.worked: Future[StepResult] = Future()
        self.compiler = Compiler(grammars, self._submit)

    def _submit(self, step: Step) -> Future[StepResult]:
        self.submitted.append(step)
        self.came.set()
        return self.worked

    def answer(self) -> StepResult:
        assert self.came.wait(DEADLINE_S)
        result = StepResult(None, (7,), 0.0, 0.0)
        self.worked.set_result(result)
        return result


class Slow(Grammars):
    """Compiles when it is let."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER, len(TOKENIZER.backend))
        self.asked, self.may = threading.Event(), threading.Event()

    def check(self, text: str) -> Grammar:
        self.asked.set()
        assert self.may.wait(DEADLINE_S)
        return super().check(text)


@pytest.fixture
def grammars() -> Grammars:
    return Grammars(TOKENIZER, len(TOKENIZER.backend))


@pytest.mark.parametrize("step", [PLAIN, replace(PLAIN, sampling=None)])
def test_a_step_without_a_grammar_passes_as_it_is(step: Step) -> None:
    bench = Bench(None)

    assert bench.compiler.submit(step, None) is bench.worked
    assert bench.submitted == [step]


def test_a_grammar_that_is_known_goes_with_the_step_at_once(grammars: Grammars) -> None:
    bench = Bench(grammars)
    known = grammars.check(FORM)

    assert bench.compiler.submit(step_of(), None) is bench.worked
    assert bench.submitted == [replace(step_of(), grammar=known)]


def test_one_that_is_not_known_is_compiled_elsewhere_and_the_thread_that_brought_it_goes_on() -> None:
    grammars = Slow()
    bench = Bench(grammars)
    waits = bench.compiler.submit(step_of(), FORM)
    assert grammars.asked.wait(DEADLINE_S)
    assert bench.submitted == []

    assert bench.compiler.submit(PLAIN, None) is bench.worked  # others pass meanwhile
    bench.came.clear()
    grammars.may.set()
    assert bench.answer() == waits.result(DEADLINE_S)
    assert bench.submitted[-1].grammar is grammars.get(digest_of(FORM))


def test_without_its_text_it_is_asked_for(grammars: Grammars) -> None:
    bench = Bench(grammars)
    with pytest.raises(NoGrammar, match="send it along"):
        bench.compiler.submit(step_of(), None).result(0)
    assert bench.submitted == []


def test_a_node_without_a_tokenizer_says_so() -> None:
    bench = Bench(None)
    with pytest.raises(NoGrammar, match="no tokenizer, so it holds no answer to a form; --tokenizer names one"):
        bench.compiler.submit(step_of(), FORM).result(0)
    assert bench.submitted == []


def test_what_cannot_be_compiled_here_may_be_elsewhere(grammars: Grammars) -> None:
    bench = Bench(grammars)
    with pytest.raises(NoGrammar, match="can't compile the grammar: this schema can't be kept"):
        bench.compiler.submit(step_of("start: foo"), "start: foo").result(DEADLINE_S)
    assert bench.submitted == []


def test_whatever_fails_is_told_and_hides_what_it_was(grammars: Grammars, caplog: pytest.LogCaptureFixture) -> None:
    grammars._tokenizer = None  # type: ignore[assignment]
    with pytest.raises(EngineError, match=r"^the node failed to compile the grammar$"):
        Bench(grammars).compiler.submit(step_of(), FORM).result(DEADLINE_S)
    assert "AttributeError" in caplog.text


def test_a_bounded_number_waits_and_places_become_free_again() -> None:
    grammars = Slow()
    bench = Bench(grammars)
    waiting = [bench.compiler.submit(step_of(), FORM) for _ in range(MAX_WAITING)]
    with pytest.raises(Busy, match=f"{MAX_WAITING} grammars wait here"):
        bench.compiler.submit(step_of(), FORM).result(0)

    grammars.may.set()
    result = bench.answer()
    assert all(one.result(DEADLINE_S) == result for one in waiting)
    assert bench.compiler.submit(step_of("start: foo"), "start: foo").exception(DEADLINE_S) is not None


def test_whoever_leaves_while_it_is_compiled_takes_the_step_along() -> None:
    grammars = Slow()
    bench = Bench(grammars)
    waits = bench.compiler.submit(step_of(), FORM)
    assert waits.cancel()

    grammars.may.set()
    assert bench.came.wait(DEADLINE_S)
    done = threading.Event()
    bench.worked.add_done_callback(lambda _: done.set())
    assert done.wait(DEADLINE_S)
    assert bench.worked.cancelled()
