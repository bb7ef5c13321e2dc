"""`manage.py fetchmodel NAME`: a model of the catalogue, a hub or a GGUF file into the cache; prints its folder."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import catalog, storage
from nodes.options import UsageError, read_layers


class Command(BaseCommand):
    help = "Puts a model of the catalogue, of a hub or of a GGUF file into the cache, and prints its folder last."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        known = ", ".join(sorted(catalog.ENTRIES))
        parser.add_argument(
            "name", help=f"a model of the catalogue ({known}), of a hub (org/name@revision), or a GGUF file"
        )
        parser.add_argument("--layers", metavar="A:B", help="only what these layers need")

    def handle(self, *args: Any, **options: Any) -> None:
        name, layers = options["name"], options["layers"]
        try:
            if name in catalog.ENTRIES and not layers:
                folder = catalog.ensure(name, self.stderr.write)
            else:
                folder = _fetch(name, read_layers(layers) if layers else None, self.stderr.write)
        except KeyboardInterrupt:
            raise CommandError("stopped; what has arrived is kept") from None
        except (catalog.CatalogError, UsageError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(str(folder))


def _fetch(name: str, layers: tuple[int, int] | None, say: storage.Say) -> Path:
    """Raises UsageError, OSError."""
    from nodes.loading import Loading  # transformers takes seconds to import
    from nodes.sources import open_model
    from nodes.weights import ModelError

    try:
        folder = open_model(name, say)
        start, end = layers or (0, folder.num_layers)
        if end > folder.num_layers:
            raise UsageError(f"--layers {start}:{end}: {name} has layers 0:{folder.num_layers}")
        with Loading(threading.Event(), sys.stderr) as loading:
            folder.prepare(start, end, loading)
    except ModelError as error:
        raise UsageError(str(error)) from error
    return folder.path
