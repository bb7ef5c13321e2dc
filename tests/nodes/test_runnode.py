"""The command as its user meets it: exit codes, one line for what is wrong, signals."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.processes import Process, environment, listening_ports, manage_py
from tests.nodes.relays import key_of
from tests.nodes.sites import Site
from tests.nodes.trackers import refusal

Run = Callable[..., Process]


@pytest.fixture
def run(site: Site, tiny_path: Path, tmp_path: Path) -> Iterator[Run]:
    """Starts runnode; options given replace the usual ones, None takes one out. `warm`: see Process."""
    started: list[Process] = []

    def begin(*flags: str, warm: bool = True, **options: str | None) -> Process:
        usual: dict[str, str | None] = {
            "tracker": site.tracker.url,
            "model": str(tiny_path),
            "layers": "0:3",
            "name": "1",
            "state-dir": str(tmp_path / "state"),
            "threads": "1",
        }
        given = usual | {name.replace("_", "-"): value for name, value in options.items()}
        arguments = [part for name, value in given.items() if value is not None for part in (f"--{name}", value)]
        env = environment(MESHNET_JOIN_TOKEN="join.token")
        started.append(Process([*manage_py(), "runnode", *arguments, *flags], env, warm=warm))
        return started[-1]

    yield begin
    for process in started:
        if process.is_running:
            process.kill()


def last_line(process: Process) -> str:
    return process.output.strip().splitlines()[-1]


def test_it_serves_until_it_is_told_to_stop(run: Run, site: Site, tmp_path: Path) -> None:
    process = run("--relay-only", warm=False, cache_dir=str(tmp_path / "cache"))
    process.wait_for(r"Ready: layers 0–2 of ")

    assert listening_ports(process.pid) == set()
    assert (tmp_path / "state" / "node_key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["fingerprints"]
    assert "join.token" not in process.output
    assert key_of(site.peer_id(1)) not in process.output

    second = run()
    assert second.wait() == 2
    assert last_line(second).startswith("runnode: ")
    assert f"(pid {process.pid})" in last_line(second)

    assert process.stop() == 0
    assert site.tracker.verbs[-1] == "unregister"


def test_ctrl_c_ends_it_in_order_too(run: Run, site: Site) -> None:
    process = run()
    process.wait_for("Registered")
    process.send(signal.SIGINT)

    assert process.wait() == 0
    assert site.tracker.verbs[-1] == "unregister"


def test_a_refused_token_is_one_line_and_2(run: Run, site: Site) -> None:
    site.tracker.answer = lambda verb: refusal(401, "unauthorized", "this join token is used up")
    process = run()

    assert process.wait() == 2
    assert last_line(process) == "runnode: this join token is used up"


def test_a_site_that_fails_for_ever_is_asked_on_and_named_once_and_one_that_refuses_ends_it(
    run: Run, site: Site
) -> None:
    process = run()
    process.wait_for("Registered")
    site.tracker.answer = lambda verb: (500, b"")
    process.wait_for("The tracker can't be reached: .* answers HTTP 500; trying on")
    site.tracker.wait_for("heartbeat", site.tracker.verbs.count("heartbeat") + 2, 30)
    assert process.output.count("can't be reached") == 1
    site.tracker.answer = lambda verb: refusal(401, "unauthorized", "this key is unknown here")

    assert process.wait(60) == 2
    assert last_line(process) == "runnode: this key is unknown here"
    assert "Traceback" not in process.output


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"layers": "3"}, "--layers '3': must be like 0:12, which is layers 0 to 11"),
        ({"tracker": "mesh"}, "--tracker 'mesh': must be like https://mesh.example.org"),
        ({"model": "/nowhere"}, "/nowhere is no folder, no GGUF file, no model of the catalogue"),
        ({"layers": "4:9"}, "--layers 4:9: "),
    ],
)
def test_a_wrong_argument_is_one_line_and_2(run: Run, options: dict[str, str], line: str) -> None:
    process = run(**options)

    assert process.wait() == 2
    assert line in last_line(process)
    assert "Traceback" not in process.output


def test_a_missing_argument_is_2(run: Run) -> None:
    process = run(warm=False, layers=None)

    assert process.wait() == 2
    assert "--layers" in last_line(process)
