"""The small internet: who reaches whom in it, what its routers' faults do to a connection, and that nothing stays."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.internet import PUBLIC_ADDRESS, Home, Internet, reaches
from tests.lab.namespaces import Namespace
from tests.lab.processes import ROOT

PORT = 7002
Pair = tuple[socket.socket, socket.socket]
_ABANDONED = """
import subprocess, sys, time
from tests.lab.internet import Internet
with Internet() as internet:
    machine = internet.home().machine()
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with machine.entered():
        alone = subprocess.Popen([sys.executable, "-c", ignoring], start_new_session=True)
    print(internet.keeper.pid, alone.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def home(internet: Internet) -> Home:
    return internet.home()


@pytest.fixture(scope="module")
def machine(home: Home) -> Namespace:
    return home.machine()


@contextmanager
def listening(where: Namespace) -> Iterator[socket.socket]:
    with where.entered():
        server = socket.create_server(("", PORT))
    with server:
        server.settimeout(5)
        yield server


@contextmanager
def connected(machine: Namespace, server: socket.socket) -> Iterator[Pair]:
    """The two ends of a connection from there to here."""
    with machine.entered():
        inside = socket.create_connection((PUBLIC_ADDRESS, PORT), timeout=5)
    with inside, server.accept()[0] as outside:
        yield inside, outside


@pytest.fixture
def server(internet: Internet) -> Iterator[socket.socket]:
    with listening(internet.public) as opened:
        yield opened


@pytest.fixture
def pair(server: socket.socket, machine: Namespace) -> Iterator[Pair]:
    with connected(machine, server) as ends:
        yield ends


def says(sender: socket.socket, receiver: socket.socket, deadline_s: float = 5) -> bool:
    """Whether what one end says arrives at the other."""
    receiver.settimeout(deadline_s)
    try:
        sender.sendall(b"x")
        return receiver.recv(100) != b""
    except OSError:
        return False


def test_a_machine_reaches_the_public_segment_under_its_routers_address(home: Home, pair: Pair) -> None:
    inside, outside = pair
    assert outside.getpeername()[0] == home.public_address
    assert len(home.connections()) == 1
    assert says(inside, outside)
    assert says(outside, inside)


def test_nobody_but_its_neighbours_reaches_a_machine(internet: Internet, home: Home, machine: Namespace) -> None:
    neighbour, stranger = home.machine(), internet.home().machine()
    with listening(machine):
        assert reaches(neighbour, home.address(machine), PORT)
        for outside in (stranger, internet.public):
            assert not reaches(outside, home.address(machine), PORT)
            assert not reaches(outside, home.public_address, PORT)


def test_a_connection_that_the_router_forgets_is_dead_and_neither_end_hears_of_it(home: Home, pair: Pair) -> None:
    inside, outside = pair
    assert says(inside, outside)
    home.forget()
    assert not says(outside, inside, 0.5)
    assert not says(inside, outside, 0.5)


def test_a_router_that_picks_connections_up_finds_one_again_when_the_machine_speaks(home: Home, pair: Pair) -> None:
    inside, outside = pair
    home.picks_up(True)
    home.forget()
    assert says(inside, outside)
    assert says(outside, inside)
    home.picks_up(False)


def test_a_connection_outlives_a_line_that_was_down_for_a_moment(home: Home, pair: Pair) -> None:
    inside, outside = pair
    home.unplug()
    assert not says(inside, outside, 0.3)
    home.plug()
    assert says(outside, inside)


def test_with_another_public_address_the_old_connection_is_dead_and_the_next_comes_from_the_new_one(
    home: Home, machine: Namespace, server: socket.socket
) -> None:
    with connected(machine, server) as (inside, outside):
        home.change_address()
        assert not says(outside, inside, 0.3)
    with connected(machine, server) as (inside, outside):
        assert outside.getpeername()[0] == home.public_address
        assert says(inside, outside)


def test_two_of_them_never_meet_and_nothing_is_in_the_machines_own_network(
    internet: Internet, machine: Namespace, server: socket.socket
) -> None:
    before = own_network()
    with Internet() as other:
        assert not reaches(other.home().machine(), PUBLIC_ADDRESS, PORT), "it has reached the first one's server"
        assert own_network() == before
    assert reaches(machine, PUBLIC_ADDRESS, PORT)


def test_when_the_tests_are_killed_what_ran_in_its_namespaces_ends_too(internet: Internet) -> None:
    made = subprocess.Popen([sys.executable, "-c", _ABANDONED], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert made.stdout
    with made, made.stdout:
        pids = [int(word) for word in made.stdout.readline().split()]
        assert all(is_running(pid) for pid in pids)
        made.kill()
        made.wait(5)
    until = time.monotonic() + 15
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < until, "the keeper or what it should have killed still runs"
        time.sleep(0.02)


def own_network() -> tuple[list[str], list[str]]:
    """The links of the network that the tests themselves are in, and the names of namespaces."""
    return [name for _, name in socket.if_nameindex()], sorted(map(str, Path("/run/netns").glob("*")))


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
