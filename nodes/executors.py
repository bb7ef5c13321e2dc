"""Loads a shard into what computes it: the lean executor where it covers the model, else transformers' modules."""

from __future__ import annotations

import logging
import math

from nodes.activations import DTYPES
from nodes.lean import shard as lean
from nodes.modules import shard as modules
from nodes.options import EXECUTORS, WEIGHTS
from nodes.packed import keeping_dense, measured
from nodes.shard import Shard
from nodes.weights import ModelError, ModelFolder

logger = logging.getLogger(__name__)


def load_shard(
    folder: ModelFolder,
    start_layer: int,
    end_layer: int,
    dtype: str = "bfloat16",
    *,
    weights: str = "dense",
    executor: str = "auto",
    keeps_dense: bool = False,
    progress: bool = False,
) -> Shard:
    """Reads the weights of layers [start_layer, end_layer) and nothing else. `progress`: a bar on stderr.
    `keeps_dense`: beside weights in int4, for prompts, where there is memory for both.

    Raises ModelError naming the tensors that are missing or of another shape.
    """
    if not 0 <= start_layer < end_layer <= folder.num_layers:
        raise ModelError(f"layers {start_layer}:{end_layer} aren't in 0:{folder.num_layers}")
    if dtype not in DTYPES:
        raise ModelError(f"dtype must be one of {', '.join(DTYPES)}; it is {dtype!r}")
    if executor not in EXECUTORS:
        raise ModelError(f"executor must be one of {', '.join(EXECUTORS)}; it is {executor!r}")
    is_lean = executor == "lean" or (executor == "auto" and lean.covers(folder.config))
    if weights not in WEIGHTS:
        raise ModelError(f"weights must be one of {', '.join(WEIGHTS)}; they are {weights!r}")
    load = lean.load if is_lean else modules.load
    with measured() as total, keeping_dense(keeps_dense):
        shard = load(folder, start_layer, end_layer, dtype, weights, progress)
    if weights != "dense":
        if math.isnan(total.relative):
            raise ModelError(f"{folder.path}: layers {start_layer}–{end_layer - 1} hold weights that aren't numbers")
        logger.info("Weights in %s are %.1f %% from the dense ones, root mean square", weights, 100 * total.relative)
    return shard
