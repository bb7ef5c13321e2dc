"""`manage.py runnode`: makes this machine a node. Arguments to NodeOptions, errors to one line and an exit code.

0: told to stop. 2: wrong usage, or the tracker refuses. 1: it failed.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from nodes import storage
from nodes.drafts import DEFAULT_DRAFTS
from nodes.membership import NoCredential
from nodes.memory import DoesNotFit
from nodes.options import (
    DEFAULT_KEPT_MB,
    DEFAULT_PATIENCE_S,
    EXECUTORS,
    PREFERENCES,
    WEIGHTS,
    NodeOptions,
    UsageError,
    read_options,
)
from nodes.state import StateError
from nodes.tracker import TrackerRefused, TrackerUnreachable
from relay.headers import DTYPE_BYTES

_LAYERS_HELP = "the layers to serve, from A up to but without B; auto: the site chooses them, and may move this node"
_MEMORY_HELP = "for layers, caches and what works them, as 6G or 800M (default: what is free when it starts)"
_CACHE_HELP = "where models are kept that are fetched or converted (default: MESHNET_CACHE_DIR, or the user's cache)"
_MODEL_HELP = (
    "a folder in Hugging Face's layout, a GGUF file, a catalogue name, or a model of a hub as org/name or "
    "org/name@revision, of which only the tensors of these layers are fetched (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE)"
)
_PREFER_HELP = "how a head reaches the next nodes first, where both ways exist; fastest: it times them for each chat"

_WEIGHTS_HELP = "how the layers' matrices are held: as they are, or quantized to 8 or 4 bits (less memory, faster)"
_EXECUTOR_HELP = "what computes the layers; auto: the lean one where it knows the model, else transformers' modules"

_PUBLIC_HELP = "with --listen: the address under which others reach it, as http://host:port behind a forwarded port"
_PATIENCE_HELP = (
    "as a head, how long another node may take for a step before the step goes another way, 0.1 to 600; after a path "
    "that stayed silent a second one gets half of it; a node that is slow in this chat gets four times its slowest "
    "step (default: %(default)g)"
)
_KEPT_HELP = (
    "as a head, memory for activations of the chats that run, so that a lost node's replacement is filled quickly; 0 "
    "keeps none (default: %(default)s)"
)
_DRAFTS_HELP = f"as a head, guess up to N tokens of a step where a text repeats itself (default: {DEFAULT_DRAFTS})"


class Command(BaseCommand):
    help = "Runs a node: loads some layers of a model and serves them through the relay, or over HTTP."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--tracker", required=True, metavar="URL", help="address of the Meshnet site")
        add("--join-token", metavar="T", help="needed the first time; or MESHNET_JOIN_TOKEN, or --join-token-file")
        add("--join-token-file", metavar="FILE", help="a file that holds the join token")
        add("--model", required=True, metavar="MODEL", help=_MODEL_HELP)
        add("--layers", required=True, metavar="A:B|auto", help=_LAYERS_HELP)
        reach = parser.add_mutually_exclusive_group()
        reach.add_argument("--relay-only", action="store_true", help="accept no connection (so without --listen)")
        reach.add_argument("--listen", metavar="HOST:PORT", help="also answer over HTTP here; port 0 picks a free one")
        add("--no-relay", action="store_true", help="with --listen: don't connect to the relay")
        add("--public-url", metavar="URL", help=_PUBLIC_HELP)
        add("--prefer", choices=PREFERENCES, default=PREFERENCES[0], help=_PREFER_HELP)
        add("--name", help="as the tracker shows it (default: this machine's name)")
        add("--state-dir", metavar="DIR", help="where the node's key is kept (default: in the user's state folder)")
        add("--threads", type=int, metavar="N", help="threads that compute (default: one less than there are cores)")
        add("--dtype", choices=sorted(DTYPE_BYTES), default="bfloat16", help="of weights and arithmetic")
        add("--weights", choices=WEIGHTS, default=WEIGHTS[0], help=_WEIGHTS_HELP)
        add("--executor", choices=EXECUTORS, default=EXECUTORS[0], help=_EXECUTOR_HELP)
        add("--max-memory", metavar="SIZE", help=_MEMORY_HELP)
        add("--cache-dir", metavar="DIR", help=_CACHE_HELP)
        add("--max-kv-tokens", type=int, metavar="N", help="tokens kept for all chats together (default: from memory)")
        add("--patience", type=float, metavar="SECONDS", default=DEFAULT_PATIENCE_S, help=_PATIENCE_HELP)
        add("--keep-activations", type=int, metavar="MB", default=DEFAULT_KEPT_MB, help=_KEPT_HELP)
        add("--drafts", metavar="N|off", default=str(DEFAULT_DRAFTS), help=_DRAFTS_HELP)
        add("--tokenizer", metavar="DIR", help="take the tokenizer from this folder instead of the model's files")
        add("--ca-file", metavar="FILE", help="a private authority to trust; or SSL_CERT_FILE, REQUESTS_CA_BUNDLE")

    def handle(self, *args: Any, **options: Any) -> None:
        stopping = threading.Event()
        _stop_on_signals(stopping)
        node_settings: Any = settings  # meshweb.node_settings
        try:
            checked = read_options(
                options,
                node_settings.MESHNET_JOIN_TOKEN,
                node_settings.MESHNET_CA_FILE,
                node_settings.MESHNET_WIRE_VERSIONS,
                node_settings.MESHNET_RELAY_PING_S,
                node_settings.MESHNET_SLEEP_GAP_S,
            )
            storage.use(options["cache_dir"])
            run_node(checked, stopping)
        except (UsageError, StateError, NoCredential, TrackerRefused) as error:
            self._exit(2, str(error))
        except TrackerUnreachable as error:
            self._exit(1, f"the tracker can't be reached: {error}")
        except (DoesNotFit, OSError) as error:
            self._exit(1, str(error))

    def _exit(self, code: int, line: str) -> None:
        self.stderr.write(f"runnode: {line}")
        raise SystemExit(code)


def run_node(options: NodeOptions, stopping: threading.Event) -> None:
    """Raises what Node.run raises; a model that can't be used as UsageError."""
    from nodes.node import Node  # torch and transformers take seconds to import
    from nodes.weights import ModelError

    try:
        Node(options, stopping).run()
    except ModelError as error:
        raise UsageError(str(error)) from None


def _stop_on_signals(stopping: threading.Event) -> None:
    """The first signal ends the node in order, a second at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
