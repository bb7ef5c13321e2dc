"""One relay for all cases that leave it running, and the wire versions each case is told in."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.lab import record
from tests.lab.ends import Peer
from tests.relay.credentials import credential
from tests.relay_cases.meshes import RealMesh, real_mesh
from tests.relay_cases.served import VERSIONS, Deployment, Served, World, echo, two_processes


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """No case may end it, nor leave a fault in its log."""
    with Served() as served:
        yield served
        assert served.is_running
    assert_no_faults(served)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two processes over a real Redis: callers at one, peers at the other."""
    with two_processes(tmp_path_factory.mktemp("redis")) as pair:
        yield pair
        assert pair.callers_at.is_running
        assert pair.peers_at.is_running
    assert_no_faults(pair.callers_at, pair.peers_at)


@dataclass
class Idle:
    """A peer that has been asked nothing yet."""

    deployment: Deployment
    peer: Peer
    registered: float  # as the callers' process has it
    since: float = field(default_factory=time.monotonic)

    def caller(self) -> record.Caller:
        return record.Caller(f"{self.deployment.callers_at.ws_url}/rpc/{self.peer.peer_id}", credential("ee55"))


@pytest.fixture(scope="session")
def idle(pair: Deployment) -> Iterator[dict[int, Idle]]:
    with contextlib.ExitStack() as stack:
        made = {}
        for version in VERSIONS:
            peer = stack.enter_context(World(pair, version)).peer(f"1d1e{version}", echo)
            made[version] = Idle(pair, peer, pair.callers_at.figures()["peers"][peer.peer_id])
        yield made


def assert_no_faults(*servers: Served) -> None:
    for server in servers:
        faults = re.findall(r"(?m)^ *Traceback.*(?:\n.*){0,25}", server.output)
        assert not faults, "\n".join(faults[:3])


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v{version}")
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["one-process", "two-processes"])
def deployment(request: pytest.FixtureRequest) -> Deployment:
    if request.param == "two-processes":
        request.getfixturevalue("idle")  # its time runs from now on
        pair: Deployment = request.getfixturevalue("pair")
        return pair
    served = request.getfixturevalue("served")
    return Deployment(served, served)


@pytest.fixture
def world(deployment: Deployment, version: int) -> Iterator[World]:
    with World(deployment, version) as world:
        yield world


@pytest.fixture
def near_world(served: Served, version: int) -> Iterator[World]:
    """For what one process decides alone, however many there are."""
    with World(Deployment(served, served), version) as world:
        yield world


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMesh]:
    with real_mesh(tmp_path_factory.mktemp("mesh")) as mesh:
        yield mesh
