"""Network namespaces of a test: nobody else's, since they have no names, and gone with what runs in them.

A namespace lives as long as a file descriptor of this process or a program in it. When this process ends, however it
ends, a keeper kills those programs, and the kernel removes namespaces, links, rules and all. Nothing is ever created in
the machine's own network, so that tests side by side can't meet.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.lab import services

CLONE_NEWNET = 0x40000000
KEEPER = Path(__file__).with_name("keeper.py")
PROGRAMS = ("ip", "iptables-restore", "conntrack")
_THIS_THREADS = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    def __init__(self, name: str) -> None:
        """Raises PermissionError where this process may have none."""
        self.name = name
        self.descriptor = _new()

    @property
    def path(self) -> str:
        """By which other processes find it, while this one lives."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """What this thread opens or starts in the block, sockets and programs, is in this namespace and stays there."""
        back = os.open(_THIS_THREADS, os.O_RDONLY)
        try:
            _enter(self.descriptor)
            yield
        finally:
            _enter(back)
            os.close(back)

    def run(self, command: str, given: str = "") -> str:
        """A program's output. It must succeed."""
        words = command.split()
        program = services.find(words[0]) or words[0]
        with self.entered():
            done = subprocess.run([program, *words[1:]], input=given, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, f"{command!r} in {self.name}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def set(self, setting: str, value: str) -> None:
        """A setting of the kernel's network, as sysctl names it."""
        with self.entered():
            Path("/proc/sys/net", *setting.split(".")).write_text(value)

    def close(self) -> None:
        os.close(self.descriptor)


class Keeper:
    """Kills what still runs in the namespaces it was given, when `close` is called or this process has ended."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a signal to the whole group of the tests isn't meant for it
            )

    def keep(self, namespace: Namespace) -> None:
        socket.send_fds(self._ours, [b"1"], [namespace.descriptor])

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def close(self) -> None:
        """May be called again."""
        self._ours.close()
        self._process.wait(20)


def enter(path: str) -> None:
    """For the rest of this thread, which must be the only one of its process or know what it does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _enter(descriptor)
    finally:
        os.close(descriptor)


def refusal() -> str:
    """Why there can be no namespaces with NAT here, in words; empty: there can."""
    lacking = [program for program in PROGRAMS if services.find(program) is None]
    if lacking:
        return f"network namespaces need {', '.join(lacking)}: run `make services`"
    try:
        tried = Namespace("tried")
    except PermissionError:
        return "network namespaces aren't permitted here: run the tests as root, in a container with CAP_SYS_ADMIN"
    try:
        tried.run("iptables-restore", "*nat\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n")
    except AssertionError as error:
        return f"network namespaces have no NAT here: {' '.join(str(error).split())}"
    finally:
        tried.close()
    return ""


def _new() -> int:
    """Its descriptor. Made in a thread that ends, so that nobody else is in it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_unshare).result()


def _unshare() -> int:
    _check(_libc.unshare(CLONE_NEWNET))
    return os.open(_THIS_THREADS, os.O_RDONLY)


def _enter(descriptor: int) -> None:
    _check(_libc.setns(descriptor, CLONE_NEWNET))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
