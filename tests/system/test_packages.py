"""Packages that users bring, unchanged, each from PyPI into an environment of its own.

The environments are made side by side while the mesh starts; `uv` links files from its cache where it has them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.lab.processes import ROOT, environment
from tests.lab.site import Site
from tests.nodes.scripted import OTHERWISE, make_scripted_llama

MODEL = "brought"
FOX = "The quick brown fox jumps over the lazy dog"
DEADLINE_S = 120  # from a package index that is slow today

Installed = Future[Path]


def install(requirement: str, folder: Path) -> Path:
    """The folder of an environment's programs."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    run([*uv, "venv", "--python", sys.executable, str(folder)])
    run([*uv, "pip", "install", "--python", str(folder / "bin" / "python"), requirement])
    return folder / "bin"


def run(command: list[str], **env: str) -> str:
    """Its standard output."""
    done = subprocess.run(
        command, env=environment(**env), capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Installed]]:
    """By package."""
    lines = (
        line.partition("#")[0].strip() for line in (ROOT / "requirements" / "clients.txt").read_text().splitlines()
    )
    wanted = {Requirement(line).name: line for line in lines if line}
    with ThreadPoolExecutor(len(wanted)) as threads:
        folder = tmp_path_factory.mktemp("environments")
        yield {name: threads.submit(install, line, folder / name) for name, line in wanted.items()}


@pytest.fixture(scope="module")
def mesh(installed: object, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The installations begin before it does."""
    folder = make_scripted_llama(tmp_path_factory.mktemp("models") / MODEL, {"F": FOX})
    with site.mesh(folder, ["0:2", "2:4"]):
        yield site


def brought(mesh: Site, installed: Installed, script: str) -> dict[str, Any]:
    """What a script of tests/brought tells that was run in this environment."""
    python = str(installed.result(DEADLINE_S) / "python")
    told: dict[str, Any] = json.loads(
        run([python, "-I", str(ROOT / "tests" / "brought" / script), f"{mesh.local_url}/v1", mesh.api_key, MODEL])
    )
    return told


def test_the_openai_package(mesh: Site, installed: dict[str, Installed]) -> None:
    told = brought(mesh, installed["openai"], "with_openai.py")
    assert MODEL in told["models"]
    assert told["model"] == MODEL
    assert {told[how] for how in ("whole", "streamed", "gathered", "async")} == {FOX}
    assert told["usage"]
    assert told["plain"] == "The quick brown"
    assert told["last_line"] == "data: [DONE]"
    assert told["request_id"]
    assert told["refused"] == [
        "NotFoundError model_not_found model",
        "BadRequestError unsupported_parameter store",
        "AuthenticationError invalid_api_key None",
    ]


def test_langchains_adapter(mesh: Site, installed: dict[str, Installed]) -> None:
    told = brought(mesh, installed["langchain-openai"], "with_langchain.py")
    assert (told["whole"], told["reason"]) == (FOX, "stop")
    assert told["tokens"]["total_tokens"] == told["tokens"]["input_tokens"] + told["tokens"]["output_tokens"]
    assert "".join(told["streamed"]) == FOX
    assert len(told["streamed"]) > 1
    assert [usage["output_tokens"] for usage in told["usage"]] == [told["tokens"]["output_tokens"]]
    assert told["batch"] == [FOX, OTHERWISE]
    assert (told["async"], told["plain"], told["plain_streamed"]) == (FOX, FOX, FOX)


def test_the_llm_command(mesh: Site, installed: dict[str, Installed], tmp_path: Path) -> None:
    endpoint = {"model_name": MODEL, "api_base": f"{mesh.local_url}/v1", "api_key_name": "meshnet"}
    models = [{"model_id": "ours", **endpoint}, {"model_id": "ours-plain", "completion": True, **endpoint}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # which is YAML too
    (tmp_path / "keys.json").write_text(json.dumps({"meshnet": mesh.api_key}))
    llm = str(installed["llm"].result(DEADLINE_S) / "llm")

    def says(*arguments: str) -> str:
        run_with = [llm, "prompt", "-o", "temperature", "0", *arguments]
        return run(run_with, LLM_USER_PATH=str(tmp_path)).removesuffix("\n")

    assert says("-m", "ours", "say F") == FOX
    assert says("-c", "--no-stream", "say x") == OTHERWISE  # the conversation goes on, with what was said so far
    assert says("-m", "ours-plain", "-s", "Be brief.", "-o", "max_tokens", "9", "say F") == FOX
