"""One relay for all cases that leave it running, and the wire versions each case is told in."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.relay_cases.meshes import RealMesh, real_mesh
from tests.relay_cases.served import VERSIONS, Served, World


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """No case may end it, nor leave a fault in its log."""
    with Served() as served:
        yield served
        assert served.process is not None
        assert served.process.is_running
    faults = re.findall(r"(?m)^Traceback.*(?:\n.*){0,25}", served.output)
    assert not faults, "\n".join(faults[:3])


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v{version}")
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def world(served: Served, version: int) -> Iterator[World]:
    with World(served, version) as world:
        yield world


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMesh]:
    with real_mesh(tmp_path_factory.mktemp("mesh")) as mesh:
        yield mesh
