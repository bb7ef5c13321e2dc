"""Each side runs with its own requirements: the site without torch, a node without Channels.

A side's environment holds what its requirements file names, what that needs in turn, and nothing else. Its files are
those of this environment, linked: the same pins, without a second download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.lab.processes import ROOT, environment
from tests.lab.site import Site
from tests.nodes.models import make_tiny_llama

DEADLINE_S = 60


def interpreter(side: str, folder: Path) -> str:
    """The Python of an environment with requirements/<side>.txt and nothing else."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    packages = next(folder.glob("lib/python*/site-packages"))
    for installed in closure(named_in(ROOT / "requirements" / f"{side}.txt")):
        link(installed, packages)
    python = str(folder / "bin" / "python")
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "check"])
    return python


def named_in(file: Path) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def closure(requirements: Collection[Requirement]) -> Iterator[Distribution]:
    """The distributions installed here that meet these requirements, and those that they require."""
    waiting, seen = list(requirements), set()
    while waiting:
        wanted = waiting.pop()
        key = (wanted.name.lower(), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        found = distribution(wanted.name)
        assert wanted.specifier.contains(found.version, prereleases=True), f"{wanted}, but {found.version} is here"
        needs = [Requirement(line) for line in found.requires or ()]
        waiting += [need for need in needs if applies(need, wanted.extras)]
        yield found


def applies(need: Requirement, extras: Collection[str]) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*extras, ""))


def link(installed: Distribution, packages: Path) -> None:
    for file in installed.files or ():
        target = packages / file
        if ".." in file.parts or target.exists():  # programs in bin; a distribution that was wanted twice
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file.locate(), target)
        except OSError:  # another file system
            shutil.copy2(str(file.locate()), target)


def run(command: list[str]) -> None:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def has(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], env=environment(), capture_output=True).returncode == 0


def test_a_site_without_torch_and_a_node_without_channels_answer_a_chat(tmp_path: Path) -> None:
    site_python, node_python = (interpreter(side, tmp_path / side) for side in ("server", "node"))
    assert not has(site_python, "torch")
    assert not has(node_python, "channels")
    make_tiny_llama(tmp_path / "tiny", num_layers=4)
    with Site(tmp_path / "mesh", python=site_python) as site:
        for name, layers in (("first", "0:2"), ("second", "2:4")):
            site.start_node(name, tmp_path / "tiny", layers, python=node_python)
        site.wait_for_model("tiny", deadline_s=60)
        answer = site.chat("tiny", "Hello", max_tokens=5)
    assert answer.paths == ["local", "tunnel"]
    assert 0 < len(answer.ids) <= 5
