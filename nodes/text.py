"""Text to token ids and back: prompts, text that comes out token by token, and the strings that end it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from nodes.markups import Markup
from nodes.prompts import ChatTemplate, not_text, special_tokens
from nodes.prompts import ChatTemplateMissing as ChatTemplateMissing
from nodes.prompts import PromptError as PromptError
from nodes.spelling import Speller
from nodes.weights import ModelError, ModelFolder, read_json

REPLACEMENT = "\ufffd"  # what half a character decodes to
_MAX_HELD_REPLACEMENTS = 3  # half a character is at most three bytes


class Tokenizer:
    """A model's tokenizer, chat template and end-of-text ids."""

    def __init__(self, tokenizer: Any, eos_ids: Collection[int]) -> None:
        self._tokenizer, self.eos_ids = tokenizer, frozenset(eos_ids)
        self._chat_template = ChatTemplate(tokenizer, self.eos_ids)

    @classmethod
    def load(cls, folder: ModelFolder | Path, instead: Path | None = None) -> Tokenizer:
        """The model's, or in its place that of another folder, which must be of this model. Raises ModelError."""
        path = instead or (folder.tokenizer_path() if isinstance(folder, ModelFolder) else folder)
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            first_line = str(error).strip().partition("\n")[0]
            hint = "name a folder that has the model's tokenizer.json with --tokenizer"
            raise ModelError(f"{path} has no tokenizer that can be used; {hint} ({first_line})") from error
        eos_ids = _eos_ids(path, tokenizer)
        if instead and isinstance(folder, ModelFolder):
            _refuse_unless_it_fits(tokenizer, path, folder)
            eos_ids |= _eos_ids(folder.path, tokenizer)
        return cls(tokenizer, eos_ids)

    @property
    def backend(self) -> Any:
        """The tokenizer as transformers has it."""
        return self._tokenizer

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of the messages and the beginning of the answer. Raises PromptError, ChatTemplateMissing."""
        return self._chat_template.prompt_ids(messages, tools)

    @property
    def markup(self) -> Markup:
        """Of calls in a chat's answers."""
        return self._chat_template.markup

    @cached_property
    def special_marks(self) -> frozenset[int]:
        """Special tokens that the markup is made of."""
        parts = self.split(self.markup.begin + self.markup.between + self.markup.end)
        return frozenset(part for part in parts if isinstance(part, int))

    def split(self, text: str) -> list[str | int]:
        """Its special tokens, as ids, and what is text between them."""
        longest_first = sorted(self._special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if longest_first else [text]
        return [self._special.get(part, part) for part in parts if part]

    def plain_prompt(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the model's own tokenizer puts before it."""
        try:
            ids: list[int] = self._tokenizer(text)["input_ids"]
        except (UnicodeError, TypeError) as error:
            raise not_text(error) from error
        return ids

    def decode(self, token_ids: Sequence[int], hidden: Collection[int] | None = None) -> str:
        """Without the tokens that are hidden: the special ones, where none are named."""
        text: str = self._tokenizer.decode(
            [token_id for token_id in token_ids if not hidden or token_id not in hidden],
            skip_special_tokens=hidden is None,
            clean_up_tokenization_spaces=False,
        )
        return text

    @cached_property
    def speller(self) -> Speller:
        return Speller(self._tokenizer)

    def detokenizer(self, shown: Collection[int] = ()) -> Detokenizer:
        """`shown`: special tokens that are text here, as other models write it."""
        return Detokenizer(self, frozenset(self._special.values()) - set(shown) if shown else None)

    @cached_property
    def _special(self) -> dict[str, int]:
        return special_tokens(self._tokenizer)


class Detokenizer:
    """Text of tokens as they come. What is given out never changes; joined it is the text of all tokens."""

    def __init__(self, tokenizer: Tokenizer, hidden: Collection[int] | None = None) -> None:
        self._tokenizer, self._hidden = tokenizer, hidden
        self._ids: list[int] = []
        self._start = 0  # of the window that is decoded again: a token's text depends on those before it
        self._read = 0  # end of the tokens whose text is out
        self._num_out = 0  # characters of the window that are out

    def push(self, token_ids: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        self._ids += token_ids
        text = self._decode(self._ids[self._start :])
        held = len(text) - len(text.rstrip(REPLACEMENT))
        if held > _MAX_HELD_REPLACEMENTS:
            held = max(_MAX_HELD_REPLACEMENTS, min(held, self._num_bytes()))
        out = text[self._num_out : len(text) - held]
        self._num_out += len(out)
        if out and not held:
            self._advance()
        return out

    def finish(self) -> str:
        """What was held: half a character, or a replacement character that the model means."""
        out = self._decode(self._ids[self._start :])[self._num_out :]
        self._num_out += len(out)
        return out

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, self._hidden)

    def _num_bytes(self) -> int:
        """Of the latest tokens, how many are bytes. Half a character spoils the whole run of them, also what is out."""
        window = self._ids[self._start :]
        return next((number for number, one in enumerate(reversed(window)) if not self._is_byte(one)), len(window))

    def _is_byte(self, token_id: int) -> bool:
        return self._tokenizer.speller.is_byte(token_id)

    def _advance(self) -> None:
        """Starts the window at the latest tokens. They must have text: decoders treat the first text apart."""
        context = self._decode(self._ids[self._read :])
        if context:
            self._start, self._num_out = self._read, len(context)
        self._read = len(self._ids)


class StopMatcher:
    """Finds the first stop string to be complete, however the text is cut into pieces, and lets none of it out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self.is_stopped = False
        self._held = ""  # the end of the text so far that a stop string may begin with

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may go out, whether a stop string was found)."""
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held, self.is_stopped = "", True
            return text[: min(found)[1]], True
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """What was held: the text ended on what could have become a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of the text that the stop string begins with; fewer than all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


def _eos_ids(path: Path, tokenizer: Any) -> set[int]:
    """Every id that ends a text: generation_config.json or config.json names one or several; the tokenizer one."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        given = read_json(path / name).get("eos_token_id") if (path / name).exists() else None
        if given is not None:
            ids.update(given if isinstance(given, list) else [given])
            break
    return ids | ({tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set())


def _refuse_unless_it_fits(tokenizer: Any, path: Path, folder: ModelFolder) -> None:
    last, size = max(tokenizer.get_vocab().values(), default=0), int(folder.config.vocab_size)
    if last >= size:
        raise ModelError(f"{path} is the tokenizer of another model: its tokens go up to {last}, the model has {size}")
