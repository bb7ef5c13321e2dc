"""Namespaces of the network: what is opened or started in one is in it, and where there can be none, why."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab import namespaces, services
from tests.lab.namespaces import Keeper, Namespace, refusal
from tests.lab.processes import ROOT, Process

_SAYS_WHY = "from tests.lab.namespaces import refusal; print(refusal())"


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if reason := refusal():
        pytest.skip(reason)
    made = Namespace("tried")
    yield made
    made.close()


@pytest.fixture
def keeper(namespace: Namespace) -> Iterator[Keeper]:
    made = Keeper()
    made.keep(namespace)
    yield made
    made.close()


def devices() -> list[str]:
    return [line.split(":")[0].strip() for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]]


def test_a_thread_is_in_it_for_a_block_and_other_threads_are_not(namespace: Namespace) -> None:
    outside = devices()
    namespace.run("ip link add name inner type bridge")
    with ThreadPoolExecutor(1) as other:
        assert other.submit(devices).result() == outside
        with namespace.entered():
            assert "inner" in devices()
            assert other.submit(devices).result() == outside
    assert devices() == outside


@pytest.mark.parametrize("warm", [False, True])
def test_a_program_that_is_started_in_it_is_there_until_the_keeper_ends_it(
    namespace: Namespace, keeper: Keeper, tmp_path: Path, warm: bool
) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text("import time; print('here', flush=True); time.sleep(600)")
    started = Process([sys.executable, str(script)], warm=warm, namespace=namespace)
    started.wait_for("here")
    assert Path(f"/proc/{started.pid}/ns/net").stat().st_ino == Path(namespace.path).stat().st_ino
    keeper.close()
    assert started.wait(10) == -signal.SIGKILL


def test_a_command_that_fails_is_told_with_its_output(namespace: Namespace) -> None:
    with pytest.raises(AssertionError, match=r"'ip link set nothing up' in tried: exit 1\n.*nothing"):
        namespace.run("ip link set nothing up")


def test_it_says_what_to_do_where_namespaces_are_not_permitted() -> None:
    setpriv = services.find("setpriv")
    assert setpriv
    asked = [setpriv, "--bounding-set=-sys_admin", sys.executable, "-c", _SAYS_WHY]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert "aren't permitted here: run the tests as root" in said.stdout, said.stderr


def test_it_says_what_to_do_where_a_program_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "PROGRAMS", ("ip", "no-such-program"))
    assert refusal() == "network namespaces need no-such-program: run `make services`"
