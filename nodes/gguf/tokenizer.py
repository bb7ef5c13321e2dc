"""The tokenizer of a GGUF file, made into what transformers reads.

A GGUF file holds the vocabulary and the merges, but of how text is cut before merging only a name
(`tokenizer.ggml.pre`). What the name stands for is in each model's own tokenizer.json; a name whose rules aren't here
is refused, because another rule gives other tokens without any error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from nodes.gguf.file import GgufFile
from nodes.weights import ModelError

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # values of tokenizer.ggml.token_type
_HINT = "; give --tokenizer a folder with the model's own tokenizer"

# How control tokens that end a turn or a text are spelled, for files that don't say which of theirs do.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>")

# Apostrophe endings | a word with what stands before it | digits, so many at a time | other signs | line ends | spaces
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Rules:
    """What a name in `tokenizer.ggml.pre` stands for."""

    split: Callable[[], Any]  # a pre-tokenizer of the tokenizers package
    composes: bool = False  # combining marks are joined with their letter first (NFC)
    whole_words_first: bool = False  # a word that is in the vocabulary is taken as it is, without merging
    adds_bos: bool = False  # where the file doesn't say


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _words(digits: str) -> Any:
    split = pre_tokenizers.Split(Regex(_WORDS % digits), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


RULES = {
    "gpt-2": Rules(_gpt2),
    "smollm": Rules(_smollm),
    "llama-bpe": Rules(lambda: _words(r"\p{N}{1,3}"), whole_words_first=True, adds_bos=True),
    "qwen2": Rules(lambda: _words(r"\p{N}"), composes=True),
}


def save_tokenizer(file: GgufFile, folder: Path) -> None:
    """Writes tokenizer, chat template and the ids that end a text into the folder. Raises ModelError."""
    vocabulary = _Vocabulary(file)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_build(file, vocabulary, _rules(file)), **vocabulary.named()
    )
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    ends = {"eos_token_id": vocabulary.end_ids()} if vocabulary.end_ids() else {}
    (folder / "generation_config.json").write_text(json.dumps(ends))


class _Vocabulary:
    """The file's words and what it says of them."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.words: list[str] = file.array("tokenizer.ggml.tokens")
        self.types: list[int] = file.array("tokenizer.ggml.token_type") or [1] * len(self.words)
        if not self.words or len(self.types) != len(self.words) or len(set(self.words)) != len(self.words):
            raise ModelError(f"{file.path}: its vocabulary is empty, or has words without type or twice{_HINT}")

    def ids(self) -> dict[str, int]:
        """Without the padding of a vocabulary to a round number: it has no text."""
        return {word: number for number, word in enumerate(self.words) if self.types[number] != _UNUSED}

    def added(self) -> Iterator[AddedToken]:
        """Words that are found in text as a whole before all else; special ones leave no text when decoded."""
        for word, kind in zip(self.words, self.types, strict=True):
            if kind in (_CONTROL, _USER_DEFINED):
                yield AddedToken(word, normalized=False, special=kind == _CONTROL)

    def named(self) -> dict[str, str]:
        """bos_token and such, as transformers calls them."""
        keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        found = {f"{ours}_token": self.named_id(theirs) for ours, theirs in keys.items()}
        return {name: self.words[number] for name, number in found.items() if number is not None}

    def named_id(self, key: str) -> int | None:
        number = self._file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None and (not isinstance(number, int) or not 0 <= number < len(self.words)):
            raise ModelError(
                f"{self._file.path}: tokenizer.ggml.{key}_token_id is {number!r}, which isn't a token{_HINT}"
            )
        return number

    def end_ids(self) -> list[int]:
        """Of the text, of a turn, of a message; those that are named so where the file doesn't tell."""
        told = {number for key in ("eos", "eot", "eom") if (number := self.named_id(key)) is not None}
        spelled = {n for n, word in enumerate(self.words) if word in _ENDS and self.types[n] == _CONTROL}
        return sorted(told | spelled)


def _rules(file: GgufFile) -> Rules:
    model, name = (file.metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if model != "gpt2":
        raise ModelError(f"{file.path}: tokenizers of kind {model!r} aren't supported; 'gpt2' is{_HINT}")
    if name not in RULES:
        known = ", ".join(RULES)
        raise ModelError(f"{file.path}: how its tokenizer cuts text, {name!r}, isn't known; {known} are{_HINT}")
    return RULES[name]


def _build(file: GgufFile, vocabulary: _Vocabulary, rules: Rules) -> Tokenizer:
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in file.array("tokenizer.ggml.merges"))]
    try:
        model = models.BPE(vocabulary.ids(), merges, ignore_merges=rules.whole_words_first)
    except Exception as error:  # the package raises no narrower one
        raise ModelError(f"{file.path}: its vocabulary and merges don't fit together: {error}{_HINT}") from None
    tokenizer = Tokenizer(model)
    if rules.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rules.split()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(vocabulary.added()))
    around = _around(file, vocabulary, rules)
    if around != ["$A"]:
        ids = [(word, vocabulary.words.index(word)) for word in around if word != "$A"]
        tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=ids)
    return tokenizer


def _around(file: GgufFile, vocabulary: _Vocabulary, rules: Rules) -> list[str]:
    """A text with the tokens that are put before and after it."""
    named = vocabulary.named()
    adds_bos = file.metadata.get("tokenizer.ggml.add_bos_token", rules.adds_bos)
    adds_eos = file.metadata.get("tokenizer.ggml.add_eos_token", False)
    before = [named["bos_token"]] if adds_bos and "bos_token" in named else []
    after = [named["eos_token"]] if adds_eos and "eos_token" in named else []
    return [*before, "$A", *after]
