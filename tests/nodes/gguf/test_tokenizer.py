"""Tokenizers of GGUF files cut text as the models' own do, or are refused by name.

The reference is put together here from what the models' tokenizer.json say, with another regex engine and the merging
written out: slow and plain.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import regex  # type: ignore[import-untyped]
from gguf import GGMLQuantizationType
from tokenizers import Tokenizer as Fast
from tokenizers import models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from nodes.gguf.file import read_header
from nodes.gguf.tokenizer import save_tokenizer
from nodes.text import Tokenizer
from nodes.weights import ModelError, ModelFolder
from tests.nodes.ggufs import tokenizer_metadata, write_gguf

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_WORD}|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_WORD}|\p{{N}}|{_REST}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<think>", "</think>"]
TEXTS = [
    "I'll say we've DON'T it's HE'S they'Re 'tis",
    "1 12 123 1234 12345 x1y22z333 3.14159 ٣٤٥ ⅷ² 12:30:45",
    "a\n\n\n  b\t\t c \r\n\r\n d\n e   \n   f",
    "   leading and trailing   ",
    "two  1 spaces   22 before    333 digits",
    "漢字かな交じり文 한국어 中文，标点。 ไทย हिन्दी",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇫🇷 ✨!",
    "e\u0301 cafe\u0301 o\u0308 n\u0303 é ｶﾞ \u1100\u1161\u11a8",
    "naïve “quoted” — don’t… $100 #tag @you (a[b]{c}) ///*** __init__ <|not special|>",
    "<|im_start|>user\n<think>hmm 1</think> x<|im_end|>\n",
    "\u00a0 \u2003 \u200b \ufeff x\x00\x7f",
    "the whole wholes",
    "x" * 50 + " " * 20 + "9" * 30,
    "",
]


@dataclass(frozen=True)
class Reference:
    """How a model's own tokenizer cuts text."""

    pieces: Callable[[str], list[str]]
    composes: bool = False
    whole_words_first: bool = False


def digits_apart(text: str) -> list[str]:
    parts = [part for part in regex.split(r"(\p{N})", text) if part]
    return [piece for part in parts for piece in regex.findall(GPT2, part)]


REFERENCES = {
    "gpt-2": Reference(lambda text: regex.findall(GPT2, text)),
    "smollm": Reference(digits_apart),
    "llama-bpe": Reference(lambda text: regex.findall(LLAMA3, text), whole_words_first=True),
    "qwen2": Reference(lambda text: regex.findall(QWEN2, text), composes=True),
}


def trained() -> PreTrainedTokenizerFast:
    """Some hundred merges, also of digits, of spaces and across all kinds of signs: any cut shows."""
    tokenizer = Fast(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1100,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
        max_token_length=6,
    )
    tokenizer.train_from_iterator([text[start:] for text in TEXTS for start in range(0, 30, 3)], trainer)
    tokenizer.add_tokens(USER_DEFINED)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[2]
    )


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """With a word that no merges lead to, and one that fills the vocabulary up."""
    fields = {"general.architecture": "llama", **tokenizer_metadata(trained(), "gpt-2")}
    fields["tokenizer.ggml.tokens"] += ["Ġwhole", "[PAD1]"]
    fields["tokenizer.ggml.token_type"] += [1, 5]
    return fields


def make(metadata: dict[str, Any], folder: Path) -> Tokenizer:
    """The tokenizer of a file with these metadata; None leaves one out."""
    folder.mkdir(exist_ok=True)
    tensor = {"t": (numpy.zeros(1, dtype=numpy.float32), GGMLQuantizationType.F32)}
    write_gguf(folder / "x.gguf", {key: value for key, value in metadata.items() if value is not None}, tensor)
    save_tokenizer(read_header(folder / "x.gguf"), folder / "made")
    return Tokenizer.load(folder / "made")


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer._tokenizer(text, add_special_tokens=False)["input_ids"])


