"""A GGUF file serves like the model it was made from, and of it is read what a shard needs."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
import torch
from django.core.management import call_command
from gguf import GGMLQuantizationType
from pytest_django.fixtures import Settings
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from nodes.gguf import folder as gguf_folder
from nodes.gguf.folder import GgufFolder
from nodes.management.commands.fetchmodel import Command
from nodes.sources import open_model
from nodes.text import Tokenizer
from nodes.weights import ModelError
from tests.nodes.ggufs import make_gguf
from tests.nodes.greedy import generated, greedy_ids, load_hops
from tests.nodes.models import make_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, head_dim=16, rms_norm_eps=1e-5),
    "llama, tied": LlamaConfig(**SIZES, head_dim=16, tie_word_embeddings=True),
    "mistral-like": LlamaConfig(**SIZES, head_dim=32, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
    "mistral": MistralConfig(**SIZES, head_dim=16, sliding_window=8),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
}
PROMPT = list(range(3, 40))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, settings: Settings) -> Path:
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")
    return tmp_path / "cache"


def make_model(config: PretrainedConfig, folder: Path) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):  # else all ones or zeros, which prove little
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_model(config, tmp_path_factory.mktemp("source")) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_becomes_the_model_it_was_made_from(name: str, sources: dict[str, Path], tmp_path: Path) -> None:
    source, made = sources[name], tmp_path / "made"
    gguf_folder.convert(make_gguf(source, tmp_path / "x.gguf"), made)
    expected = load_file(source / "model.safetensors")
    found = {key: tensor for file in made.glob("*.safetensors") for key, tensor in load_file(file).items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], tensor) and found[key].dtype == tensor.dtype for key, tensor in expected.items())
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        ours, theirs = (AutoModelForCausalLM.from_pretrained(path)(ids).logits for path in (made, source))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_quantized_tensors_become_the_numbers_they_stand_for(
    kind: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    source, made = sources["llama"], tmp_path / "made"
    gguf_folder.convert(make_gguf(source, tmp_path / "x.gguf", kind=kind), made)
    for name, tensor in load_file(source / "model.safetensors").items():
        found = next(load_file(file)[name] for file in made.glob("*.safetensors") if name in load_file(file))
        assert torch.equal(found, as_quantized(tensor, kind) if tensor.dim() > 1 else tensor)


def as_quantized(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """The whole tensor at once; its rows' order doesn't matter to quantization."""
    number = GGMLQuantizationType[kind]
    packed = gguf.quantize(tensor.float().numpy(), number)
    return torch.from_numpy(numpy.array(gguf.dequantize(packed, number))).bfloat16()


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_kinds_that_only_llama_cpp_writes_are_read(kind: str, sources: dict[str, Path], tmp_path: Path) -> None:
    """Of random bits; a row of these kinds has 256 numbers or more, here the embedding's."""
    number = GGMLQuantizationType[kind]
    config = LlamaConfig(**SIZES | {"hidden_size": 256, "num_hidden_layers": 1}, head_dim=16)
    source = make_model(config, tmp_path / "source")
    packed = numpy.random.default_rng(5).integers(0, 60, (300, gguf.GGML_QUANT_SIZES[number][1]), dtype=numpy.uint8)
    path = make_gguf(source, tmp_path / "x.gguf", tensors={"token_embd.weight": (packed, kind)})
    gguf_folder.convert(path, tmp_path / "made")
    [found] = load_file(tmp_path / "made" / "embedding.safetensors").values()
    assert torch.equal(found, torch.from_numpy(gguf.dequantize(packed, number)).bfloat16())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(start, end) of all that is read of tensors."""
    seen: list[tuple[int, int]] = []
    pread = os.pread

    def noted(descriptor: int, size: int, start: int) -> bytes:
        seen.append((start, start + size))
        return pread(descriptor, size, start)

    monkeypatch.setattr(os, "pread", noted)
    return seen


def num_bytes(reads: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in reads)


def open_gguf(path: Path) -> GgufFolder:
    folder = open_model(path)
    assert isinstance(folder, GgufFolder)
    return folder


def test_opening_reads_no_tensor_and_knows_them_all(
    sources: dict[str, Path], tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    folder = open_gguf(make_gguf(sources["llama"], tmp_path / "x.gguf"))
    assert (folder.family, folder.num_layers, folder.hidden_size, folder.context_length) == ("llama", 4, 64, 512)
    assert folder.tensors.keys() == load_file(sources["llama"] / "model.safetensors").keys()
    assert folder.num_elements(1, 2) == open_model(sources["llama"]).num_elements(1, 2)
    assert reads == []
    assert not list(folder.path.glob("*.safetensors"))


def test_the_fingerprint_is_the_files(sources: dict[str, Path], tmp_path: Path) -> None:
    path = make_gguf(sources["llama"], tmp_path / "x.gguf")
    assert open_model(path).fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    path.rename(tmp_path / "y.gguf")
    assert open_model(tmp_path / "y.gguf").path == open_model(make_gguf(sources["llama"], path)).path


@pytest.mark.parametrize("name", CONFIGS)
def test_halves_of_the_file_answer_like_the_whole_model(
    name: str, sources: dict[str, Path], tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    path, source = make_gguf(sources[name], tmp_path / "x.gguf"), open_model(sources[name])
    folder, halves = open_gguf(path), [(0, 2), (2, 4)]
    for start, end in halves:
        reads.clear()
        folder.prepare(start, end)
        foreign = [tensor for tensor in folder.file.tensors.values() if is_foreign(tensor.name, start, end)]
        assert not any(a < other.start + other.num_bytes and other.start < b for a, b in reads for other in foreign)
        assert 0 < num_bytes(reads) < path.stat().st_size * 2 / 3
    ids, _ = generated(source, PROMPT, 8, 16, "float32")
    for executor in ("transformers", "lean"):
        assert greedy_ids(load_hops(folder, halves, "float32", executor), PROMPT, 8, 16) == ids


def is_foreign(name: str, start: int, end: int) -> bool:
    return name.startswith("blk.") and not start <= int(name.split(".")[1]) < end


def test_what_was_made_is_not_made_again(
    sources: dict[str, Path], tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    folder, told = open_gguf(make_gguf(sources["llama"], tmp_path / "x.gguf")), list[tuple[int, int]]()
    folder.prepare(0, 2)
    reads.clear()
    folder.prepare(0, 2, lambda done, total: told.append((done, total)))
    assert reads == []
    assert told[-1][0] == told[-1][1]
    folder.prepare(1, 3)
    assert num_bytes(reads) == sum(
        tensor.num_bytes for tensor in folder.file.tensors.values() if tensor.name.startswith("blk.2.")
    )


def test_work_that_was_ended_goes_on_where_it_was(
    sources: dict[str, Path], tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    class Ended(Exception):
        pass

    def end_in_the_middle(done: int, total: int) -> None:
        if done > total / 2:
            raise Ended

    folder = open_gguf(make_gguf(sources["llama"], tmp_path / "x.gguf"))
    with pytest.raises(Ended):
        folder.prepare(0, 4, end_in_the_middle)
    whole = {file.name for file in folder.path.glob("*.safetensors")}
    assert 0 < len(whole) < 6
    assert not list(folder.path.glob(".*.part"))
    before = num_bytes(reads)
    folder.prepare(0, 4)
    assert num_bytes(reads) - before < sum(tensor.num_bytes for tensor in folder.file.tensors.values())
    assert greedy_ids(load_hops(folder, [(0, 4)], "float32"), PROMPT, 4, 64)


def test_a_file_that_was_spoilt_is_made_again(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = open_gguf(make_gguf(sources["llama"], tmp_path / "x.gguf"))
    folder.prepare(1, 2)
    file = folder.path / "layer-00001.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    folder.prepare(1, 2)
    assert file.read_bytes() == good


def test_nodes_of_one_machine_share_the_work(
    sources: dict[str, Path], tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    path = make_gguf(sources["llama"], tmp_path / "x.gguf")
    folders = [open_gguf(path) for _ in range(3)]
    threads = [threading.Thread(target=folder.prepare, args=(0, 4)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert num_bytes(reads) == sum(tensor.num_bytes for tensor in folders[0].file.tensors.values())


def test_a_large_tensor_is_read_in_slices(
    sources: dict[str, Path], tmp_path: Path, reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.gguf.conversion._SLICE_ELEMENTS", 1100)  # 17 rows, or one head of q and k
    source, made = sources["llama"], tmp_path / "made"
    gguf_folder.convert(make_gguf(source, tmp_path / "x.gguf"), made)
    assert max(end - start for start, end in reads) <= 1100 * 4
    expected = load_file(source / "model.safetensors")
    assert all(
        torch.equal(tensor, expected[name])
        for file in made.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    )


def test_a_file_that_changes_meanwhile_is_refused(sources: dict[str, Path], tmp_path: Path) -> None:
    path = make_gguf(sources["llama"], tmp_path / "x.gguf")
    folder = open_gguf(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelError, match=r"x\.gguf was changed"):
        folder.prepare(0, 1)
    assert not list(folder.path.glob("*.safetensors"))


def test_numbers_that_are_none_are_refused_with_their_tensors_name(sources: dict[str, Path], tmp_path: Path) -> None:
    spoilt = {"blk.1.ffn_norm.weight": (numpy.full(64, numpy.nan, dtype=numpy.float32), "F32")}
    folder = open_gguf(make_gguf(sources["llama"], tmp_path / "x.gguf", tensors=spoilt))
    folder.prepare(0, 1)
    with pytest.raises(ModelError, match=r"x\.gguf: tensor blk\.1\.ffn_norm\.weight .* damaged"):
        folder.prepare(1, 2)


def test_a_type_that_cannot_be_unpacked_is_refused_when_the_file_is_opened(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    blocks = numpy.zeros((300, 80), dtype=numpy.uint8)  # two blocks of 32 numbers a row
    path = make_gguf(sources["llama"], tmp_path / "x.gguf", tensors={"token_embd.weight": (blocks, "Q8_1")})
    with pytest.raises(
        ModelError, match=r"x\.gguf: tensor token_embd\.weight is of type Q8_1, which can't be unpacked"
    ):
        open_model(path)


def test_head_and_tail_take_the_tokenizer_from_the_file(sources: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(open_model(make_gguf(sources["llama"], tmp_path / "x.gguf")))
    reference = Tokenizer.load(open_model(sources["llama"]))
    messages = [{"role": "user", "content": "hello world"}]
    assert tokenizer.chat_prompt(messages) == reference.chat_prompt(messages)
    assert tokenizer.plain_prompt("the fox") == reference.plain_prompt("the fox")
    assert tokenizer.eos_ids == reference.eos_ids


def test_a_given_tokenizer_is_taken_and_must_be_the_models(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = open_model(make_gguf(sources["llama"], tmp_path / "x.gguf", pre="viking"))
    with pytest.raises(ModelError, match="viking"):
        Tokenizer.load(folder)
    given = Tokenizer.load(folder, sources["llama"])
    assert given.plain_prompt("the fox") == Tokenizer.load(sources["llama"]).plain_prompt("the fox")
    assert given.eos_ids == {2}
    other = make_tokenizer()
    other.add_tokens([f"<{number}>" for number in range(50)])
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match=r"other is the tokenizer of another model: its tokens go up to 3\d\d"):
        Tokenizer.load(folder, tmp_path / "other")
    with pytest.raises(ModelError, match="nothing has no tokenizer"):
        Tokenizer.load(folder, tmp_path / "nothing")


def test_the_command_unpacks_a_file_and_prints_the_folder_last(sources: dict[str, Path], tmp_path: Path) -> None:
    path, out = make_gguf(sources["llama"], tmp_path / "x.gguf"), io.StringIO()
    call_command(Command(), str(path), stdout=out, stderr=io.StringIO())
    folder = Path(out.getvalue().splitlines()[-1])
    assert len(list(folder.glob("*.safetensors"))) == 6
    assert open_model(path).path == folder
