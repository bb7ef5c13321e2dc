"""`manage.py demo`: what a newcomer sees first."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.lab.processes import ROOT, Process, environment, free_port, manage_py

QUESTION = "What is the capital of France?"


@pytest.fixture
def temporary(tmp_path: Path) -> dict[str, str]:
    """An environment in which the demo's folder is made below the test's."""
    return environment(TMPDIR=str(tmp_path))


def test_once_with_json_prints_one_object_and_leaves_nothing(smollm: Path, temporary: dict[str, str]) -> None:
    run = subprocess.run(
        [*manage_py(), "demo", "--once", QUESTION, "--json", "--port", str(free_port())],
        env=temporary,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout.splitlines()[-1])
    assert set(answer) == {"text", "route", "tokens", "tokens_per_s", "ttft_ms"}
    assert "Paris" in answer["text"]
    assert answer["route"] == [
        {"node": "node-1", "start_layer": 0, "end_layer": 15, "path": "local"},
        {"node": "node-2", "start_layer": 15, "end_layer": 30, "path": "tunnel"},
    ]
    assert answer["tokens"] > 0
    assert answer["tokens_per_s"] > 0
    assert answer["ttft_ms"] > 0
    assert "password" not in run.stderr.lower()
    assert list(Path(temporary["TMPDIR"]).glob("meshnet-demo-*")) == []


@pytest.fixture
def demo(smollm: Path, temporary: dict[str, str]) -> Iterator[Process]:
    process = Process([*manage_py(), "demo", "--port", str(free_port())], temporary)
    yield process
    process.stop(60)


def test_the_site_stays_up_with_an_admin_until_ctrl_c(demo: Process, temporary: dict[str, str]) -> None:
    found = demo.wait_for(r"stays up at (\S+)/ \(user admin, password (\S+);", 120)
    url, password = found[1], found[2]
    demo.wait_for("Ctrl-C stops")
    table = demo.output
    assert re.search(r"1 +node-1 +0–14 +local +[\d.]+", table)
    assert re.search(r"2 +node-2 +15–29 +tunnel +[\d.]+", table)

    folder = next(Path(temporary["TMPDIR"]).glob("meshnet-demo-*"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "site").stat().st_mode & 0o777 == 0o700
    stored = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(password.encode() in content for content in stored), "the password lies in a file"
    assert table.count(password) == 1

    page = signed_in(url, password)
    assert "node-1" in page.text or "smollm2-135m-instruct" in page.text

    children = descendants(demo.pid)
    assert len(children) >= 3
    demo.send(signal.SIGINT)
    assert demo.wait(60) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not folder.exists()


def signed_in(url: str, password: str) -> requests.Response:
    """The first page after a login as a browser does it; the admin's style sheet must be there, too."""
    with requests.Session() as browser:
        login = browser.get(f"{url}/", timeout=20)
        assert login.url == f"{url}/login?next=/"
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', login.text)
        assert token
        form = {"csrfmiddlewaretoken": token[1], "username": "admin", "password": password, "next": "/"}
        page = browser.post(login.url, data=form, headers={"Referer": login.url}, timeout=20)
        assert page.status_code == 200
        assert page.url == f"{url}/"
        style = browser.get(f"{url}/static/admin/css/base.css", timeout=20)
        assert style.status_code == 200
        return page


def descendants(pid: int) -> list[int]:
    children = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                children += [int(entry), *descendants(int(entry))]
    return children
