"""Prompts in, characters out as soon as they are whole, stop strings never."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from nodes.text import ChatTemplateMissing, Detokenizer, PromptError, StopMatcher, Tokenizer
from nodes.weights import ModelError, ModelFolder
from tests.nodes.models import CHAT_TEMPLATE, make_tokenizer

T1 = "👩‍👩‍👧‍👦 한국어 漢字 é"
HELLO = [{"role": "user", "content": "hello world"}]


@pytest.fixture(scope="module")
def bytes_like() -> Tokenizer:
    """A token for each byte of a character outside ASCII."""
    return Tokenizer(make_tokenizer(), {2})


@pytest.fixture(scope="module")
def smol(smollm2: ModelFolder) -> Tokenizer:
    return Tokenizer.load(smollm2)


def pushed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each token, and last what was held."""
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push([number]) for number in ids), detokenizer.finish()]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer._tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("text", [T1, "the quick brown fox", "a\n\n  b\t", "naïve café — “quoted” 🎉🎉", ""])
@pytest.mark.parametrize("name", ["bytes_like", "smol"])
def test_joined_pieces_are_the_whole_text(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = ids_of(tokenizer, text)
    pieces = pushed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_goes_out_with_the_token_that_completes_it(bytes_like: Tokenizer) -> None:
    assert pushed(bytes_like, ids_of(bytes_like, "é漢👩x")) == ["", "é", "", "", "漢", "", "", "", "👩", "x", ""]


def test_as_many_pieces_as_tokens_where_nothing_is_held(smol: Tokenizer) -> None:
    ids = ids_of(smol, "The quick brown fox jumps over the lazy dog.")
    assert all(pushed(smol, ids)[:-1])


def test_half_a_character_at_the_end_comes_out_as_it_decodes(bytes_like: Tokenizer) -> None:
    ids = ids_of(bytes_like, "ab漢")[:-1]
    assert pushed(bytes_like, ids) == ["a", "b", "", "", "\ufffd"]
    assert bytes_like.decode(ids) == "ab\ufffd"


def test_a_replacement_character_that_is_meant_comes_out(bytes_like: Tokenizer) -> None:
    ids = ids_of(bytes_like, "a\ufffdb")
    assert "".join(pushed(bytes_like, ids)) == "a\ufffdb"
    assert "".join(pushed(bytes_like, ids[:-1])) == "a\ufffd"


def test_bytes_that_are_no_character_do_not_hold_the_text_back(bytes_like: Tokenizer) -> None:
    stray = ids_of(bytes_like, "漢")[1]  # a continuation byte without its beginning
    pieces = pushed(bytes_like, [stray] * 40 + ids_of(bytes_like, "ok"))
    assert "".join(pieces) == "\ufffd" * 40 + "ok"
    assert sum(map(bool, pieces[:40])) >= 36


def test_several_tokens_at_once_come_out_as_one_piece(bytes_like: Tokenizer) -> None:
    ids = ids_of(bytes_like, T1)
    for size in (2, 3, 7, len(ids)):
        detokenizer = Detokenizer(bytes_like)
        pieces = [detokenizer.push(ids[start : start + size]) for start in range(0, len(ids), size)]
        assert "".join(pieces) + detokenizer.finish() == T1


def test_every_way_to_start_again_gives_the_same_text(bytes_like: Tokenizer) -> None:
    """A resumed text decodes all ids afresh and must find what was sent at its beginning."""
    ids = ids_of(bytes_like, "x漢 é")
    sent = ""
    for number in range(len(ids)):
        sent = "".join(pushed(bytes_like, ids[:number])[:-1])
        assert "".join(pushed(bytes_like, ids)).startswith(sent)


def test_special_tokens_have_no_text(smol: Tokenizer) -> None:
    assert "".join(pushed(smol, [1, *ids_of(smol, "Hi"), 2])) == "Hi"


def test_special_tokens_that_are_asked_for_have_their_text(smol: Tokenizer) -> None:
    mark, other, hello = 7, 8, ids_of(smol, "Hi 漢")
    detokenizer = smol.detokenizer({mark})
    pieces = [detokenizer.push([number]) for number in [1, mark, *hello, other, mark, *hello, 2]]
    text = smol.split(smol.backend.decode([mark]))
    assert text == [mark]
    assert "".join(pieces) + detokenizer.finish() == smol.backend.decode([mark, *hello, mark, *hello])


def test_spaces_between_words_survive_a_decoder_that_strips_the_first() -> None:
    """Metaspace tokenizers drop the space before the first word of what they decode, window by window."""
    vocabulary = {"<unk>": 0, "▁the": 1, "▁fox": 2, "▁": 3, "é": 4, "<|end|>": 5}
    fast = Fast(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    whole = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|end|>")  # type: ignore[no-untyped-call]
    tokenizer = Tokenizer(whole, {5})
    for ids in ([1, 2, 1, 2], [5, 1, 5, 2], [3, 4, 2, 3, 1]):
        assert "".join(pushed(tokenizer, ids)) == tokenizer.decode(ids)
    assert "".join(pushed(tokenizer, [1, 2, 1])) == "the fox the"


def test_a_text_costs_the_same_per_token_however_long_it_is(bytes_like: Tokenizer) -> None:
    detokenizer = Detokenizer(bytes_like)
    for number in ids_of(bytes_like, "the quick brown fox " * 50):
        detokenizer.push([number])
        assert len(detokenizer._ids) - detokenizer._start <= 3


def match(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """(what went out, whether it stopped)"""
    matcher, out = StopMatcher(stops), ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        out += text
        if stopped:
            return out, True
    return out + matcher.finish(), False


def test_nothing_of_a_stop_string_goes_out() -> None:
    pieces = ["The quick", " brown", " fox", " jumps"]
    assert match(["own fox"], pieces) == ("The quick br", True)
    assert match(["jumps"], pieces) == ("The quick brown fox ", True)


def test_what_could_become_a_stop_string_is_held_and_let_go_when_it_does_not() -> None:
    matcher = StopMatcher(["own fox"])
    assert matcher.push("brown") == ("br", False)
    assert matcher.push(" f") == ("", False)
    assert matcher.push("ig") == ("own fig", False)


def test_a_held_tail_goes_out_at_the_end() -> None:
    assert match(["END"], ["a", "E", "N"]) == ("aEN", False)


def test_a_text_that_is_the_stop_string_gives_nothing() -> None:
    assert match(["stop"], ["st", "op"]) == ("", True)


def test_without_stop_strings_everything_goes_out_at_once() -> None:
    assert StopMatcher([]).push("anything") == ("anything", False)


def test_an_overlapping_beginning_is_not_lost() -> None:
    assert match(["aab"], list("aaab")) == ("a", True)
    assert match(["abab"], list("abaabab")) == ("aba", True)


@pytest.mark.parametrize("stops", [["abc", "b"], ["b", "abc"], ["ab", "cd"], ["bcd", "c"], ["x"], ["dd", "cdd"]])
def test_the_result_does_not_depend_on_how_the_text_is_cut(stops: list[str]) -> None:
    text = "aabcdd"
    cuts = [list(cut) for size in range(6) for cut in itertools.combinations(range(1, 6), size)]
    results = {match(stops, [text[a:b] for a, b in itertools.pairwise([0, *cut, 6])]) for cut in cuts}
    assert len(results) == 1


def test_the_chat_prompt_is_what_the_template_gives(smol: Tokenizer) -> None:
    expected = smol._tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, tokenize=True)["input_ids"]
    assert smol.chat_prompt(HELLO) == expected
    assert smol.decode(smol.chat_prompt(HELLO)).endswith("assistant\n")


def test_the_demo_models_template_gives_what_transformers_does(smollm2: ModelFolder) -> None:
    smol, messages = Tokenizer.load(smollm2), [{"role": "system", "content": "Be brief."}, *HELLO]
    for asked in (HELLO, messages):
        expected = smol._tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=True)["input_ids"]
        assert smol.chat_prompt(asked) == expected
        assert smol.chat_prompt(asked)[0] == smol._tokenizer.convert_tokens_to_ids("<|im_start|>")


def test_a_template_that_writes_bos_gives_one(bytes_like: Tokenizer) -> None:
    assert bytes_like.chat_prompt(HELLO).count(0) == 1
    assert bytes_like.plain_prompt("hello")[0] == 0  # where the tokenizer itself puts one


def saved(folder: Path, chat_template: str | None) -> Path:
    make_tokenizer(chat_template).save_pretrained(folder)
    return folder


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(saved(tmp_path, None))
    with pytest.raises(ChatTemplateMissing, match=r"chat_template.jinja.*/v1/completions"):
        tokenizer.chat_prompt(HELLO)
    assert tokenizer.plain_prompt("hello")


def test_a_template_in_a_file_of_its_own_is_found(tmp_path: Path, bytes_like: Tokenizer) -> None:
    saved(tmp_path, None)
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    assert Tokenizer.load(tmp_path).chat_prompt(HELLO) == bytes_like.chat_prompt(HELLO)


def test_of_named_templates_the_default_is_taken(tmp_path: Path, bytes_like: Tokenizer) -> None:
    named = {"default": CHAT_TEMPLATE, "tool_use": "tools {{ messages }}"}
    config = json.loads((saved(tmp_path, None) / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": name, "template": template} for name, template in named.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).chat_prompt(HELLO) == bytes_like.chat_prompt(HELLO)
    assert with_template(named).chat_prompt(HELLO) == bytes_like.chat_prompt(HELLO)


def test_named_templates_without_a_default_are_none() -> None:
    with pytest.raises(ChatTemplateMissing):
        with_template({"tool_use": CHAT_TEMPLATE}).chat_prompt(HELLO)


def with_template(template: str | dict[str, str]) -> Tokenizer:
    fast = make_tokenizer()
    fast.chat_template = template
    return Tokenizer(fast, {2})


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{{ messages[0]['tool_calls'][3].name }}", "{% if %}"]
)
def test_a_template_that_refuses_the_messages_is_the_users_error(template: str) -> None:
    with pytest.raises(PromptError, match="chat template refuses"):
        with_template(template).chat_prompt(HELLO)


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b"])
def test_half_a_surrogate_pair_is_refused(text: str, smol: Tokenizer) -> None:
    with pytest.raises(PromptError):
        smol.plain_prompt(text)
    with pytest.raises(PromptError):
        smol.chat_prompt([{"role": "user", "content": text}])


@pytest.mark.parametrize("text", ["\x00", "\ufeffbom", "\u202eright to left", "", "\n" * 1_000_000])
def test_odd_text_is_tokenized(text: str, smol: Tokenizer) -> None:
    assert isinstance(smol.plain_prompt(text), list)


def test_end_of_text_ids_come_from_the_generation_config(tmp_path: Path, tiny_path: Path, smol: Tokenizer) -> None:
    folder = Path(shutil.copytree(tiny_path, tmp_path / "copy"))
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert Tokenizer.load(folder).eos_ids == {2, 7, 9}
    (folder / "generation_config.json").unlink()
    assert Tokenizer.load(folder).eos_ids == {2}
    assert smol.eos_ids == {2}


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        Tokenizer.load(tmp_path)
