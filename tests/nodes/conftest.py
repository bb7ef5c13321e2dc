"""Models that the tests of nodes share: made or fetched once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nodes import catalog
from nodes.sources import open_model
from nodes.weights import ModelFolder
from tests.nodes.models import make_tiny_llama
from tests.nodes.relays import MiniRelay
from tests.nodes.routes import Make, Route
from tests.nodes.sites import Site

torch.set_num_threads(1)  # what "equal" means depends on it


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untied llama of six layers."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> ModelFolder:
    return open_model(tiny_path)


@pytest.fixture(scope="session")
def tiny_tied(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return open_model(make_tiny_llama(tmp_path_factory.mktemp("tied"), tied=True, seed=1))


@pytest.fixture(scope="session")
def smollm2() -> ModelFolder:
    """The demo model: SmolLM2-135M-Instruct, 30 layers, tied."""
    return open_model(catalog.ensure("smollm2-135m-instruct"))


@pytest.fixture
def site() -> Iterator[Site]:
    with MiniRelay() as relay:
        made = Site(relay)
        with made.tracker:
            yield made


@pytest.fixture
def route() -> Iterator[Make]:
    made: list[Route] = []

    def make(*cuts: int, **options: Any) -> Route:
        made.append(Route(*cuts, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def sharded_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("sharded"), max_shard_size="100KB")


@pytest.fixture
def single(tiny_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path, tmp_path / "single"))


@pytest.fixture
def sharded(sharded_source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sharded_source, tmp_path / "sharded"))
