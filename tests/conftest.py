"""Rules for the whole suite."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab.internet import Internet
from tests.lab.namespaces import refusal


@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    """A network of namespaces with routers that translate addresses."""
    if reason := refusal():
        pytest.skip(reason)
    with Internet() as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole meshes first: of two processes that share the files out, neither is left with a long one at the end."""
    items.sort(key=lambda item: "/system/" not in item.path.as_posix())


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where everything must run, a skipped test is a failure: its reason stands in the summary."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
