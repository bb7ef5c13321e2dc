"""T1 to T15: text in and out, at both endpoints, streamed and not, raw and with the official `openai` package.

A case is one line of the table: what is asked, and what must come back whichever way it is asked. The model says what
is written for it (tests/nodes/scripted.py), over two nodes that nobody can reach.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from transformers import AutoTokenizer

from tests.lab import rawhttp
from tests.lab.faultproxy import DOWN, FaultProxy
from tests.lab.processes import free_port
from tests.lab.site import Site
from tests.nodes.models import change
from tests.nodes.scripted import TEMPLATE, make_scripted_llama
from tests.system.asking import ALL, CHAT, COMPLETIONS, ENDPOINTS, RAW, Got, Way, text_of

MODEL = "scripted"
CONTEXT = 400
CHAT_TOKENS = 21  # of the template, around one message; every byte of its content is one more
PLAIN_TOKENS = 1

FAMILY = "👩‍👩‍👧‍👦 한국어 漢字 é"
FOX = "The quick brown fox jumps over the lazy dog"  # as tokens: The q|uick |brown| fox |jumps| over| the |lazy |dog
ALPHABET = "".join(f"{letter}{number} " for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz"))
TEXTS = {"U": FAMILY, "F": FOX, "A": ALPHABET}
DEFAULT_TOKENS = 16  # of /v1/completions

NAMED_TEMPLATES = [{"name": "other", "template": "nothing"}, {"name": "default", "template": TEMPLATE}]
LEAKS = ("Traceback", "Exception", "ValueError", "TypeError", "pydantic", "tracker.", "nodes.", "site-packages", ".py")

Body = dict[str, Any]


@dataclass(frozen=True)
class Says:
    text: str
    reason: str = "stop"
    tokens: int | None = None

    def check(self, got: Got) -> None:
        assert (got.status, got.error) == (200, {})
        assert (got.text, got.reason) == (self.text, self.reason)
        assert self.tokens in (None, got.usage["completion_tokens"])
        assert got.usage["total_tokens"] == got.usage["prompt_tokens"] + got.usage["completion_tokens"]
        assert "\ufffd" in self.text or not any("\ufffd" in delta for delta in got.deltas)


@dataclass(frozen=True)
class Refused:
    """`param`: with {prompt} for what the endpoint calls its prompt."""

    param: str
    code: str | None = None
    status: int = 400

    def check(self, got: Got) -> None:
        assert got.status == self.status, got
        assert (got.error["param"] or "").startswith(self.param), got.error
        assert got.error["type"] == "invalid_request_error"
        assert self.code in (None, got.error["code"]), got.error
        assert not any(leak in got.error["message"] for leak in LEAKS)


@dataclass(frozen=True)
class Case:
    name: str
    prompt: Any  # of the user, or all that stands in the prompt's place where it is no text
    expected: Says | Refused
    fields: Body = field(default_factory=dict)
    endpoints: tuple[str, ...] = ENDPOINTS
    ways: tuple[Way, ...] = ALL

    def body(self, path: str) -> Body:
        prompt = self.prompt
        if path == CHAT and isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        asked = {"messages" if path == CHAT else "prompt": prompt}
        return {"model": MODEL, "temperature": 0, **asked, **self.fields} if prompt is not MISSING else self._bare()

    def _bare(self) -> Body:
        return {"model": MODEL, "temperature": 0, **self.fields}


MISSING = object()


def stop(name: str, value: Any, expected: Says | Refused, prompt: str = "F", **fields: Any) -> Case:
    return Case(name, prompt, expected, {"stop": value, "max_tokens": 40} | fields)


def limit(name: str, expected: Says | Refused, prompt: str = "F", **fields: Any) -> Case:
    return Case(name, prompt, expected, fields)


def content(name: str, value: Any, expected: Says | Refused) -> Case:
    return Case(name, [{"role": "user", "content": value}], expected, endpoints=(CHAT,))


def chat(name: str, messages: Any, expected: Says | Refused) -> Case:
    return Case(name, messages, expected, endpoints=(CHAT,))


def plain(name: str, prompt: Any, expected: Says | Refused) -> Case:
    return Case(name, prompt, expected, endpoints=(COMPLETIONS,))


def filled(num_tokens: int, path: str, last: str = "F") -> str:
    """A prompt of exactly so many tokens."""
    around = CHAT_TOKENS if path == CHAT else PLAIN_TOKENS
    return "x" * (num_tokens - around - 1) + last


def lengths() -> Iterator[Case]:
    """T11, and T12 where there is room for six tokens only."""
    six = Says("a0 b1 c2 d3 e4 f5 g6 h7 i8 j9 "[:30], "length", 6)
    for path in ENDPOINTS:
        param = "messages" if path == CHAT else "prompt"
        beyond, one = Refused(param, "context_length_exceeded"), (path,)
        yield Case("T11 context-1", filled(CONTEXT - 1, path), Says("The q", "length", 1), endpoints=one)
        yield Case("T11 context", filled(CONTEXT, path), beyond, endpoints=one)
        yield Case("T11 context+1", filled(CONTEXT + 1, path), beyond, endpoints=one)
        yield Case("T11 10 contexts", filled(10 * CONTEXT, path), beyond, endpoints=one)
        full = filled(CONTEXT - 6, path, "A")
        for value in (10_000, 1e8, None):
            yield Case(f"T12 {value} is clamped", full, six, {"max_tokens": value}, endpoints=one)
        yield Case("T12 absent is clamped", full, six, endpoints=one)


FIVE_STOPS = ["a", "b", "c", "d", "e"]
PARTS = [{"type": "text", "text": "say "}, {"type": "text", "text": "F"}]
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]

CASES = [
    Case("T1 family", "U", Says(FAMILY), {"max_tokens": 40}),
    Case("T1 cut in a character", "U", Says("👩\ufffd", "length", 1), {"max_tokens": 1}),
    stop("T1 stop inside", "국어 漢", Says("👩‍👩‍👧‍👦 한"), "U"),
    stop("T2 over two tokens", "own fox", Says("The quick br")),
    stop("T2 over three tokens", "n fox j", Says("The quick brow")),
    stop("T2 inside one token", "uic", Says("The q")),
    stop("T2 the first to end wins", ["dog", "brown", "own"], Says("The quick ")),
    stop("T2 all of it", FOX, Says("")),
    stop("T2 held to the end", "dog!", Says(FOX)),
    stop("T2 held to the length", "n fox!", Says("The quick brown fox ", "length", 4), max_tokens=4),
    stop("T2 text after another tail", "brown cow", Says(FOX)),
    stop("T4 empty", "", Refused("stop")),
    stop("T4 [empty]", [""], Refused("stop")),
    stop("T4 []", [], Says(FOX)),
    stop("T4 null", None, Says(FOX)),
    stop("T4 four", [*FIVE_STOPS[:3], "dog"], Says("The qui")),
    stop("T4 five", FIVE_STOPS, Refused("stop")),
    stop("T4 integer", 7, Refused("stop")),
    stop("T4 [integer]", [7], Refused("stop")),
    stop("T4 object", {"a": 1}, Refused("stop")),
    Case("T6 lone surrogate", "\ud83dF", Refused(""), ways=RAW),
    Case("T6 NUL", "a\0bF", Says(FOX)),
    Case("T6 BOM", "\ufeffF", Says(FOX)),
    Case("T6 right to left", "\u202eabc\u202c\u200fF", Says(FOX)),
    Case("T6 every control character", "".join(map(chr, range(32))) + "\x7f\x85\u2028F", Says(FOX)),
    Case("T6 1 MB of newlines", "\n" * 1_000_000, Refused(""), ways=RAW),
    Case("T6 100 KB of newlines", "\n" * 100_000, Refused("", "context_length_exceeded"), ways=RAW),
    chat("T7 messages missing", MISSING, Refused("messages")),
    chat("T7 messages []", [], Refused("messages")),
    chat("T7 messages null", None, Refused("messages")),
    chat("T7 messages 7", 7, Refused("messages")),
    chat("T7 messages [7]", [7], Refused("messages[0]")),
    chat("T7 no role", [{"content": "F"}], Refused("messages[0].role")),
    chat("T7 no content", [{"role": "user"}], Refused("messages[0].content")),
    content("T7 content null", None, Refused("messages[0].content")),
    content("T7 content empty", "", Refused("messages[0].content")),
    content("T7 content 7", 7, Refused("messages[0].content")),
    content("T7 text parts are joined", PARTS, Says(FOX)),
    content("T7 no parts", [], Refused("messages[0].content")),
    content("T7 image", IMAGE, Refused("messages[0].content")),
    content("T7 text and image", PARTS + IMAGE, Refused("messages[0].content")),
    plain("T7 prompt missing", MISSING, Refused("prompt")),
    plain("T7 prompt []", [], Refused("prompt")),
    plain("T7 prompt null", None, Refused("prompt")),
    plain("T7 prompt 7", 7, Refused("prompt")),
    plain("T7 prompt empty", "", Refused("prompt")),
    plain("T7 prompt of token ids", [5, 6], Refused("prompt")),
    plain("T7 two prompts", ["F", "U"], Refused("prompt")),
    plain("T7 one prompt in a list", ["F"], Says(FOX)),
    limit("T12 0", Refused("max_tokens"), max_tokens=0),
    limit("T12 -1", Refused("max_tokens"), max_tokens=-1),
    limit("T12 text", Refused("max_tokens"), max_tokens="5"),
    limit("T12 1.5", Refused("max_tokens"), max_tokens=1.5),
    limit("T12 true", Refused("max_tokens"), max_tokens=True),
    limit("T12 1", Says("The q", "length", 1), max_tokens=1),
    limit("T12 2.0", Says("The quick ", "length", 2), max_tokens=2.0),
    Case("T12 max_completion_tokens", "F", Says("The q", "length", 1), {"max_completion_tokens": 1}, (CHAT,)),
    Case("T12 max_completion_tokens 0", "F", Refused("max_completion_tokens"), {"max_completion_tokens": 0}, (CHAT,)),
    Case("T12 both", "F", Refused("max_tokens"), {"max_tokens": 1, "max_completion_tokens": 1}, (CHAT,)),
    Case("T12 of chats only", "F", Refused("max_completion_tokens"), {"max_completion_tokens": 1}, (COMPLETIONS,)),
    Case("T12 absent in a completion", "A", Says(ALPHABET[:80], "length", 16), endpoints=(COMPLETIONS,)),
    *lengths(),
]
ASKED = [pytest.param(path, case, id=f"{path[4:]}: {case.name}") for case in CASES for path in case.endpoints]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scripted_llama(tmp_path_factory.mktemp("models") / MODEL, TEXTS, endless="A", context_length=CONTEXT)


@pytest.fixture(scope="module")
def tail() -> Iterator[FaultProxy]:
    """What the head asks of the tail comes past it."""
    with FaultProxy(("127.0.0.1", free_port())) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def mesh(site: Site, folder: Path, tail: FaultProxy) -> Iterator[Site]:
    """A head that nobody can reach, and a tail that it asks directly. All that they hold is free again at the end."""
    reach = ("--listen", "{}:{}".format(*tail.upstream_address), "--public-url", f"http://127.0.0.1:{tail.port}")
    nodes = [site.start_node(f"{MODEL}-0", folder, "0:2", "--drafts", "off")]
    nodes += [site.start_node(f"{MODEL}-1", folder, "2:4", "--no-relay", *reach)]
    with site.serving(MODEL, nodes):
        yield site
        tail_holds = requests.get(f"http://127.0.0.1:{tail.port}/health", timeout=20).json()
        for held in (tail_holds, site.health(f"{MODEL}-0", f"{MODEL}-1")):
            assert (held["sessions"], held["cached_tokens"], held["reserved_tokens"], held["chats"]) == (0, 0, 0, 0)


@pytest.mark.parametrize(("path", "case"), ASKED)
def test_each_case_is_the_same_whichever_way_it_is_asked(mesh: Site, path: str, case: Case) -> None:
    for way in case.ways:
        got = way(mesh, path, case.body(path))
        case.expected.check(got)


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("way", ALL)
def test_t5_each_parameter_acts_and_none_stays_for_the_next_request(mesh: Site, path: str, way: Way) -> None:
    def says(**fields: Any) -> str:
        return way(mesh, path, {**Case("T5", "A", Refused("")).body(path), "max_tokens": 6, **fields}).text

    greedy = ALPHABET[:30]
    hot = {"temperature": 2, "seed": 1}
    one, other = says(**hot), says(**hot | {"seed": 2})
    assert len({greedy, one, other}) == 3
    assert says(**hot) == one
    assert says() == greedy
    assert says(**hot, top_p=1e-6) == greedy
    assert says(**hot) == one
    assert says(stop="d3") == greedy[: greedy.index("d3")]
    assert says() == greedy


@pytest.fixture(scope="module")
def untemplated(site: Site, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three models on a node each: without a chat template, with one in a file of its own, with named ones."""
    folders = tmp_path_factory.mktemp("templates")
    in_config: dict[str, Body] = {"no-template": {}, "in-a-file": {}, "named": {"chat_template": NAMED_TEMPLATES}}
    for name, fields in in_config.items():
        shutil.copytree(folder, folders / name, ignore=shutil.ignore_patterns("chat_template.jinja"))
        change(folders / name / "tokenizer_config.json", **fields)
    (folders / "in-a-file" / "chat_template.jinja").write_text(TEMPLATE)
    nodes = [site.start_node(f"{MODEL}-{name}", folders / name, "0:4") for name in in_config]
    with site.serving("no-template", nodes):
        yield site


