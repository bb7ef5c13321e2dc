from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracker.calls import ArgumentsPiece, Call, CallReader, CallStart, Content, Markup, Piece, Reading, read

HERMES = Markup("<tool_call>\n", "\n</tool_call>", "\n", "arguments")
LLAMA = Markup("", "", "", "parameters")
MISTRAL = Markup("[TOOL_CALLS] [", "]", ", ", "arguments")
MARKUPS = [HERMES, LLAMA, MISTRAL]

WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


def pieces(markup: Markup, *texts: str) -> list[Piece]:
    reader = CallReader(markup)
    return [piece for text in texts for piece in reader.feed(text)] + list(reader.finish())


def joined(told: list[Piece]) -> list[Piece]:
    """Without the cuts: neighbours of one kind are one."""
    found: list[Piece] = []
    for piece in told:
        match found[-1:], piece:
            case [Content(before)], Content(text):
                found[-1] = Content(before + text)
            case [ArgumentsPiece(index, before)], ArgumentsPiece(_, text):
                found[-1] = ArgumentsPiece(index, before + text)
            case _:
                found.append(piece)
    return found


def test_text_is_content() -> None:
    assert read("Sunny <b>today</b>.\n", HERMES) == Reading("Sunny <b>today</b>.\n", [], False)


def test_a_call_has_a_name_and_the_arguments_as_the_model_wrote_them() -> None:
    assert read(WEATHER, HERMES) == Reading("", [Call("weather", '{"city": "Oslo"}')], True)


def test_content_may_come_before_calls_and_the_space_between_is_markup() -> None:
    found = read(f"Let me see.\n\n{WEATHER}\n", HERMES)
    assert found == Reading("Let me see.", [Call("weather", '{"city": "Oslo"}')], True)


def test_several_calls_follow_each_other_with_marks_around_each() -> None:
    found = read(f"{WEATHER}\n{TIME}", HERMES)
    assert [call.name for call in found.calls] == ["weather", "time"]
    assert found.is_complete


def test_or_with_marks_around_all_of_them() -> None:
    text = '[TOOL_CALLS] [{"name": "a", "arguments": {"x": [1]}}, {"name": "b", "arguments": {}, "id": "abc"}]'
    assert read(text, MISTRAL) == Reading("", [Call("a", '{"x": [1]}'), Call("b", "{}")], True)


def test_or_without_marks_from_the_first_character_on() -> None:
    text = '{"name": "a", "parameters": {"x": "}"}}'
    assert read(text, LLAMA) == Reading("", [Call("a", '{"x": "}"}')], True)
    assert read("Look: " + text, LLAMA) == Reading("Look: " + text, [], False)


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "}"}', '{"a": "\\""}', '{"a": "\\\\"}', '{"a": {"b": [{}, "{"]}}', '{ "a" : 1 }', '{"a": "\\u007d 漢"}'],
)
def test_arguments_end_with_their_own_brace(arguments: str) -> None:
    json.loads(arguments)
    text = f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>'
    assert read(text, HERMES) == Reading("", [Call("f", arguments)], True)


def test_each_piece_comes_as_soon_as_it_is_beyond_doubt() -> None:
    reader = CallReader(HERMES)
    fed = ["Well", " ", "then", "\n<tool", '_call>\n{"name": "f", "argu', 'ments": ', '{"a"', ": 1}", "}\n</tool_call>"]
    assert [list(reader.feed(text)) for text in fed] == [
        [Content("Well")],
        [],
        [Content(" then")],
        [],
        [],
        [],
        [CallStart(0, "f"), ArgumentsPiece(0, '{"a"')],
        [ArgumentsPiece(0, ": 1}")],
        [],
    ]
    assert reader.is_complete


def test_what_only_looks_like_a_call_is_content() -> None:
    for text in (
        "<tool_call>",
        "<tool_call>\nnothing",
        '<tool_call>\n{"names": "f"}',
        '<tool_call>\n{"name": "f", "arguments": "x"}\n</tool_call>',
        '<tool_call>\n{"name": "no name", "arguments": {}}',
        '<tool_call>\n{"name": "' + "f" * 65 + '", "arguments": {}}',
        "a < b",
        "  ",
        "",
    ):
        assert read(text, HERMES) == Reading(text, [], False)


def test_a_call_after_what_looked_like_one_is_found() -> None:
    assert read(f"<tool_call> no. {WEATHER}", HERMES).content == "<tool_call> no."
    assert read(f"<tool_call>{WEATHER}", HERMES).calls == [Call("weather", '{"city": "Oslo"}')]


def test_text_after_calls_is_content() -> None:
    assert read(f"{WEATHER}\nThere.", HERMES).content == "\nThere."


@pytest.mark.parametrize("cut", range(len(WEATHER)))
def test_a_call_that_is_cut_is_told_as_far_as_it_goes(cut: int) -> None:
    found = read(WEATHER[:cut], HERMES)
    if found.calls:
        assert '{"city": "Oslo"}'.startswith(found.calls[0].arguments)
        assert found.content == ""
    else:
        assert found.content == WEATHER[:cut]
    assert found.is_complete == (cut >= WEATHER.index("}}") + 2)


@pytest.mark.parametrize("value", [None, [], {}, {"begin": "a"}, dict.fromkeys(Markup.__slots__, 7)])
def test_what_is_no_markup_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, KeyError)):
        Markup.read(value)
    with pytest.raises(TypeError):
        Markup.read(dict.fromkeys(Markup.__slots__, "x" * 101))


SCRAPS = [
    "<tool_call>",
    "</tool_call>",
    "\n",
    " ",
    '{"name": "f"',
    ', "arguments": ',
    "{}",
    '{"a": "\\"}"}',
    "}",
    "x",
    "<",
]
SCRAPS += ["[TOOL_CALLS] [", "]", ", ", WEATHER, TIME, '{"name": "g", "parameters": {"b": 1}}', "\\", '"', "{", "漢"]
TEXTS = st.lists(st.sampled_from(SCRAPS)).map("".join)


@given(st.sampled_from(MARKUPS), TEXTS, st.lists(st.integers(0, 400)))
@example(HERMES, f"a\n{WEATHER}\n{TIME}\n", list(range(200)))
def test_pieces_are_the_same_wherever_the_text_is_cut(markup: Markup, text: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    cut = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert joined(pieces(markup, *cut)) == joined(pieces(markup, text)) == joined(pieces(markup, *text))


NAMES = st.text("abcXYZ019_-", min_size=1, max_size=64)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(st.text(), VALUES, max_size=3)), min_size=1, max_size=3)


@given(st.sampled_from([HERMES, MISTRAL]), CALLS, st.booleans(), st.sampled_from(["", "Let me see."]))
def test_whatever_is_called_with_whatever_is_read_back(
    markup: Markup, calls: list[tuple[str, dict[str, Any]]], is_ascii: bool, content: str
) -> None:
    said = [json.dumps({"name": name, "arguments": given}, ensure_ascii=is_ascii) for name, given in calls]
    between = markup.separator if markup is MISTRAL else markup.end + markup.separator + markup.begin
    found = read(content + markup.begin + between.join(said) + markup.end, markup)
    assert found.content == content
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls
    assert found.is_complete
