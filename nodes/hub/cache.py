"""Models that were downloaded whole before by other tools: huggingface_hub's own cache, read and never written."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from nodes import layout
from nodes.hub.listing import HubId, Listing
from nodes.layout import TEXT_FILES, ModelError


def find_listed(listing: Listing) -> Path | None:
    """The folder of a commit, if it has all that makes the model what it is, in the sizes that the hub lists."""
    folder = find(HubId(listing.name, listing.commit))
    if folder is None:
        return None
    names = [*(set(TEXT_FILES) & set(listing.files)), *layout.weight_files(folder)]
    whole = all(name in listing.files and _size(folder / name) == listing.files[name].size for name in names)
    return folder if whole else None


def find(model: HubId) -> Path | None:
    """The folder of a revision as it was when it was downloaded, if it has weights and a tokenizer."""
    config = try_to_load_from_cache(model.name, "config.json", revision=model.revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    try:
        names = layout.weight_files(folder)
    except ModelError:
        return None
    has_tokenizer = any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    return folder if has_tokenizer and all((folder / name).exists() for name in names) else None


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else -1