@pytest.mark.parametrize("way", ALL)
def test_t9_a_model_without_a_chat_template_refuses_chats_with_a_hint_and_completes(
    untemplated: Site, way: Way
) -> None:
    body = {"model": "no-template", "temperature": 0, "max_tokens": 40}
    refused = way(untemplated, CHAT, body | {"messages": [{"role": "user", "content": "F"}]})
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "chat_template_missing", "messages")
    assert "chat_template.jinja" in refused.error["message"]
    assert "/v1/completions" in refused.error["message"]
    assert way(untemplated, COMPLETIONS, body | {"prompt": "F"}).text == FOX


@pytest.mark.parametrize("model", ["in-a-file", "named"])
def test_t9_a_template_is_found_in_a_file_of_its_own_and_the_default_among_named_ones(
    untemplated: Site, model: str
) -> None:
    untemplated.wait_for_model(model)
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": "F"}]}
    assert [way(untemplated, CHAT, body).text for way in ALL] == [FOX] * len(ALL)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_t10_the_prompts_tokens_are_those_of_transformers(mesh: Site, folder: Path, path: str) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    body = Case("T10", "Grüße, F", Refused("")).body(path) | {"max_tokens": 1}
    if path == CHAT:
        ids = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=True)["input_ids"]
    else:
        ids = tokenizer(body["prompt"])["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert {way(mesh, path, body).usage["prompt_tokens"] for way in ALL} == {len(ids)}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_t14_a_stream_without_options_has_no_usage(mesh: Site, path: str) -> None:
    body = Case("T14", "F", Refused("")).body(path) | {"max_tokens": 40, "stream": True}
    with rawhttp.ask(mesh.local_url, path, body, mesh.headers) as answer:
        *events, last = [block for block in answer.blocks() if not block.startswith(":")]
    assert last == "data: [DONE]"
    assert not any("usage" in event for event in events)
    assert [json.loads(event[6:])["choices"][0]["finish_reason"] for event in events][-1] == "stop"


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_token_reaches_the_client_before_the_next_is_made(mesh: Site, tail: FaultProxy, path: str) -> None:
    """The tail's answers are held back, so that the head has no next token until the client has this one."""
    pieces = ["The q", "uick ", "brown", " fox ", "jumps"]
    held = [tail.hold("", lambda message: b"token_ids" in message, DOWN) for _ in range(len(pieces) + 1)]
    body = Case("", "F", Refused("")).body(path) | {"stream": True}
    with rawhttp.ask(mesh.local_url, path, body, mesh.headers) as answer:
        blocks = (block for block in answer.blocks() if not block.startswith(":"))
        for hold, piece in zip(held, pieces, strict=False):
            hold.wait(20)
            hold.release()
            assert text_of(json.loads(next(blocks)[6:])["choices"][0], "delta") == piece
        held[-1].wait(20)
        held[-1].release()
        tail.heal("")
        *_, done = blocks
        assert done == "data: [DONE]"


@pytest.mark.parametrize("path", ENDPOINTS)
def test_t15_a_long_answer_costs_the_same_streamed_or_not_and_each_token_as_much_as_the_one_before(
    mesh: Site, path: str
) -> None:
    """In what can be counted: the steps that its nodes worked, and the bytes of each event."""
    body = Case("T15", "A", Refused("")).body(path) | {"max_tokens": 300, "meshnet": {"trace": True}}
    with rawhttp.ask(mesh.local_url, path, body, mesh.headers) as answer:
        whole = answer.json()
    with rawhttp.ask(mesh.local_url, path, body | {"stream": True}, mesh.headers) as answer:
        blocks = [block for block in answer.blocks() if not block.startswith(":")]
    events = [json.loads(block[6:]) for block in blocks[:-1]]
    steps = [event for event in events if event["choices"]]
    assert len(steps) == whole["usage"]["completion_tokens"] == 300
    hops = next(event["meshnet"]["hops"] for event in events if "hops" in event["meshnet"])
    assert [hop["steps"] for hop in hops] == [hop["steps"] for hop in whole["meshnet"]["hops"]]
    sizes = [len(json.dumps(event)) for event in steps[1:-1]]
    assert max(sizes) - min(sizes) < 16, "an event grows with the answer"