class Plain:
    """Byte pair encoding, written out."""

    def __init__(self, metadata: dict[str, Any], reference: Reference) -> None:
        self._ids = {word: number for number, word in enumerate(metadata["tokenizer.ggml.tokens"])}
        self._ranks = {merge: rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
        self._reference, self._letters = reference, byte_letters()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in regex.split("(" + "|".join(map(regex.escape, [*SPECIAL, *USER_DEFINED])) + ")", text):
            if part in SPECIAL or part in USER_DEFINED:
                ids.append(self._ids[part])
                continue
            text = unicodedata.normalize("NFC", part) if self._reference.composes else part
            ids += [number for piece in self._reference.pieces(text) for number in self._merged(piece)]
        return ids

    def _merged(self, piece: str) -> list[int]:
        symbols = [self._letters[byte] for byte in piece.encode()]
        if self._reference.whole_words_first and "".join(symbols) in self._ids:
            return [self._ids["".join(symbols)]]
        while pairs := [pair for pair in itertools.pairwise(symbols) if " ".join(pair) in self._ranks]:
            best = min(pairs, key=lambda pair: self._ranks[" ".join(pair)])
            at = list(itertools.pairwise(symbols)).index(best)
            symbols[at : at + 2] = ["".join(best)]
        return [self._ids[symbol] for symbol in symbols]


def byte_letters() -> list[str]:
    """GPT-2's: bytes that print as Latin-1 stand for themselves, the others for letters from U+0100 on."""
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return [chr(byte) if byte in own else chr(next(others)) for byte in range(256)]


@pytest.mark.parametrize("pre", REFERENCES)
def test_text_is_cut_as_the_models_own_tokenizer_cuts_it(pre: str, metadata: dict[str, Any], tmp_path: Path) -> None:
    fields = metadata | {"tokenizer.ggml.pre": pre}
    tokenizer, plain = make(fields, tmp_path), Plain(fields, REFERENCES[pre])
    for text in TEXTS:
        ids = ids_of(tokenizer, text)
        assert ids == plain.encode(text), text
        whole = text if pre != "qwen2" else unicodedata.normalize("NFC", text)
        assert tokenizer._tokenizer.decode(ids) == whole


def test_the_texts_tell_the_rules_apart(metadata: dict[str, Any]) -> None:
    found = {pre: Plain(metadata, reference) for pre, reference in REFERENCES.items()}
    for one, other in itertools.combinations(found.values(), 2):
        assert any(one.encode(text) != other.encode(text) for text in TEXTS)


@pytest.mark.parametrize(
    ("fields", "before", "after"),
    [
        ({"add_bos_token": True}, [0], []),
        ({"add_bos_token": False, "add_eos_token": True}, [], [2]),
        ({"add_bos_token": None}, [], []),
        ({"add_bos_token": None, "pre": "llama-bpe"}, [0], []),
        ({"add_bos_token": False, "pre": "llama-bpe"}, [], []),
        ({"add_bos_token": True, "bos_token_id": None}, [], []),
    ],
)
def test_a_text_begins_and_ends_as_the_file_says(
    fields: dict[str, Any], before: list[int], after: list[int], metadata: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = make(metadata | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}, tmp_path)
    assert tokenizer.plain_prompt("a") == [*before, *ids_of(tokenizer, "a"), *after]


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, {0, 2}),  # <|endoftext|> is one by its name
        ({"eot_token_id": 1, "eom_token_id": 5}, {0, 1, 2, 5}),
        ({"eos_token_id": None}, {0, 2}),
    ],
)
def test_a_text_ends_with_any_of_the_files_ends(
    fields: dict[str, int], ends: set[int], metadata: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = make(metadata | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}, tmp_path)
    assert tokenizer.eos_ids == ends


def test_control_tokens_leave_no_text_and_the_users_do(metadata: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = make(metadata, tmp_path)
    assert tokenizer.decode(ids_of(tokenizer, "<|im_start|><think>a</think><|im_end|>")) == "<think>a</think>"


def test_what_fills_a_vocabulary_up_has_no_text(metadata: dict[str, Any], tmp_path: Path) -> None:
    tokenizer, last = make(metadata, tmp_path), len(metadata["tokenizer.ggml.tokens"]) - 1
    assert tokenizer.decode([last]) == ""
    assert last not in ids_of(tokenizer, "[PAD1]")


def test_the_chat_template_is_the_files(metadata: dict[str, Any], tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    tokenizer = make(metadata | {"tokenizer.chat_template": template}, tmp_path)
    messages = [{"role": "user", "content": "1"}]
    assert tokenizer.chat_prompt(messages) == [0, *ids_of(tokenizer, "[1]")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "llama"}, "tokenizers of kind 'llama' aren't supported; 'gpt2' is"),
        ({"model": None}, "tokenizers of kind None"),
        ({"pre": "deepseek-llm"}, "'deepseek-llm', isn't known; gpt-2, smollm, llama-bpe, qwen2 are"),
        ({"pre": None}, "None, isn't known"),
        ({"tokens": None}, "vocabulary is empty"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "twice"),
        ({"token_type": [1]}, "without type"),
        ({"merges": ["漢 字"]}, "don't fit together"),
        ({"merges": ["ab"]}, "don't fit together"),
        ({"eos_token_id": 1 << 20}, "eos_token_id is 1048576, which isn't a token"),
    ],
)
def test_a_tokenizer_that_isnt_known_is_refused_by_name(
    fields: dict[str, Any], words: str, metadata: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"x\.gguf.*--tokenizer") as caught:
        make(metadata | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}, tmp_path)
    assert words in str(caught.value)


def test_the_demo_model_is_tokenized_as_it_was_trained(smollm2: ModelFolder) -> None:
    tokenizer = Tokenizer.load(smollm2)
    assert ids_of(tokenizer, "Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert ids_of(tokenizer, "Café déjà vu.") == [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]
    assert ids_of(tokenizer, "  multiple   spaces") == [216, 2701, 256, 5600]
