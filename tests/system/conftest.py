"""One site for all tests of this folder, and the models its meshes serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodes import catalog
from tests.lab.doubles import proxied_site
from tests.lab.site import Site
from tests.lab.tap import Tap
from tests.nodes.models import make_tiny_llama


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site"), REBALANCE_SETTLE_S="0") as started:
        yield started


@pytest.fixture(scope="session")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Tap]]:
    """Another site, whose relay nodes reach past a tap. It is quicker to notice and to give up than as shipped."""
    settings = {"RELAY_PING_S": "3", "HEAD_SILENCE_S": "4", "FAILOVER_WAIT_S": "2"}
    with proxied_site(tmp_path_factory.mktemp("tapped"), **settings) as site_and_tap:
        yield site_and_tap


@pytest.fixture(scope="session")
def smollm() -> Path:
    return catalog.ensure("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of 7 layers whose input and output embeddings differ."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    make_tiny_llama(folder, tied=False, num_layers=7)
    return folder


@pytest.fixture
def alias(tmp_path: Path) -> Callable[[Path, str], Path]:
    """The same model under another name, so that tests don't share nodes."""

    def make(folder: Path, name: str) -> Path:
        link = tmp_path / name
        link.symlink_to(folder, target_is_directory=True)
        return link

    return make
