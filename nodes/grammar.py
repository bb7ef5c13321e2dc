"""Answers of a given form: which tokens may follow, by a grammar that llguidance reads.

A grammar is one text, Lark's form as llguidance has it, in which `%json {…}` stands for a JSON schema. The head makes
it and checks it, the tail masks logits by it. Where an answer is in its grammar follows from the answer's ids alone
(GrammarState): crops, drafts, replays and another tail change nothing.

What is compiled is shared by the sessions that use it, and with it what llguidance has found out of it so far, which
is bounded. So one session may fail by what others have met: it is then given a grammar compiled anew, and only what
fails there too is the grammar's fault.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import llguidance
import llguidance.hf
import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from nodes.complaints import NOT_OF_IT, in_words
from nodes.text import Tokenizer

logger = logging.getLogger(__name__)

MAX_GRAMMAR_BYTES = 64 * 1024  # of a text: what bounds the seconds that compiling takes
MAX_GRAMMARS = 16  # compiled ones that a node keeps, the latest used

# Of one grammar: some 20 MB, some 50 ms for a token at worst. What a model may say has 250,000 and 50,000 items by
# llguidance's own limits, which are 110 MB and seconds, on the thread that all sessions wait for.
_LIMITS = LLParserLimits(max_lexer_states=40_000, step_max_items=10_000, step_lexer_fuel=100_000, verbose_errors=False)
_TRIED_TOKENS = 32  # as the first of an answer, to find what compiles and then is too much

Logits = np.ndarray[Any, np.dtype[np.float32]]
Bits = np.ndarray[Any, np.dtype[np.uint8]]


class GrammarError(ValueError):
    """The grammar can't be followed: whoever asked for it is told these words."""


def digest_of(text: str) -> str:
    """What a grammar is known by."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Grammars:
    """The grammars of one model's tokenizer, compiled: a bounded number. For any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, most: int = MAX_GRAMMARS) -> None:
        self._tokenizer, self._vocab_size, self._most = tokenizer, vocab_size, most
        self._vocabulary: Vocabulary | None = None
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Grammar] = OrderedDict()

    def check(self, text: str) -> Grammar:
        """The grammar, compiled unless it is known. May take a second. Raises GrammarError."""
        _check_size(text)
        digest = digest_of(text)
        if known := self.get(digest):
            return known
        if self._vocabulary is None:  # most faults need none to be found: they are told at once
            _check_without_tokens(text)
        grammar = Grammar(text, digest, self.vocabulary())
        grammar.try_out()
        with self._lock:
            self._compiled[digest] = grammar
            while len(self._compiled) > self._most:
                self._compiled.popitem(last=False)
        return grammar

    def get(self, digest: str) -> Grammar | None:
        """The grammar if it is kept here."""
        with self._lock:
            if digest in self._compiled:
                self._compiled.move_to_end(digest)
            return self._compiled.get(digest)

    def vocabulary(self) -> Vocabulary:
        """Made when it is first asked for: half a second that most nodes never need. Raises GrammarError."""
        with self._making:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._tokenizer, self._vocab_size)
            return self._vocabulary


class Vocabulary:
    """A model's tokens as llguidance wants them."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Raises GrammarError for a tokenizer that it can't use."""
        backend = tokenizer.backend
        num_tokens = max(vocab_size, len(backend))  # logits may have more rows than there are tokens, and fewer
        self.eos_ids = frozenset(token_id for token_id in tokenizer.eos_ids if token_id < vocab_size)
        if not self.eos_ids:
            raise GrammarError("the model names no token that ends a text, so no answer can be held to a form")
        try:
            self.tokens: LLTokenizer = llguidance.hf.from_tokenizer(
                backend, n_vocab=num_tokens, eos_token=sorted(self.eos_ids)
            )
        except Exception as error:
            logger.warning("llguidance can't use the model's tokenizer: %r", error)
            raise GrammarError("the model's tokenizer is of a kind by which no answer can be held to a form") from error


