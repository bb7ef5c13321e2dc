"""What users see who bring the official `openai` package or a raw HTTP client to a model split over two nodes."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from transformers import AutoTokenizer

from tests.lab.site import Site, assemble, events

MODEL = "smollm-pair"


@pytest.fixture(scope="module")
def pair(site: Site, smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """SmolLM2 over two nodes that nobody can reach."""
    link = tmp_path_factory.mktemp("pair") / MODEL
    link.symlink_to(smollm, target_is_directory=True)
    with site.mesh(link, ["0:15", "15:30"], "--drafts", "off"):  # answers are compared bit for bit
        yield site


@pytest.fixture
def client(pair: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key=pair.api_key, max_retries=0, timeout=60) as made:
        yield made


def test_the_openai_client_streams_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert set(reasons[:-1]) == {None}
    assert reasons[-1] in ("stop", "length")
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 12
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_unstreamed_and_streamed_texts_are_the_same(client: openai.OpenAI, pair: Site) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Name three colours."}], temperature=0, max_tokens=20
    )
    assert whole.choices[0].message.content == pair.chat(MODEL, "Name three colours.", max_tokens=20).text
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0


def test_the_openai_client_gets_its_own_errors(client: openai.OpenAI, pair: Site) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody-has-it", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], n=5)
    assert refused.value.param == "n"
    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def test_a_prompt_beyond_the_context_is_refused_before_the_stream_opens(client: openai.OpenAI, pair: Site) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}], stream=True)
    assert refused.value.code == "context_length_exceeded"
    assert pair.chat(MODEL, "Still there?", max_tokens=3).ids


def test_each_step_reaches_the_client_as_an_event_of_its_own(pair: Site) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me about rivers."}], "max_tokens": 16}
    body |= {"stream": True, "temperature": 0, "meshnet": {"trace": True}}
    with pair.post("/v1/chat/completions", body, stream=True) as response:
        steps = [event["meshnet"]["ids"] for event in events(response) if event.get("meshnet", {}).get("ids")]
    assert [len(ids) for ids in steps] == [1] * 16


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_nothing_of_a_stop_string_reaches_the_client(pair: Site, endpoint: str, stream: bool) -> None:
    """The stop string is one that no token equals: it begins inside one token of the text and ends inside another."""
    prompt = "Once upon a time there was"
    asked = {"messages": [{"role": "user", "content": prompt}]} if "chat" in endpoint else {"prompt": prompt}
    free = pair.ask(endpoint, {"model": MODEL, "max_tokens": 24, **asked})
    cut = len("".join(free.deltas[:6]))
    stop = free.text[cut - 2 : cut + 3]
    assert len(stop) == 5
    assert stop not in free.deltas
    expected = free.text[: free.text.index(stop)]

    body = {"model": MODEL, "max_tokens": 24, "stop": [stop], "temperature": 0, "stream": stream, **asked}
    with pair.post(endpoint, body, stream=stream) as response:
        if stream:
            answer = assemble(events(response))
            text, reason = answer.text, answer.finish_reason
        else:
            choice = response.json()["choices"][0]
            text, reason = choice.get("text") or choice["message"]["content"], choice["finish_reason"]
    assert text == expected
    assert reason == "stop"


def test_penalties_biases_and_filters_act(pair: Site) -> None:
    def ids(**parameters: Any) -> list[int]:
        return pair.chat(MODEL, "Say a word.", max_tokens=4, **parameters).ids

    plain = ids()
    first = str(plain[0])
    assert plain[0] not in ids(logit_bias={first: -100})
    assert ids(logit_bias={first: 100}) == [plain[0]] * 4
    assert ids(logit_bias={first: 100}, frequency_penalty=2, presence_penalty=2) == [plain[0]] * 4
    hot = {"temperature": 2, "seed": 3}
    assert said(pair, hot) != said(pair, {"temperature": 0})
    for extras in ({"top_k": 1}, {"min_p": 1}):
        assert said(pair, hot | {"meshnet": extras}) == said(pair, {"temperature": 0})
    repelled = {"temperature": 0, "logit_bias": {first: 20}, "meshnet": {"repetition_penalty": 10}}
    assert said(pair, repelled) != said(pair, repelled | {"meshnet": {}})


def said(pair: Site, parameters: dict[str, Any]) -> str:
    answer = pair.post("/v1/chat/completions", asked(parameters | {"max_tokens": 4})).json()
    return str(answer["choices"][0]["message"]["content"])


def asked(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Say a word."}], **parameters}


def test_the_openai_client_gets_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = asked({"temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 3})
    whole = client.chat.completions.create(**fields).choices[0]
    streamed = [chunk.choices[0] for chunk in client.chat.completions.create(**fields, stream=True)]
    assert whole.logprobs
    assert whole.logprobs.content
    parts = [one for choice in streamed if choice.logprobs for one in choice.logprobs.content or []]
    assert parts == whole.logprobs.content
    assert b"".join(bytes(one.bytes or []) for one in parts).decode() == whole.message.content
    for one in parts:
        assert len(one.top_logprobs) == 3
        assert one.logprob == one.top_logprobs[0].logprob <= 0  # greedy: what came is the most probable
        assert one.token == one.top_logprobs[0].token
        assert [other.logprob for other in one.top_logprobs] == sorted(
            (o.logprob for o in one.top_logprobs), reverse=True
        )


def test_the_openai_client_gets_log_probabilities_of_a_completion(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}
    [choice] = client.completions.create(**fields, logprobs=2).choices
    told = choice.logprobs
    assert told
    assert told.tokens
    assert told.text_offset
    assert "".join(told.tokens) == choice.text
    assert [choice.text[start:].startswith(token) for start, token in zip(told.text_offset, told.tokens, strict=True)]
    assert [top[token] for top, token in zip(told.top_logprobs or [], told.tokens, strict=True)] == told.token_logprobs
    assert all(len(top) == 2 for top in told.top_logprobs or [])
    parts = [chunk.choices[0].logprobs for chunk in client.completions.create(**fields, logprobs=2, stream=True)]
    assert [offset for part in parts if part for offset in part.text_offset or []] == told.text_offset


def test_a_bias_of_a_token_that_the_model_has_not_is_refused_before_the_stream(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked({"stream": True, "logit_bias": {"49152": 1}}))
    assert refused.value.param == "logit_bias"


def test_the_longest_bias_that_may_be_asked_for_reaches_the_tail(pair: Site) -> None:
    """300 entries, their ids as long as they come, beside the ticket and the ids of a chunk."""
    biases = {str(49_000 - number): -99.999 for number in range(300)}
    assert pair.chat(MODEL, "word " * 150, max_tokens=2, logit_bias=biases).ids


def test_prompt_tokens_are_those_of_the_models_own_template(pair: Site, smollm: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    encoded: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    answer = pair.ask("/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 1})
    assert answer.usage["prompt_tokens"] == len(encoded["input_ids"])


def test_sequential_and_parallel_chats_do_not_mix(pair: Site) -> None:
    prompts = [f"Tell me about the number {number}." for number in range(5)]
    alone = [pair.chat(MODEL, prompt, max_tokens=8 + 3 * index).ids for index, prompt in enumerate(prompts)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        tasks = [
            pool.submit(pair.chat, MODEL, prompt, max_tokens=8 + 3 * index) for index, prompt in enumerate(prompts[:3])
        ]
        together = [task.result(60).ids for task in tasks]
    assert together == alone[:3]
