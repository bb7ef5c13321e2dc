"""Grammars, tried: whether a text is of one, and texts that a model without any sense would write in it."""

from __future__ import annotations

import random

import numpy as np

from nodes.grammar import Grammar, GrammarError, Grammars
from nodes.text import Tokenizer

NUM_TOKENS = 512  # of the tokenizers that tests have, and room
_LIKED = '"}],:0'  # characters that bring a JSON text to its end


class Walker:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.grammars = tokenizer, Grammars(tokenizer, NUM_TOKENS)
        self._liked = frozenset(tokenizer.backend.convert_tokens_to_ids(list(_LIKED)))

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.backend(text, add_special_tokens=False)["input_ids"])

    def reads(self, grammar: str, text: str) -> bool:
        """Whether it may be the beginning of an answer."""
        return self._allowed(self.grammars.check(grammar), self.ids(text)) is not None

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether it may be the whole answer."""
        allowed = self._allowed(self.grammars.check(grammar), self.ids(text))
        return allowed is not None and 2 in allowed

    def text(self, grammar: str, seed: int, max_tokens: int = 300) -> str | None:
        """One that ends by itself, if it does."""
        chance, compiled, ids = random.Random(seed), self.grammars.check(grammar), list[int]()
        while len(ids) < max_tokens:
            allowed = self._allowed(compiled, ids)
            assert allowed, self.tokenizer.decode(ids)
            liked = [token_id for token_id in allowed if token_id in self._liked or token_id == 2]
            ids.append(chance.choice(liked if liked and chance.random() < 0.5 else allowed))
            if ids[-1] == 2:
                return self.tokenizer.decode(ids[:-1])
        return None

    def _allowed(self, grammar: Grammar, ids: list[int]) -> list[int] | None:
        try:
            return [int(token_id) for token_id in np.flatnonzero(grammar.begin().allowed(ids))]
        except GrammarError:
            return None
