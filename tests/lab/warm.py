"""Starts `manage.py runnode` without the five seconds that importing torch and transformers takes.

One interpreter imports them and computes nothing (imported.py); each program is forked from it by the standard
library's fork server. It is a process as any other, with its own pid, arguments, environment, settings, memory and
sockets, and it runs manage.py from the first line. Starts from nothing are tested in tests/nodes/test_runnode.py, the
demo and tests/meshweb/test_requirements.py.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

from huggingface_hub import constants

from tests.lab import namespaces

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.lab.imported"])
_KILLED = "ignore::UserWarning:multiprocessing.resource_tracker"  # whoever is killed leaves its locks to be tidied up


def begin() -> None:
    """Starts importing, so that the first fork need not wait as long."""
    os.environ.setdefault("PYTHONWARNINGS", _KILLED)
    forkserver.ensure_running()


class Fork:
    """The part of subprocess.Popen that Process uses."""

    def __init__(
        self, script: str, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, namespace: str = ""
    ) -> None:
        """`namespace`: the path of the network namespace it runs in, where that isn't this process's."""
        reader, writer = SERVER.Pipe(duplex=False)
        with reader, writer:
            given = (writer, script, list(arguments), dict(env), str(cwd), namespace)
            self._process = SERVER.Process(target=_run, args=given, daemon=True)
            self._process.start()
            self.stdout = os.fdopen(os.dup(reader.fileno()), errors="replace")
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the fork server knew of its end first, and is about to say so
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(output: Connection, script: str, arguments: list[str], env: dict[str, str], cwd: str, namespace: str) -> None:
    """In the new process: what `python script arguments` does."""
    if namespace:
        namespaces.enter(namespace)
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(env)
    importlib.reload(constants)  # huggingface_hub has read the environment that it was imported in
    os.chdir(cwd)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
