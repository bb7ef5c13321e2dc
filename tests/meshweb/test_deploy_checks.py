"""`manage.py check --deploy` as an operator runs it: clean with the settings that docs/deploy.md ships."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.lab.deployment import shipped_settings
from tests.lab.processes import environment, manage_py


def check(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [*manage_py(sys.executable), "check", "--deploy", "--fail-level", "WARNING"]
    variables = environment(**({"DATA_DIR": str(folder / "data")} | env))
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)


def test_it_finds_nothing_under_the_settings_that_are_shipped(tmp_path: Path) -> None:
    run = check(tmp_path, **shipped_settings({"/var/lib/meshnet": str(tmp_path / "data")}))
    assert (run.returncode, "no issues" in run.stdout + run.stderr) == (0, True), run.stderr


def test_what_a_site_behind_tls_forgot_is_told_with_what_to_do(tmp_path: Path) -> None:
    forgotten = {"PUBLIC_URL": "https://mesh.example.org", "HSTS_S": "0", "METRICS_TOKEN": "short", "DEBUG": "on"}
    run = check(tmp_path, **forgotten)
    found = set(re.findall(r"\((\w+\.[EW]\d+)\)", run.stderr))
    assert run.returncode != 0
    assert found == {"security.W004", "security.W008", "security.W018", "tracker.W004", "tracker.W005"}
    assert run.stderr.count("HINT: Set TRUSTED_PROXIES to the address") == 1
