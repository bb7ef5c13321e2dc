"""A model: its config, its tensors, what makes two copies the same. Opened from whatever names it on a command line.

Everything here reads headers, names and sizes; the tensors themselves are read by shard.py, only those of its layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nodes import fingerprint, layout
from nodes.layout import INDEX as INDEX
from nodes.layout import ModelError as ModelError
from nodes.layout import Tensor as Tensor
from nodes.layout import read_json as read_json

# Model families (`model_type` of config.json) that tests/nodes/test_families.py proves: cut anywhere they compute what
# the whole model computes. Others may be wrong without an error, and are refused.
FAMILIES = (
    *("apertus", "arcee", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "exaone"),
    *("exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt_neox", "gpt_oss"),
    *("granite", "granitemoe", "granitemoeshared", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama", "minimax_m2"),
    *("mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2"),
)
# Rotary embeddings that depend on the position alone, as far as the context goes: "dynamic" changes nothing before
# max_position_embeddings. "longrope" turns keys by how long the sequence has become, so chunks and drafts change it.
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
_FIELDS = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "max_position_embeddings")

ORIGIN = "meshnet.json"  # beside weights that came from elsewhere: {"fingerprint", "source"} of what they are of
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|embed_in|wte)\.")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")

Progress = Callable[[int, int], None]  # bytes done, bytes in all; called again and again, may raise to end the work


def no_progress(_done_bytes: int, _total_bytes: int) -> None:
    """A Progress that tells nobody."""


@dataclass(frozen=True)
class ModelFolder:
    """A folder of safetensors, config and tokenizer whose headers have been checked."""

    path: Path
    config: Any  # transformers.PretrainedConfig
    tensors: Mapping[str, Tensor]
    absent: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # tensors whose file isn't there, to its name

    @property
    def family(self) -> str:
        return str(self.config.model_type)

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def context_length(self) -> int:
        return int(self.config.max_position_embeddings)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, hex, of what the model's source is; reads every byte the first time, then sizes and times only."""
        if (self.path / ORIGIN).exists():
            return _noted_fingerprint(self.path / ORIGIN)
        return fingerprint.of_folder(self.path, layout.weight_files(self.path), layout.TEXT_FILES)

    def holds(self, name: str, start_layer: int, end_layer: int) -> bool:
        """Whether a shard of these layers holds the tensor."""
        layer, is_tail = layer_of(name), end_layer == self.num_layers
        if layer is not None:
            return start_layer <= layer < end_layer
        has_embedding = start_layer == 0 or (is_tail and self.config.tie_word_embeddings)
        return has_embedding if _EMBEDDING.search(name) else is_tail

    def tensors_of(self, start_layer: int, end_layer: int) -> dict[str, Tensor]:
        """What a shard of these layers holds. Raises ModelError where a file of them is missing."""
        lost = [name for name in self.absent if self.holds(name, start_layer, end_layer)]
        if lost:
            file = self.path / self.absent[lost[0]]
            raise ModelError(f"{file} is missing; with it tensor {lost[0]} and {len(lost) - 1} more of these layers")
        return {name: tensor for name, tensor in self.tensors.items() if self.holds(name, start_layer, end_layer)}

    def num_elements(self, start_layer: int, end_layer: int) -> int:
        """Numbers in the tensors that a shard of these layers holds."""
        return sum(tensor.num_elements for tensor in self.tensors_of(start_layer, end_layer).values())

    def prepare(self, start_layer: int, end_layer: int, progress: Progress = no_progress) -> None:
        """Makes the tensors of these layers present in `path`; a folder of one's own has them already.

        Called once, before they are loaded and after the node has registered: it may take hours. Sources whose
        tensors come from elsewhere have a ModelFolder of their own that overrides this. Raises ModelError, OSError,
        and whatever `progress` raises.
        """
        self.tensors_of(start_layer, end_layer)

    def tokenizer_path(self) -> Path:
        """The folder of the tokenizer's files. Raises ModelError."""
        return self.path


def layer_of(name: str) -> int | None:
    """The layer a tensor belongs to; None for embedding, final norm and head."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _noted_fingerprint(file: Path) -> str:
    noted = read_json(file).get("fingerprint")
    if not isinstance(noted, str) or not _SHA256.fullmatch(noted):
        raise ModelError(f"{file}: fingerprint must be 64 hex digits, as the site's admin shows it for the model")
    return noted


def open_folder(path: Path) -> ModelFolder:
    config, contents = read_config(path), layout.read_contents(path)
    return ModelFolder(path, config, contents.tensors, absent=contents.absent)


def read_config(path: Path) -> Any:
    fields = read_json(path / "config.json")
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"{path / 'config.json'}: model_type {family!r} isn't supported; {', '.join(FAMILIES)} are")
    if "quantization_config" in fields:
        raise ModelError(f"{path / 'config.json'}: quantized weights aren't supported; use the unquantized model")
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig  # seconds to import: only once there is a model to open

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, TypeError, KeyError, OSError, StrictDataclassError) as error:
        raise ModelError(f"{path / 'config.json'} can't be used: {error}") from error
    _check_config(path / "config.json", config)
    return config


def _check_config(file: Path, config: Any) -> None:
    for name in _FIELDS:
        value = getattr(config, name, None)
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{file}: {name} must be a whole number from 1 up; it is {value!r}")
    for rope in _rope_types(getattr(config, "rope_parameters", None) or {}):
        if rope not in ROPE_TYPES:
            raise ModelError(f"{file}: rope type {rope!r} isn't supported; {', '.join(ROPE_TYPES)} are")


def _rope_types(parameters: Mapping[str, Any]) -> set[str]:
    """Of all layers, or of each kind of layer."""
    kinds = [kind for kind in parameters.values() if isinstance(kind, Mapping)] or [parameters]
    return {str(kind.get("rope_type", "default")) for kind in kinds}
