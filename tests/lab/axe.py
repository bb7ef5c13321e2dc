"""axe-core, which finds in a page what makes it hard to use for whom: fetched once from npm, outside the tree."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from playwright.sync_api import Page

from tests.lab.services import find

VERSION = "4.14.1"
SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="  # of the package
SERIOUS = ("serious", "critical")
OURS = {"exclude": [["#documentation"]]}  # what Swagger UI draws on the API's page is its own


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    impact: str
    words: str
    elements: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.impact} {self.rule}: {self.words}\n    " + "\n    ".join(self.elements)


def findings(page: Page, only: str = "") -> list[Finding]:
    """The serious ones of the page as it is now. `only`: one rule of all."""
    page.evaluate(source())
    options = {"resultTypes": ["violations"]} | ({"runOnly": [only]} if only else {})
    told: dict[str, Any] = page.evaluate("([where, options]) => axe.run(where, options)", [OURS, options])
    return [_finding(one) for one in told["violations"] if one["impact"] in SERIOUS]


def _finding(told: dict[str, Any]) -> Finding:
    elements = tuple(f"{node['html'][:160]} – {node['failureSummary']}" for node in told["nodes"][:5])
    return Finding(told["id"], told["impact"], told["help"], elements)


def source() -> str:
    """The library's one file."""
    kept = Path(platformdirs.user_cache_dir("meshnet-tests")) / f"axe-core-{VERSION}.min.js"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            fetched = Path(folder) / kept.name
            fetched.write_bytes(_fetch(Path(folder)))
            os.replace(fetched, kept)  # two test processes may fetch it at once
    return kept.read_text()


def _fetch(folder: Path) -> bytes:
    npm = find("npm")
    assert npm, "npm is missing; install it with: make services"
    pack = [npm, "pack", "--silent", f"axe-core@{VERSION}", "--pack-destination", str(folder)]
    subprocess.run(pack, check=True, timeout=120, stdin=subprocess.DEVNULL, cwd=folder)
    package = next(folder.glob("*.tgz"))
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    assert digest == SHA512, f"axe-core {VERSION} has another SHA-512 than the one kept here: {digest}"
    with tarfile.open(package) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file
        return file.read()
