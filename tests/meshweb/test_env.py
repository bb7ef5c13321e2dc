from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from meshweb import env


def test_an_absent_or_blank_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHNET_TEST", raising=False)
    assert env.text("MESHNET_TEST", "x") == "x"
    monkeypatch.setenv("MESHNET_TEST", "  ")
    assert (env.text("MESHNET_TEST", "x"), env.integer("MESHNET_TEST", 3), env.boolean("MESHNET_TEST", True)) == (
        "x",
        3,
        True,
    )
    assert env.words("MESHNET_TEST") == []


def test_words_are_cut_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHNET_TEST", "a, b,,c ")
    assert env.words("MESHNET_TEST") == ["a", "b", "c"]


@pytest.mark.parametrize(("raw", "value"), [("1", True), ("ON", True), ("no", False), ("False", False)])
def test_a_boolean_is_read_in_any_usual_spelling(monkeypatch: pytest.MonkeyPatch, raw: str, value: bool) -> None:
    monkeypatch.setenv("MESHNET_TEST", raw)
    assert env.boolean("MESHNET_TEST", not value) is value


def test_a_wrong_boolean_says_which_values_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHNET_TEST", "maybe")
    with pytest.raises(ImproperlyConfigured, match=r"MESHNET_TEST must be one of 1, true.*'maybe'"):
        env.boolean("MESHNET_TEST", False)


@pytest.mark.parametrize("raw", ["-1", "1.5", "ten", "²", "0"])
def test_a_wrong_number_says_what_is_right(monkeypatch: pytest.MonkeyPatch, raw: str) -> None:
    monkeypatch.setenv("MESHNET_TEST", raw)
    with pytest.raises(ImproperlyConfigured, match="MESHNET_TEST must be a whole number, 1 or more"):
        env.integer("MESHNET_TEST", 5, least=1)
