"""`manage.py fetchmodel NAME`: a model of the catalogue, a hub or a GGUF file into the cache; prints its folder.

`--prune` makes room there instead: it says what would go, and with `--yes` deletes it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import catalog, pruning, storage, uses
from nodes.options import UsageError, read_layers

_PRUNE_HELP = "say which models of the cache no running node uses and nobody named with --keep; --yes: delete them"


class Command(BaseCommand):
    help = "Puts a model of the catalogue, of a hub or of a GGUF file into the cache, and prints its folder last."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        known = ", ".join(sorted(catalog.ENTRIES))
        name_help = f"a model of the catalogue ({known}), of a hub (org/name@revision), or a GGUF file"
        parser.add_argument("name", nargs="?", help=name_help)
        parser.add_argument("--layers", metavar="A:B", help="only what these layers need")
        parser.add_argument("--cache-dir", metavar="DIR", help="where models are kept (default: MESHNET_CACHE_DIR)")
        parser.add_argument("--prune", action="store_true", help=_PRUNE_HELP)
        parser.add_argument(
            "--keep", action="append", default=[], metavar="NAME", help="with --prune: not this one; may come often"
        )
        parser.add_argument("--yes", action="store_true", help="with --prune: delete, don't only say what would go")

    def handle(self, *args: Any, **options: Any) -> None:
        storage.use(options["cache_dir"])
        try:
            if options["prune"]:
                self._prune(options["name"], options["keep"], is_meant=options["yes"])
            else:
                self.stdout.write(str(self._fetch(options["name"], options["layers"])))
        except KeyboardInterrupt:
            raise CommandError("stopped; what has arrived is kept") from None
        except (catalog.CatalogError, UsageError, OSError) as error:
            raise CommandError(str(error)) from error

    def _fetch(self, name: str | None, layers: str | None) -> Path:
        if name is None:
            raise UsageError("name a model, or say --prune to make room")
        if name in catalog.ENTRIES and not layers:
            return catalog.ensure(name, self.stderr.write)
        return _fetch(name, read_layers(layers) if layers else None, self.stderr.write)

    def _prune(self, name: str | None, keep: list[str], *, is_meant: bool) -> None:
        if name is not None:
            raise UsageError(f"--prune takes away what isn't kept: to keep {name}, say --keep {name}")
        models = pruning.cached_models()
        if unknown := sorted(set(keep).difference(*(model.names for model in models))):
            raise UsageError(f"--keep {unknown[0]}: no such model in {uses.models_folder()}")
        gone = []
        going = pruning.prunable(keep)
        for model in models:
            if model not in going:
                self._say("is in use" if model.is_used else "is kept", model)
        for model in going:
            if not is_meant or pruning.take_away(model):
                gone.append(model)
            self._say("would go" if not is_meant else "is deleted" if model in gone else "is in use by now", model)
        freed = pruning.gigabytes(sum(model.num_bytes for model in gone))
        self.stdout.write(f"{freed} freed" if is_meant else f"{freed} would be freed; --yes deletes them")

    def _say(self, what: str, model: pruning.Cached) -> None:
        self.stdout.write(f"{what}: {model.names[0]}, {pruning.gigabytes(model.num_bytes)}, {model.path}")


def _fetch(name: str, layers: tuple[int, int] | None, say: storage.Say) -> Path:
    """Raises UsageError, OSError."""
    from nodes.loading import Loading  # transformers takes seconds to import
    from nodes.sources import opened_model
    from nodes.weights import ModelError

    try:
        with opened_model(name, say) as folder:
            start, end = layers or (0, folder.num_layers)
            if end > folder.num_layers:
                raise UsageError(f"--layers {start}:{end}: {name} has layers 0:{folder.num_layers}")
            with Loading(threading.Event(), sys.stderr) as loading:
                folder.prepare(start, end, loading)
    except ModelError as error:
        raise UsageError(str(error)) from error
    return folder.path
