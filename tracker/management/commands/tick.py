"""Does what the site does by the clock: ends lost sessions, deletes old records. Nodes are asked by `serve` alone."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from tracker import ticking


class Command(BaseCommand):
    help = (
        "Ends sessions whose process died, deletes old records. `serve` does the same unless TICK=off, and asks nodes"
        " that failed how they are; of several processes one at a time does it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="One pass, now, say what it did, and exit; also while another does it."
        )

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        if once:
            self.stdout.write(str(ticking.tick(timezone.now())))
            return
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                ticking.ticker.run()
                time.sleep(ticking.PERIOD_S)
