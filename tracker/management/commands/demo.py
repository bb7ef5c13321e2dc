"""See it work: a site and two nodes that accept no connection, one question, the answer and the way it took."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tracker.demo import Children, Mesh, Reply, ask, hop_table

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
FIRST_PORT = 8000


class Command(BaseCommand):
    help = "Start a site and two relay-only nodes on this machine, ask a question, show the answer and its route."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", metavar="QUESTION", help="ask this, print, stop everything and exit")
        parser.add_argument("--json", action="store_true", help="with --once: one JSON object as the last line")
        parser.add_argument("--port", type=int, default=0, help="the site's port (default: 8000, or a free one)")

    def handle(self, *args: Any, once: str | None, json: bool, port: int, **options: Any) -> None:
        if json and once is None:
            raise CommandError("--json goes with --once")
        for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have ignored SIGINT for a background job
            signal.signal(number, _interrupt)
        folder = Path(tempfile.mkdtemp(prefix="meshnet-demo-"))  # mode 0700
        say = self.stderr.write if json else self.stdout.write
        try:
            with Children(folder) as children:
                self._run(Mesh(children, MODEL, port or _port()), once, json, say)
        except KeyboardInterrupt:
            say("Stopped.")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, mesh: Mesh, once: str | None, as_json: bool, say: Callable[[str], object]) -> None:
        password = "" if once is not None else secrets.token_urlsafe(12)
        mesh.start(say, admin_password=password)
        question = once if once is not None else QUESTION
        say(f"\nAsking through {mesh.url}/v1/chat/completions: {question}\n")
        reply = ask(mesh.url, mesh.api_key, MODEL, question, _quiet if as_json else _print_piece)
        if as_json:
            self.stdout.write(json.dumps(_as_object(reply)))
            return
        say("\n\n" + hop_table(reply))
        if once is None:
            self._stay(mesh, password, say)

    def _stay(self, mesh: Mesh, password: str, say: Callable[[str], object]) -> None:
        say(f"\nThe site stays up at {mesh.url}/ (user admin, password {password}; it is shown only here).")
        say(f"API key for your own client: {mesh.api_key} (base URL {mesh.url}/v1). Logs: {mesh.children.folder}")
        say("Ctrl-C stops everything and removes the demo's data.")
        mesh.children.watch()


def _as_object(reply: Reply) -> dict[str, Any]:
    keys = ("node", "start_layer", "end_layer", "path")
    return {
        "text": reply.text,
        "route": [{key: hop[key] for key in keys} for hop in reply.hops],
        "tokens": reply.num_tokens,
        "tokens_per_s": round(reply.tokens_per_s, 2),
        "ttft_ms": round(reply.ttft_ms, 1),
    }


def _print_piece(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _quiet(piece: str) -> None:
    """With --json, standard output has one line."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _port() -> int:
    """8000 when it is free, else any free port."""
    for wanted in (FIRST_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise CommandError("no free port on 127.0.0.1")
