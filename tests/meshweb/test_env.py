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


@pytest.mark.parametrize("raw", ["0.1", "-1", "nan", "inf", "1,5", "soon"])
def test_a_wrong_fraction_says_what_is_right(monkeypatch: pytest.MonkeyPatch, raw: str) -> None:
    monkeypatch.setenv("MESHNET_TEST", raw)
    with pytest.raises(ImproperlyConfigured, match=rf"MESHNET_TEST must be a number, 0.2 or more; it is '{raw}'"):
        env.number("MESHNET_TEST", 10.0, least=0.2)
    monkeypatch.setenv("MESHNET_TEST", "0.25")
    assert env.number("MESHNET_TEST", 10.0, least=0.2) == 0.25


def test_a_choice_is_one_of_its_words_in_any_case_and_the_first_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHNET_TEST", raising=False)
    assert env.choice("MESHNET_TEST", ("line", "json")) == "line"
    monkeypatch.setenv("MESHNET_TEST", "JSON")
    assert env.choice("MESHNET_TEST", ("line", "json")) == "json"
    monkeypatch.setenv("MESHNET_TEST", "xml")
    with pytest.raises(ImproperlyConfigured, match="MESHNET_TEST must be one of line, json; it is 'xml'"):
        env.choice("MESHNET_TEST", ("line", "json"))


def test_networks_are_addresses_and_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHNET_TEST", "10.0.0.1, 10.1.2.3/16, fd00::/8")
    assert [str(network) for network in env.networks("MESHNET_TEST")] == ["10.0.0.1/32", "10.1.0.0/16", "fd00::/8"]
    monkeypatch.setenv("MESHNET_TEST", "proxy.example.org")
    with pytest.raises(ImproperlyConfigured, match=r"MESHNET_TEST must be addresses or networks.*10.1.0.0/16"):
        env.networks("MESHNET_TEST")


def test_urls_lose_their_last_slash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHNET_TEST", "wss://a.example.org/, wss://b.example.org:8443")
    wanted = (("ws", "wss"), "wss://mesh.example.org")
    assert env.urls("MESHNET_TEST", *wanted) == ["wss://a.example.org", "wss://b.example.org:8443"]
    monkeypatch.delenv("MESHNET_TEST")
    assert env.urls("MESHNET_TEST", *wanted) == []
    assert env.url("MESHNET_TEST", "", *wanted) == ""


@pytest.mark.parametrize("raw", ["https://u:hidden@x", "wss://", "wss://u:hidden@x:port", "wss://[u:hidden", "hidden"])
def test_a_wrong_url_says_what_is_right_without_repeating_it(monkeypatch: pytest.MonkeyPatch, raw: str) -> None:
    monkeypatch.setenv("MESHNET_TEST", raw)
    with pytest.raises(ImproperlyConfigured, match=r"MESHNET_TEST must be like wss://mesh.example.org") as caught:
        env.url("MESHNET_TEST", "", ("ws", "wss"), "wss://mesh.example.org")
    assert "hidden" not in str(caught.value)
