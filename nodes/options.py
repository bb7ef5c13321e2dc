"""The command line of a node as typed values. Whatever can't be followed is refused here, naming the argument."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nodes.drafts import DEFAULT_DRAFTS, MAX_DRAFTS
from nodes.sleep import SLEEP_GAP_S
from nodes.state import default_folder
from nodes.threads import usable_cores
from relay.wire import PING_S, WIRE_VERSIONS

WEIGHTS = ("dense", "int8", "int4")
DEFAULT_PATIENCE_S = 10.0
DEFAULT_KEPT_MB = 256
LEAST_MEMORY_BYTES = 300 << 20  # less isn't enough for what works the layers
EXECUTORS = ("auto", "lean", "transformers")
PREFERENCES = ("relay", "direct", "fastest")  # which path to a hop comes first, where there are several

AUTO = "auto"  # of --layers: the site chooses them

_LAYERS = re.compile(r"(\d{1,6}):(\d{1,6})")
_LISTEN = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:]+):(\d{1,5})")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class UsageError(Exception):
    """The command line can't be followed; the text says what to change."""


@dataclass(frozen=True)
class NodeOptions:
    tracker_url: str
    join_token: str
    model: str
    start_layer: int  # the range is empty where the site picks it
    end_layer: int
    listen: tuple[str, int] | None
    uses_relay: bool
    name: str
    state_folder: Path
    num_threads: int
    dtype: str
    ca_file: str
    prefer: str = PREFERENCES[0]
    wire_versions: tuple[int, ...] = WIRE_VERSIONS
    relay_ping_s: float = PING_S
    weights: str = "dense"  # how the shard's matrices are held: dense in `dtype`, or quantized to int8 or int4
    executor: str = "auto"
    max_kv_tokens: int | None = None  # tokens that caches may hold together; None: what memory allows
    max_drafts: int = DEFAULT_DRAFTS  # tokens that this node guesses for a step, where it is the head
    public_url: str | None = None  # where others reach `listen`, when that isn't its own address
    patience_s: float = DEFAULT_PATIENCE_S  # as a head, for one step of a node after it, while that isn't slow
    kept_mb: int = DEFAULT_KEPT_MB  # as a head, of activations kept to fill a node's replacement from
    sleep_gap_s: float = SLEEP_GAP_S  # a gap in time that is taken for sleep
    max_memory_bytes: int | None = None  # that layers, caches and working them may take; None: what is free
    tokenizer: Path | None = None  # a folder whose tokenizer is used instead of the model's

    @property
    def picks_layers(self) -> bool:
        """Whether the site chooses this node's layers."""
        return self.start_layer == self.end_layer


def read_options(
    options: Mapping[str, Any],
    default_join_token: str = "",
    default_ca_file: str = "",
    wire_versions: Sequence[str] = (),
    relay_ping_s: float = PING_S,
    sleep_gap_s: float = SLEEP_GAP_S,
) -> NodeOptions:
    """Raises UsageError."""
    start_layer, end_layer = (0, 0) if options["layers"] == AUTO else read_layers(options["layers"], or_auto=True)
    if options["no_relay"] and not options["listen"]:
        raise UsageError("--no-relay needs --listen: nobody could reach the node")
    name = options["name"] or re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:64] or "node"
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: letters, digits, spaces and . _ -, at most 64, a letter or digit first")
    tracker_url = _tracker(options["tracker"])
    folder = options["state_dir"]
    return NodeOptions(
        tracker_url=tracker_url,
        join_token=_join_token(options, default_join_token),
        model=options["model"],
        start_layer=start_layer,
        end_layer=end_layer,
        listen=_listen(options["listen"]),
        uses_relay=not options["no_relay"],
        name=name,
        state_folder=Path(folder).expanduser() if folder else default_folder(tracker_url, name),
        num_threads=_threads(options["threads"]),
        dtype=options["dtype"],
        ca_file=options["ca_file"] or default_ca_file,
        prefer=options["prefer"],
        wire_versions=_wire_versions(wire_versions),
        relay_ping_s=relay_ping_s,
        weights=options["weights"],
        executor=options["executor"],
        max_kv_tokens=_max_kv_tokens(options["max_kv_tokens"]),
        max_drafts=_max_drafts(options["drafts"]),
        public_url=_public_url(options["public_url"], options["listen"]),
        patience_s=_patience_s(options["patience"]),
        kept_mb=_kept_mb(options["keep_activations"]),
        sleep_gap_s=sleep_gap_s,
        max_memory_bytes=_max_memory_bytes(options["max_memory"]),
        tokenizer=_tokenizer(options["tokenizer"]),
    )


