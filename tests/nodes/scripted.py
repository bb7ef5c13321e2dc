"""A tiny model that says what a test has written for it: which text, only the prompt's last character decides.

Its layers change nothing (what they add is zero), embeddings are one-hot, and the head of the model maps each token to
its successor. So a text's tokens must all be different, and are made so: they are cut without regard to characters,
words or each other, as a byte-level BPE may cut. It is a model as any other to all that serves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

BOS, START, END = "<|bos|>", "<|im_start|>", "<|im_end|>"
NUM_LAYERS = 4
WIDTH = 512  # and the size of the vocabulary
LIKELY = 8.0  # logit of the successor, where all others have 0: it comes in nine of ten draws at temperature 1
OTHERWISE = "ok"  # what is said after any other character

# The last character of the prompt stands where the answer begins.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ messages[-1]['content'][-1:] }}{% endif %}"
)


def make_scripted_llama(
    folder: Path, texts: Mapping[str, str], *, endless: Iterable[str] = (), context_length: int = 400
) -> Path:
    """`texts` by the character that asks for them; those that are `endless` begin again. The folder."""
    tokens = _Vocabulary()
    following: dict[int, int] = dict.fromkeys(range(WIDTH), tokens.first_of(OTHERWISE))
    for character, text in texts.items():
        ids = tokens.cut(text.encode())
        last = ids[0] if character in endless else tokens.end
        following |= dict(zip([tokens.of(character.encode()), *ids], [*ids, last], strict=True))
    following |= {tokens.first_of(OTHERWISE): tokens.end}
    _save_model(folder, following, context_length)
    tokens.tokenizer().save_pretrained(folder)
    return folder


class _Vocabulary:
    """Single bytes, which prompts are made of, and pieces of texts, which answers are made of."""

    def __init__(self) -> None:
        self._ids = {token: number for number, token in enumerate((BOS, START, END))}
        self._spelled: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]  # as ByteLevel writes bytes
        for byte in range(256):
            self._add(bytes([byte]))

    @property
    def end(self) -> int:
        return self._ids[END]

    def of(self, piece: bytes) -> int:
        return self._ids[self._written(piece)]

    def first_of(self, text: str) -> int:
        return self._ids.get(self._written(text.encode())) or self._add(text.encode())

    def cut(self, text: bytes) -> list[int]:
        """Into tokens of which none has been before: of five bytes, but the last. A text of one byte is that byte."""
        ids = []
        while text:
            sizes = range(min(5, len(text)), len(text) + 1)
            size = next((size for size in sizes if self._is_new(text[:size])), len(text))
            ids.append(self._add(text[:size]))
            text = text[size:]
        return ids

    def tokenizer(self) -> PreTrainedTokenizerFast:
        fast = Tokenizer(models.BPE(vocab=self._ids, merges=[]))
        fast.add_special_tokens([BOS, START, END])
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        fast.decoder = decoders.ByteLevel()
        fast.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
        made = PreTrainedTokenizerFast(tokenizer_object=fast, bos_token=BOS, eos_token=END)  # type: ignore[no-untyped-call]
        made.chat_template = TEMPLATE
        return made

    def _add(self, piece: bytes) -> int:
        assert len(self._ids) < WIDTH, "the texts are too long for this vocabulary"
        return self._ids.setdefault(self._written(piece), len(self._ids))

    def _is_new(self, piece: bytes) -> bool:
        return self._written(piece) not in self._ids

    def _written(self, piece: bytes) -> str:
        return "".join(self._spelled[byte] for byte in piece)


def _save_model(folder: Path, following: Mapping[int, int], context_length: int) -> None:
    config = LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=context_length,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
    )
    model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(WIDTH))
        model.lm_head.weight.zero_()
        for token_id, successor in following.items():
            model.lm_head.weight[successor, token_id] = LIKELY / WIDTH**0.5  # the last norm makes one-hot rows so long
    model.bfloat16().save_pretrained(folder)
