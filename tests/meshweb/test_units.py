"""The systemd units of docs/deploy, what docs/owners.md tells owners to type, what is run before a commit."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodes.management.commands import fetchmodel, runnode
from nodes.options import read_options
from tests.lab.deployment import FILES, command_in
from tests.lab.processes import ROOT

UNITS = ("meshnet-node.service", "meshnet@.service")
OWNERS = (ROOT / "docs" / "owners.md").read_text()


def node_environment() -> dict[str, str]:
    lines = (FILES / "node.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def parser(command: Any, name: str) -> ArgumentParser:
    made: ArgumentParser = command.Command().create_parser("manage.py", name)
    return made


class Unit(RawConfigParser):
    """A unit file; of directives that come several times the last."""

    def __init__(self, name: str) -> None:
        super().__init__(strict=False, allow_no_value=True)
        self.optionxform = str  # type: ignore[assignment, method-assign]
        self.read(FILES / name)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_one_that_systemd_understands(name: str, tmp_path: Path) -> None:
    """Where systemd is there to say so; its own words for what it doesn't."""
    text = (FILES / name).read_text()
    assert Unit(name).sections() == ["Unit", "Service", "Install"]
    if not shutil.which("systemd-analyze"):
        return
    here = text.replace("/opt/meshnet/.venv/bin/python", sys.executable).replace("/opt/meshnet", str(ROOT))
    (tmp_path / name.replace("@", "@web")).write_text(here)
    command = [
        "systemd-analyze",
        "verify",
        "--man=no",
        "--recursive-errors=no",
        str(tmp_path / name.replace("@", "@web")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_leaves_its_program_only_what_it_needs(name: str) -> None:
    service = Unit(name)["Service"]
    for directive, value in {
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "PrivateDevices": "yes",
        "PrivateTmp": "yes",
        "ProtectHome": "yes",
        "ProtectKernelModules": "yes",
        "ProtectSystem": "strict",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
        "RestrictSUIDSGID": "yes",
        "StateDirectoryMode": "0700",
        "SystemCallFilter": "~@privileged",
    }.items():
        assert service[directive] == value, directive
    assert "DynamicUser" in service or service["User"] not in ("", "root")


def test_the_nodes_unit_runs_runnode_as_its_settings_say(tmp_path: Path) -> None:
    words = node_environment()
    options = shlex.split(words.pop("OPTIONS"))
    command = command_in(FILES / "meshnet-node.service", "ExecStart=", STATE_DIRECTORY=str(tmp_path), **words)
    assert command[1:3] == ["manage.py", "runnode"]
    assert command.pop() == "$OPTIONS"
    given = vars(parser(runnode, "runnode").parse_args([*command[3:], *options]))
    checked = read_options(given, "join.token", "", [], 10.0, 20.0)
    assert (checked.tracker_url, checked.state_folder) == ("https://mesh.example.org", tmp_path)
    assert checked.max_memory_bytes == 4 << 30


def test_what_owners_are_told_to_type_is_there() -> None:
    known = {
        option
        for command, name in ((runnode, "runnode"), (fetchmodel, "fetchmodel"))
        for action in parser(command, name)._actions
        for option in action.option_strings
    }
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", OWNERS))
    assert {"--layers", "--max-memory", "--cache-dir", "--prune"} <= told
    assert told - known == {"--extra-index-url", "--shutdown", "--exec", "--now"}  # of pip, wsl and systemctl


def test_what_owners_are_pointed_to_is_there() -> None:
    links = re.findall(r"\]\(([\w./@-]+?)(?:#[\w-]+)?\)", OWNERS)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_what_is_run_before_a_commit_is_what_make_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = {hook["id"]: shlex.split(hook["entry"]) for hook in hooks}
    assert all((ROOT / words[0]).exists() for words in entries.values())
    assert {words[1] for words in entries.values() if words[0].endswith("ruff")} == {"check", "format"}
    assert entries["types"] == [".venv/bin/mypy", "."]
    assert all(hook["language"] == "system" for hook in hooks)
