from __future__ import annotations

import pytest

from tracker.templatetags import meshnet


def test_a_state_is_a_word_with_a_class_for_its_colour_and_shape() -> None:
    assert meshnet.state("online") == '<span class="state good">online</span>'
    assert meshnet.state("<b>odd", "bad") == '<span class="state bad">&lt;b&gt;odd</span>'
    assert meshnet.state("cancelled") == '<span class="state off">cancelled</span>'


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "–"), (0.4249, "0.42 ms"), (5.04, "5.0 ms"), (17.4, "17 ms"), (1940.0, "1.9 s")],
)
def test_a_time_has_its_unit(value: float | None, words: str) -> None:
    assert meshnet.ms(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "–"), (-1, "0 s"), (119, "119 s"), (125, "2 min"), (7300, "2 h"), (200000, "2 d")],
)
def test_a_length_of_time_is_coarse(value: float | None, words: str) -> None:
    assert meshnet.span(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (812e6, "812 MB"), (1.44e9, "1.4 GB"), (3e13, "30 TB")],
)
def test_bytes_are_said_as_people_say_them(value: float | None, words: str) -> None:
    assert meshnet.amount(value) == words
