"""What is kept on this machine is whole or not there."""

from __future__ import annotations

from pathlib import Path

from nodes import storage


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    storage.write_atomically(tmp_path / "new" / "file", b"one")
    storage.write_atomically(tmp_path / "new" / "file", b"two")
    assert [path.read_bytes() for path in (tmp_path / "new").iterdir()] == [b"two"]