class Grammar:
    """One that is compiled. `text` is what travels, `digest` what it is known by."""

    def __init__(self, text: str, digest: str, vocabulary: Vocabulary) -> None:
        """Raises GrammarError."""
        self.text, self.digest, self.vocabulary = text, digest, vocabulary
        self._first = self._compiled()

    def matcher(self) -> LLMatcher:
        """At its beginning. Copies share what is found out of the grammar, and the room for it."""
        return self._first.deep_copy()

    def matcher_anew(self) -> LLMatcher:
        """The same, with all the room there is: for whoever has failed with the one before, and all who come."""
        self._first = self._compiled()
        return self.matcher()

    def begin(self) -> GrammarState:
        return GrammarState(self)

    def try_out(self) -> None:
        """With some answers of one token. Raises GrammarError."""
        state = self.begin()
        for token_id in np.flatnonzero(state.allowed([]))[:_TRIED_TOKENS].tolist():
            state.allowed([token_id])

    def _compiled(self) -> LLMatcher:
        matcher = LLMatcher(self.vocabulary.tokens, self.text, log_level=0, limits=_LIMITS)
        _check(matcher)
        return matcher


class GrammarState:
    """Where one answer is in its grammar. Used by one thread."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._matcher: LLMatcher = grammar.matcher()
        self._ids: list[int] = []  # what it has read, up to the token that ends the text
        self._bits = llguidance.numpy.allocate_token_bitmask(1, grammar.vocabulary.tokens.vocab_size)

    @property
    def digest(self) -> str:
        return self.grammar.digest

    def forbid(self, row: Logits, ids: Sequence[int]) -> None:
        """Takes away, in place, the logits of all that can't follow these ids, the answer so far.

        row: [vocab_size]. Raises GrammarError where the ids aren't of the grammar, or nothing can follow.
        """
        allowed = self.allowed(ids)
        if len(allowed) < len(row):
            row[len(allowed) :] = -np.inf
        np.copyto(row, -np.inf, where=allowed[: len(row)] == 0)

    def allowed(self, ids: Sequence[int]) -> Bits:
        """1 for each token that can follow, [tokens, or some more]; only what ends the text where it is complete."""
        try:
            return self._allowed(ids)
        except GrammarError:
            self._matcher, self._ids = self.grammar.matcher_anew(), []
        return self._allowed(ids)

    def _allowed(self, ids: Sequence[int]) -> Bits:
        if self._read(ids):
            return self._only_ends()
        if self._matcher.is_stopped():
            _check(self._matcher)
            return self._only_ends()
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits)
        _check(self._matcher)
        bits = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")
        if not bits.any():
            raise GrammarError("nothing can follow what has been said so far")
        return bits

    def _only_ends(self) -> Bits:
        bits = np.zeros(self._bits.size * 32, dtype=np.uint8)
        bits[list(self.grammar.vocabulary.eos_ids)] = 1
        return bits

    def _read(self, ids: Sequence[int]) -> bool:
        """Goes back to where these ids part from those before, and on to their end; whether they end the text."""
        same = _num_same(self._ids, ids)
        if same < len(self._ids):
            self._matcher.rollback(len(self._ids) - same)
            _check(self._matcher)
            del self._ids[same:]
        for token_id in ids[same:]:
            if token_id in self.grammar.vocabulary.eos_ids:
                return True
            if self._matcher.is_stopped() or not self._matcher.consume_token(token_id):
                _check(self._matcher)
                raise GrammarError(NOT_OF_IT)
            self._ids.append(token_id)
        return False


def _num_same(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Ids at the beginning that are the same."""
    if list(theirs[: len(ours)]) == ours:
        return len(ours)
    return next(number for number, (one, other) in enumerate(zip(ours, [*theirs, -1], strict=False)) if one != other)


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise GrammarError("the form holds half a surrogate pair, which no text can") from None
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"the form is too long: {size} bytes of grammar; up to {MAX_GRAMMAR_BYTES} are taken")


def _check_without_tokens(text: str) -> None:
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(text, None, limits=_LIMITS)
    if is_wrong:
        raise GrammarError(in_words(messages[0]))


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(in_words(matcher.get_error()))
