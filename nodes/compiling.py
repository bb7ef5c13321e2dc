"""Steps whose answers are held to a grammar, on their way to the engine: each waits here until that is compiled.

Compiling may take a second, and the threads that bring steps, like the one that works them, are everybody's: it has a
thread of its own. Steps without a grammar, and those whose grammar is known, pass at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from nodes.answers import hand_on
from nodes.grammar import GrammarError, Grammars
from nodes.sessions import Busy
from nodes.work import EngineError, NoGrammar, Step, StepResult

logger = logging.getLogger(__name__)

MAX_WAITING = 16  # texts that wait to be compiled


class Compiler:
    """`grammars`: None where this node has no tokenizer. For any thread."""

    def __init__(self, grammars: Grammars | None, submit: Callable[[Step], Future[StepResult]]) -> None:
        self._grammars, self._submit = grammars, submit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._lock = threading.Lock()
        self._num_waiting = 0

    def submit(self, step: Step, text: str | None) -> Future[StepResult]:
        """The engine's result, or in its place NoGrammar, where nothing was touched, or Busy. `text`: of the grammar,
        where it has come along."""
        if step.sampling is None or not step.sampling.grammar:
            return self._submit(step)
        if self._grammars is None:
            return _failed(
                NoGrammar("this node has no tokenizer, so it holds no answer to a form; --tokenizer names one")
            )
        if known := self._grammars.get(step.sampling.grammar):
            return self._submit(replace(step, grammar=known))
        if text is None:
            return _failed(NoGrammar("this node doesn't know the grammar: send it along with the step"))
        with self._lock:
            if self._num_waiting >= MAX_WAITING:
                return _failed(Busy(f"{MAX_WAITING} grammars wait here to be compiled"))
            self._num_waiting += 1
        waits: Future[StepResult] = Future()
        self._thread.submit(self._compile, self._grammars, step, text, waits)
        return waits

    def _compile(self, grammars: Grammars, step: Step, text: str, waits: Future[StepResult]) -> None:
        try:
            worked = self._submit(replace(step, grammar=grammars.check(text)))
        except GrammarError as error:  # the head could: its tokenizer or its llguidance is another
            worked = _failed(NoGrammar(f"this node can't compile the grammar: {error}"))
        except Exception:
            logger.exception("a grammar can't be compiled")
            worked = _failed(EngineError("the node failed to compile the grammar"))
        finally:
            with self._lock:
                self._num_waiting -= 1
        waits.add_done_callback(lambda waits: worked.cancel() if waits.cancelled() else None)
        hand_on(worked, waits)


def _failed(error: Exception) -> Future[StepResult]:
    future: Future[StepResult] = Future()
    future.set_exception(error)
    return future
