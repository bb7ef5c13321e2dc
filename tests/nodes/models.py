"""Tiny random models, whole folders as transformers writes them, for tests here and end to end."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
# Writes BOS itself, as many models' templates do, although the tokenizer also puts one before plain text.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = ["the quick brown fox jumps over the lazy dog and runs home", "user assistant system hello world what is"]


def make_tiny_llama(
    folder: Path,
    *,
    tied: bool = False,
    num_layers: int = 6,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    width: int = 64,
    intermediate: int = 96,
    context_length: int = 4096,
    max_shard_size: str = "1GB",
    seed: int = 0,
) -> Path:
    """Writes a random llama with a byte-level tokenizer and a chat template; the folder."""
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=intermediate,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context_length,
        tie_word_embeddings=tied,
        initializer_range=0.2,  # far from the usual 0.02: greedy tokens then vary, and near-ties are rare
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.bfloat16().save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Byte-level BPE of some 300 tokens: a character outside ASCII takes as many tokens as it has bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    bos = SPECIAL[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token=bos, eos_token=SPECIAL[2]
    )
    fast.chat_template = chat_template
    return fast


def shard_files(folder: Path) -> list[Path]:
    """Those of a model in several files."""
    return sorted(folder.glob("model-*.safetensors"))


def change(file: Path, **fields: object) -> None:
    """Fields of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
