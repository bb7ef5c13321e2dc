from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from nodes.spelling import Speller
from nodes.text import Tokenizer
from nodes.weights import ModelFolder
from tests.nodes.models import make_tokenizer


def test_the_bytes_of_a_texts_tokens_are_the_texts() -> None:
    tokenizer = Tokenizer(make_tokenizer(), {2})
    for text in ("the quick brown fox", " two  spaces\n\ttab", "漢字 é 👩‍👩‍👧‍👦", "\x00\x7f\xad\xa0"):
        ids = tokenizer.plain_prompt(text)[1:]
        assert b"".join(tokenizer.speller.bytes_of(token_id) for token_id in ids) == text.encode()


def test_half_a_character_is_spelled_by_its_bytes() -> None:
    tokenizer = Tokenizer(make_tokenizer(), {2})
    first, *_ = tokenizer.plain_prompt("漢")[1:]
    assert tokenizer.speller.spell(first) == ("\\xe6", [0xE6])


def test_special_tokens_are_spelled_as_they_are_called() -> None:
    assert Tokenizer(make_tokenizer(), {2}).speller.spell(2) == ("<|im_end|>", list(b"<|im_end|>"))


def test_an_id_that_is_no_token_is_spelled_as_nothing() -> None:
    assert Tokenizer(make_tokenizer(), {2}).speller.spell(100_000) == ("", [])


@pytest.fixture
def with_fallback() -> Speller:
    vocabulary = {"▁hello": 0, "<0xE6>": 1, "▁": 2, "é": 3}
    backend = Backend(models.BPE(vocabulary, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return Speller(PreTrainedTokenizerFast(tokenizer_object=backend))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("token_id", "spelled"),
    [(0, (" hello", list(b" hello"))), (1, ("\\xe6", [0xE6])), (2, (" ", [32])), (3, ("é", [0xC3, 0xA9]))],
)
def test_vocabularies_with_byte_fallback_are_spelled_too(
    with_fallback: Speller, token_id: int, spelled: tuple[str, list[int]]
) -> None:
    assert with_fallback.spell(token_id) == spelled


def test_the_demo_models_tokens_are_spelled(smollm2: ModelFolder) -> None:
    tokenizer = Tokenizer.load(smollm2)
    text = "Hello, 世界! don't 12345\n"
    ids = tokenizer.plain_prompt(text)
    assert b"".join(tokenizer.speller.bytes_of(token_id) for token_id in ids) == text.encode()
