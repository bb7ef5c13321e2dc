"""Runs the site: tracker, relay, admin, in one process."""

from __future__ import annotations

import logging
import resource
import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from relay.pages import use_huge_pages

DUMMY = "django.db.backends.dummy"  # what Django puts where no database is configured


class Command(BaseCommand):
    help = "Runs the site: HTTP and the relay's WebSockets on one port. SIGTERM finishes what is in flight and exits."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
        parser.add_argument(
            "--grace",
            type=float,
            default=10.0,
            metavar="SECONDS",
            help="for chats and other requests in flight at SIGTERM (%(default)s)",
        )

    def handle(self, *args: Any, host: str, port: int, grace: float, **options: Any) -> None:
        if not 0 <= port < 65536 or grace < 0:
            raise CommandError("--port must be 0 to 65535, --grace 0 or more", returncode=2)
        refuse_unapplied_migrations()
        allow_many_sockets()
        from relay.server import RelayServer, reactor  # installs Twisted's reactor: not before it is needed

        logging.getLogger("daphne").setLevel(logging.WARNING)
        from channels.routing import get_default_application

        interface = host.replace(":", "\\:")  # IPv6, in Twisted's own quoting
        server = RelayServer(get_default_application(), f"tcp:{port}:interface={interface}", grace)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: reactor.callFromThread(server.drain))
        use_huge_pages()
        server.run()
        if server.failure:
            raise CommandError(f"can't listen on {host}:{port}: {server.failure}")


def allow_many_sockets() -> None:
    """Often only 1024 files may be open, and a few thousand when asked for: each peer's connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def refuse_unapplied_migrations() -> None:
    """Half a schema answers with 500s: better not to start."""
    for alias in connections:
        connection = connections[alias]
        if connection.settings_dict["ENGINE"] == DUMMY:
            continue
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
        connection.close()
        if plan:
            raise CommandError(f"{len(plan)} migrations are not applied; run: python manage.py migrate")
