"""What the warm interpreter imports before its first fork: all that a node does, and nothing that reads settings."""

from __future__ import annotations

import gc
import os

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # read by what comes now; no thread outlives a fork

import django.core.management  # noqa: F401
import transformers.masking_utils
import transformers.models.auto.tokenization_auto
import transformers.models.llama.modeling_llama  # noqa: F401

import nodes.management.commands.runnode
import nodes.node  # noqa: F401

gc.freeze()  # or the first collection in a fork copies every page it looks at