def _tracker(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        is_address = False
    if not is_address:
        raise UsageError(f"--tracker {text!r}: must be like https://mesh.example.org")
    return text.rstrip("/")


def read_layers(text: str, *, or_auto: bool = False) -> tuple[int, int]:
    """Raises UsageError, which names `auto` as well where that would do."""
    found = _LAYERS.fullmatch(text)
    if not found or not int(found[1]) < int(found[2]):
        other = f", or {AUTO}: then the site chooses them" if or_auto else ""
        raise UsageError(f"--layers {text!r}: must be like 0:12, which is layers 0 to 11{other}")
    return int(found[1]), int(found[2])


def _listen(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    found = _LISTEN.fullmatch(text)
    if not found or int(found[2]) > 65535:
        raise UsageError(f"--listen {text!r}: must be like 0.0.0.0:7002")
    return found[1].strip("[]"), int(found[2])


def _join_token(options: Mapping[str, Any], default: str) -> str:
    if options["join_token"]:
        return str(options["join_token"]).strip()
    if options["join_token_file"]:
        try:
            return Path(options["join_token_file"]).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--join-token-file {options['join_token_file']}: {error}") from None
    return default


def _wire_versions(words: Sequence[str]) -> tuple[int, ...]:
    """Of the relay's wire; none named: all that this program speaks."""
    known = {str(version): version for version in WIRE_VERSIONS}
    if any(word not in known for word in words):
        raise UsageError(f"MESHNET_WIRE_VERSIONS {','.join(words)!r}: this node speaks {', '.join(known)}")
    return tuple(sorted(known[word] for word in set(words))) or WIRE_VERSIONS


def _tokenizer(text: str | None) -> Path | None:
    if text is None:
        return None
    folder = Path(text).expanduser()
    if not text or not folder.is_dir():
        raise UsageError(f"--tokenizer {text!r}: no such folder")
    return folder


def _max_kv_tokens(asked: int | None) -> int | None:
    if asked is not None and asked < 1:
        raise UsageError(f"--max-kv-tokens {asked}: at least one")
    return asked


def read_size(text: str) -> int | None:
    """Bytes of 6G, 6.5 GiB or 800M, in units of 1024; None for what is no size."""
    found = _SIZE.fullmatch(text.strip())
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")) if found else None


def _max_memory_bytes(text: str | None) -> int | None:
    if text is None:
        return None
    size = read_size(text)
    if not size or size < LEAST_MEMORY_BYTES:
        raise UsageError(f"--max-memory {text!r}: must be like 6G or 800M, and 300M at least")
    return size


def _max_drafts(text: str) -> int:
    if text == "off":
        return 0
    allowed = {str(number): number for number in range(1, MAX_DRAFTS + 1)}
    if text not in allowed:
        raise UsageError(f"--drafts {text!r}: must be off, or tokens to guess for a step, 1 to {MAX_DRAFTS}")
    return allowed[text]


def _public_url(text: str | None, listen: str | None) -> str | None:
    if text is None:
        return None
    if not listen:
        raise UsageError("--public-url needs --listen: it says how others reach the port that this node listens on")
    try:
        parts = urlsplit(text)
        is_address = parts.scheme == "http" and parts.hostname and parts.port != 0
        has_more = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None
    except ValueError:
        is_address, has_more = False, True
    if not is_address or has_more:
        raise UsageError(f"--public-url {text!r}: must be like http://203.0.113.7:7002")
    return text.rstrip("/")


def _patience_s(asked: float) -> float:
    if not 0.1 <= asked <= 600:
        raise UsageError(f"--patience {asked:g}: must be 0.1 to 600 seconds")
    return asked


def _kept_mb(asked: int) -> int:
    if asked < 0:
        raise UsageError(f"--keep-activations {asked}: megabytes, or 0 to keep none")
    return asked


def _threads(asked: int | None) -> int:
    if asked is None:
        return usable_cores().num_threads
    if asked < 1:
        raise UsageError(f"--threads {asked}: at least one")
    return asked
