"""Whatever names a model on a command line, opened: a folder, a GGUF file, a catalogue name, a model of a hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nodes import catalog, storage, uses
from nodes.gguf import folder as gguf_folder
from nodes.hub import folder as hub_folder
from nodes.hub.listing import HubId
from nodes.weights import ORIGIN, ModelError, ModelFolder, open_folder, read_json


def open_model(
    source: str | os.PathLike[str], say: storage.Say = storage.silent, tick: Callable[[int], None] = lambda count: None
) -> ModelFolder:
    """The model in a folder or a GGUF file, of a catalogue name or of a hub id; what it takes to know it is fetched.

    `tick` is called now and then while a hub is waited for, and may raise to end that. Raises ModelError, and OSError
    where a hub or a disk is the reason.
    """
    text, path = str(source), Path(source).expanduser().resolve()
    if text in catalog.ENTRIES:
        try:
            path = catalog.ensure(text, say)
        except (catalog.CatalogError, OSError) as error:
            raise ModelError(str(error)) from error
    if path.is_file():
        return gguf_folder.open_gguf(path, say)
    if path.is_dir():
        return hub_folder.reopen(path) if hub_folder.is_hub_folder(path) else open_folder(path)
    if model := HubId.read(text):
        return hub_folder.open_hub(model, say, tick=tick)
    known = ", ".join(sorted(catalog.ENTRIES))
    raise ModelError(
        f"{source} is no folder, no GGUF file, no model of the catalogue ({known}) and no hub id (org/name@revision)"
    )


@contextmanager
def opened_model(
    source: str | os.PathLike[str], say: storage.Say = storage.silent, tick: Callable[[int], None] = lambda count: None
) -> Iterator[ModelFolder]:
    """The model as open_model opens it, whose folder nobody takes out of the cache before the block ends."""
    while True:
        folder = open_model(source, say, tick)
        with uses.held(folder.path):
            if folder.path.is_dir():  # it wasn't taken away in between
                yield folder
                return


def model_name(source: str) -> str:
    """As users ask for it: a folder's or GGUF file's own name, also where that is a link, a catalogue's, or a hub's
    org/name."""
    path = Path(source).expanduser()
    if path.is_file():
        return path.stem
    if path.is_dir():
        name = path.name if path.name not in ("", "..") else path.resolve().name
        return str(read_json(path / ORIGIN).get("name", name)) if (path / ORIGIN).exists() else name
    model = HubId.read(source)
    return model.name if model else path.name
