"""A body is read as one JSON object, and what is wrong with it is said in words of people."""

from __future__ import annotations

import pytest

from tracker.errors import ApiError
from tracker.openai import read_chat
from tracker.validation import MAX_DIGITS, json_object


def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as error:
        json_object(body)
    assert error.value.status == 400
    return error.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"temperature": 0, "temperature": 1}', "temperature"),
        (b'{"a": {}, "messages": [{"role": "user"}, {"role": "user", "role": "user"}]}', "messages[1].role"),
        (b'{"meshnet": {"a": {"x": 1, "x": 2}}}', "meshnet.a.x"),
        (b'{"a": {"x": 1, "x": 2}, "a": 1}', "a"),
        (b'[{"x": 1, "x": 1}]', "[0].x"),
    ],
)
def test_what_is_given_twice_is_refused_by_its_place(body: bytes, param: str) -> None:
    error = refused(body)
    assert (error.code, error.param) == ("invalid_value", param)
    assert error.message == f"{param}: is given more than once."


def test_the_same_name_in_two_objects_is_none_too_many() -> None:
    assert json_object(b'{"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}]}') == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": ' + b"9" * 5000 + b"}", f"a number has more than {MAX_DIGITS} digits"),
        (b"[" * 200_000, "it is nested too deeply"),
        (b'{"a": "\xff"}', "its byte 7 is no UTF-8"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_what_is_no_json_is_refused_in_words_of_its_own(body: bytes, words: str) -> None:
    error = refused(body)
    assert (error.code, error.message) == ("invalid_json", f"The body of your request is not valid JSON: {words}.")


def test_half_a_surrogate_pair_is_called_so_wherever_it_is() -> None:
    with pytest.raises(ApiError) as error:
        read_chat(b'{"model": "\\ud800", "messages": [{"role": "user", "content": "Hi"}]}')
    assert error.value.message == "model: holds half a surrogate pair, which is no text."
