from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.state import NodeState, StateError, StateInUse, default_folder
from tests.lab.processes import ROOT


@pytest.fixture
def state(tmp_path: Path) -> Iterator[NodeState]:
    opened = NodeState(tmp_path / "deep" / "state")
    opened.open()
    yield opened
    opened.close()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_its_user_may_look_inside(state: NodeState) -> None:
    state.write_key("id.secret")

    assert mode(state.folder) == 0o700
    assert {mode(file) for file in state.folder.iterdir()} == {0o600}


def test_a_folder_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    (folder / "node_key").write_text("id.secret\n")
    state = NodeState(folder)
    state.open()

    assert state.read_key() == "id.secret"
    assert mode(folder) == 0o700
    assert mode(folder / "node_key") == 0o600
    state.close()


def test_a_key_is_read_back_and_there_is_none_at_first(state: NodeState) -> None:
    assert state.read_key() is None
    state.write_key("id.secret")
    assert state.read_key() == "id.secret"
    state.write_key("id.other")
    assert state.read_key() == "id.other"


def test_a_second_user_of_the_folder_hears_the_process_id_of_the_first(state: NodeState) -> None:
    second = NodeState(state.folder)
    with pytest.raises(StateInUse, match=rf"running already \(pid {os.getpid()}\)"):
        second.open()


def test_the_lock_ends_with_the_process_however_it_ends(tmp_path: Path) -> None:
    code = f"""
import os, pathlib
from nodes.state import NodeState
state = NodeState(pathlib.Path({str(tmp_path)!r}))
state.open()
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30)
    assert killed.returncode == -9

    state = NodeState(tmp_path)
    state.open()
    state.close()


def test_a_folder_that_cant_be_made_is_an_error_naming_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="file"):
        NodeState(tmp_path / "file" / "state").open()


def test_each_tracker_and_name_has_a_folder_of_its_own() -> None:
    folders = {
        default_folder("https://a.example", "one"),
        default_folder("https://a.example:8443", "one"),
        default_folder("https://b.example", "one"),
        default_folder("https://a.example", "two"),
    }

    assert len(folders) == 4
    assert default_folder("https://a.example", "../..").parent.name == "a.example"
