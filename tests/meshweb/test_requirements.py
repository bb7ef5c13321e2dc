"""Each side runs with its own requirements: the site without torch, a node without Channels.

The environments are built once and kept under `.cache/` by the hash of their requirements file.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.processes import ROOT, environment
from tests.lab.site import Site
from tests.nodes.models import make_tiny_llama

INSTALL_DEADLINE_S = 900


def interpreter(side: str) -> str:
    """The Python of an environment with requirements/<side>.txt and nothing else."""
    requirements = ROOT / "requirements" / f"{side}.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = ROOT / ".cache" / "venvs" / f"{side}-{digest}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        arguments = shlex.split(os.environ.get("PIP_ARGS", ""))
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
        run([str(python), *install, "-r", str(requirements)])
        (folder / "complete").touch()
    return str(python)


def run(command: list[str]) -> None:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=INSTALL_DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]


def has(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], env=environment(), capture_output=True).returncode == 0


@pytest.mark.timeout(2 * INSTALL_DEADLINE_S)
def test_a_site_without_torch_and_a_node_without_channels_answer_a_chat(tmp_path: Path) -> None:
    site_python, node_python = interpreter("server"), interpreter("node")
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
