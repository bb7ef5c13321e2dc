from __future__ import annotations

import pytest

from nodes.patterns import PatternError, size_of


@pytest.mark.parametrize(
    ("pattern", "more"),
    [
        ("", 0),
        ("abc", 3),
        (r"\{\(\[", 3),
        ("[a-z(){9}]", 1),
        ("[]()]", 1),
        (r"[\](]", 4),
        (r"\p{L}", 4),
        (".", 4),
        ("a{3}", 3),
        ("a{3,}", 4),
        ("a{3,7}", 7),
        ("a{ 3 , 7 }", 7),
        ("a{0}", 1),
        ("a{5}{5}", 25),
    ],
)
def test_repetitions_count_as_often_as_they_say(pattern: str, more: int) -> None:
    assert size_of(pattern) == 1 + more


@pytest.mark.parametrize(
    "pattern", ["(a{1000}){1000}", "((a{1,100}b){100}|c){100}", "(?:(?<n>a{9999}){9999})+", "a{999999999}"]
)
def test_what_is_repeated_within_repetitions_is_large(pattern: str) -> None:
    assert size_of(f"^{pattern}$") >= 1_000_000


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(a", "can't be read"),
        ("a)", "can't be read"),
        ("[a", "can't be read"),
        ("a\\", "can't be read"),
        ("a{x", "can't be read"),
        ("a{,5}", "can't be read"),
        ("a{3,2}", "can't be read"),
        ("a{99999999999}", "can't be read"),
        ("(?x) a # [", "can't be read"),
        ("(?=a)", "looks ahead"),
        ("(?<!a)", "looks ahead"),
        (r"(a)\1", "refers back"),
        (r"\bword", r"\b"),
    ],
)
def test_what_cant_be_kept_is_said_in_words(pattern: str, words: str) -> None:
    with pytest.raises(PatternError) as error:
        size_of(pattern)
    assert words in str(error.value)


def test_many_parentheses_are_no_trouble() -> None:
    assert size_of("(" * 5_000 + ")" * 5_000) > 5_000
