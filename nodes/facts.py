"""What a node says of itself and reckons with, from its command line, its model's files and this machine."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from nodes import memory, sizes
from nodes.lean import config as lean_config
from nodes.options import NodeOptions, UsageError
from nodes.registration import ModelFacts, NodeFacts
from nodes.sources import model_name
from nodes.weights import ModelFolder

VERSION = "0.1.0"  # of this program, as the tracker shows it; pyproject.toml has the same


def room_for_caches(options: NodeOptions, folder: ModelFolder) -> int:
    """Tokens that caches may hold. Raises UsageError, memory.DoesNotFit."""
    start, end = options.start_layer, options.end_layer
    if end > folder.num_layers:
        raise UsageError(f"--layers {start}:{end}: {model_name(options.model)} has layers 0:{folder.num_layers}")
    per_token = memory.cache_bytes_per_token(folder.config, end - start, options.dtype)
    available, asked = sizes.memory_limit(options), options.max_kv_tokens
    limit = "are what --max-memory allows" if available == options.max_memory_bytes else "are free"
    try:
        held = memory.weight_bytes(_elements(options, folder), options.dtype, options.weights)
        if keeps_dense(options, folder):
            held += _dense_bytes(options, folder)
        return memory.room_for_tokens(held, options.dtype, per_token, available, options.weights, asked, limit)
    except memory.DoesNotFit as error:
        raise memory.DoesNotFit(f"layers {start}–{end - 1} of {model_name(options.model)} {error}") from None


def check_budget(options: NodeOptions, folder: ModelFolder) -> None:
    """Of a node whose layers the site is to choose. Raises ModelError, UsageError, memory.DoesNotFit where it can't."""
    folder.tensors_of(0, folder.num_layers)  # whichever it chooses, they have to be here
    budget, layer = sizes.budget_bytes(options), sizes.on_node(options, folder).layer_bytes
    if budget is None:
        raise UsageError("--layers auto needs --max-memory here: how much memory is free can't be known")
    if layer is None or layer > budget:
        model, needed = model_name(options.model), memory.in_gib((layer or 0) + memory.WORKING_BYTES)
        has = memory.in_gib(sizes.memory_limit(options))
        raise memory.DoesNotFit(f"one layer of {model} with its caches needs {needed} of memory; this node has {has}")


def check_executor(options: NodeOptions, folder: ModelFolder) -> None:
    """Raises UsageError where the executor that was asked for doesn't serve the model."""
    if options.executor == "lean":
        try:
            lean_config.read(folder.config)
        except lean_config.NotCovered as error:
            raise UsageError(f"--executor lean doesn't cover {error}; take auto") from None


def keeps_dense(options: NodeOptions, folder: ModelFolder) -> bool:
    """Whether dense weights are kept beside those in int4, for prompts: where they take little of what is free."""
    free = sizes.memory_limit(options)
    return options.weights == "int4" and _dense_bytes(options, folder) <= free * memory.DENSE_SHARE


def _dense_bytes(options: NodeOptions, folder: ModelFolder) -> int:
    """Of the layers' matrices, which are multiplied in bfloat16; embedding and head have eight bits only."""
    layers = {name: count for name, count in _elements(options, folder).items() if ".layers." in name}
    return memory.weight_bytes(layers, "bfloat16", "dense")


def _elements(options: NodeOptions, folder: ModelFolder) -> dict[str, int]:
    tensors = folder.tensors_of(options.start_layer, options.end_layer)
    return {name: tensor.num_elements for name, tensor in tensors.items()}


def node_facts(
    options: NodeOptions, folder: ModelFolder, endpoint: str | None, max_cached_tokens: int | None = None
) -> NodeFacts:
    in_files, here = sizes.in_files(folder), sizes.on_node(options, folder)
    model = ModelFacts(
        name=model_name(options.model),
        fingerprint=folder.fingerprint,
        num_layers=folder.num_layers,
        hidden_size=folder.hidden_size,
        context_length=folder.context_length,
        layer_bytes=in_files.layer_bytes,
        head_bytes=in_files.head_bytes,
        tail_bytes=in_files.tail_bytes,
    )
    return NodeFacts(
        name=options.name,
        model=model,
        start_layer=options.start_layer,
        end_layer=options.end_layer,
        relay=options.uses_relay,
        endpoint=endpoint,
        memory_bytes=memory.available_bytes(),
        threads=options.num_threads,
        dtype=options.dtype,
        weights=options.weights,
        version=VERSION,
        max_cached_tokens=max_cached_tokens,
        wire_versions=options.wire_versions,
        picks_layers=options.picks_layers,
        budget_bytes=sizes.budget_bytes(options),
        layer_bytes=here.layer_bytes,
        head_bytes=here.head_bytes,
        tail_bytes=here.tail_bytes,
    )


def address_towards(tracker_url: str) -> str:
    """This machine's address on the way to the tracker. Sends nothing: a datagram socket only looks up the route."""
    parts = urlsplit(tracker_url)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
