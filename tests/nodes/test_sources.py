"""What may name a model, and how it is called then."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.sources import model_name, open_model
from nodes.weights import ModelError


def test_what_is_neither_a_folder_nor_a_name_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        open_model(tmp_path / "nothing")


def test_a_model_is_called_as_its_folder_also_where_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")

    assert model_name(str(tmp_path / "alias")) == "alias"
    assert model_name(f"{tmp_path}/alias/") == "alias"
    assert model_name("smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert model_name("acme/tiny") == model_name("acme/tiny@refs/pr/1") == "acme/tiny"


def test_the_folder_one_is_in_has_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    assert model_name(".") == "here"
