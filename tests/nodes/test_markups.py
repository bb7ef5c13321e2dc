from __future__ import annotations

import pytest

from nodes.markups import OWN, Markup
from tests.nodes.templates import BARE, LIST, LIST_TOKENS, PLAIN, TAGS, TURNS, tokenizer_with

CALLS = [("add", '{"a": 1}'), ("now", "{}")]


@pytest.mark.parametrize(
    ("template", "markup"),
    [
        (TAGS, Markup("<tool_call>\n", "\n</tool_call>", "\n", "arguments")),
        (LIST, Markup("[TOOL_CALLS] [", "]", ", ", "arguments", is_around_each=False)),
        (BARE, Markup("", "", "", "parameters", most_calls=1)),
    ],
    ids=["tags", "list", "bare"],
)
def test_a_template_that_knows_calls_is_asked_how_it_writes_them(template: str, markup: Markup) -> None:
    assert tokenizer_with(template, LIST_TOKENS).markup == markup


@pytest.mark.parametrize("template", [PLAIN, TURNS, "{{ raise_exception('no') }}", "{{ tools }}", "{% if %}"])
def test_any_other_gets_our_own(template: str) -> None:
    assert tokenizer_with(template).markup == OWN


def test_one_that_mentions_functions_but_writes_calls_in_another_way_gets_our_own() -> None:
    other = TAGS.replace('{"name": "{{ call.function.name }}", "arguments":', "{{ call.function.name }}(").replace(
        "| tojson }}}\n<", "| tojson }})\n<"
    )
    assert tokenizer_with(other).markup == OWN


def test_a_mark_that_ends_a_text_is_none_that_can_be_said() -> None:
    assert tokenizer_with(TAGS.replace("<tool_call>\n", "<|im_end|>\n")).markup == OWN


def test_a_mark_is_whole_though_another_answer_begins_like_it() -> None:
    """As where answers without calls begin with a thought in tags."""
    thinking = TAGS.replace("{% for call in", "{% if not message.get('tool_calls') %}<think>{% endif %}{% for call in")
    thinking = thinking.replace("{{ message['content'] }}{% if", "{% if").replace(
        "<|im_end|>\n{% endfor %}", "§{% endfor %}"
    )
    assert tokenizer_with(thinking).markup.begin == "<tool_call>\n"


def test_special_tokens_of_a_markup_are_known() -> None:
    tokenizer = tokenizer_with(LIST, LIST_TOKENS)
    (mark,) = tokenizer.special_marks
    assert tokenizer.split(tokenizer.markup.begin) == [mark, " ["]
    assert tokenizer_with(TAGS).special_marks == frozenset()


def test_calls_are_written_between_the_marks() -> None:
    add, now = '{"name": "add", "arguments": {"a": 1}}', '{"name": "now", "arguments": {}}'
    assert OWN.written(CALLS[:1]) == f"<tool_call>\n{add}\n</tool_call>"
    assert OWN.written(CALLS) == f"<tool_call>\n{add}\n</tool_call>\n<tool_call>\n{now}\n</tool_call>"
    assert Markup("[", "]", ", ", "arguments", is_around_each=False).written(CALLS) == f"[{add}, {now}]"


def test_the_tracker_is_told_what_it_finds_calls_by() -> None:
    assert OWN.as_dict() == {
        "begin": "<tool_call>\n",
        "end": "\n</tool_call>",
        "separator": "\n",
        "arguments": "arguments",
    }
