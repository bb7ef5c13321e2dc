"""`manage.py fetchmodel NAME`: puts a model of the catalogue into the cache and prints its folder as the last line."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import catalog


class Command(BaseCommand):
    help = "Fetches and converts a model of the catalogue, unless it is there; prints its folder."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=sorted(catalog.ENTRIES), help="a model of the catalogue")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            folder = catalog.ensure(options["name"], self.stderr.write)
        except (catalog.CatalogError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(str(folder))
