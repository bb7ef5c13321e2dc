"""Whatever a body holds: an answer as the OpenAPI document has it, or an error of OpenAI's shape, and never a 500."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from relay import wire
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import HELLO, PeerSocket, done, sse, streams
from tests.tracker.test_openapi import validator
from tracker import parameters
from tracker.credentials import Credential
from tracker.errors import CODES
from tracker.models import Node

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = sse({"choices": [{"text": "upon", "finish_reason": "stop"}], "meshnet": {"ids": [1]}}, done(), "data: [DONE]")
ERROR = validator("Error")
SHAPES = {
    (CHAT, False): validator("ChatCompletion"),
    (CHAT, True): validator("ChatCompletionChunk"),
    (COMPLETIONS, False): validator("Completion"),
    (COMPLETIONS, True): validator("CompletionChunk"),
}
pytestmark = pytest.mark.django_db

# Half surrogate pairs, NUL and what else JSON can write.
ODD_TEXT = st.text(st.characters(), max_size=8) | st.sampled_from(["\ud83d", "a\0b", "\ufeffa", "text", "user", "auto"])
SCALAR = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | ODD_TEXT
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT, inner, max_size=3))


def _objects(*tables: parameters.Table) -> st.SearchStrategy[Any]:
    """With the names that these tables have."""
    names = st.sampled_from(sorted({name for table in tables for name in table})) | ODD_TEXT
    return st.dictionaries(names, VALUE, max_size=3)


INNER = _objects(parameters.MESHNET, parameters.STREAM_OPTIONS)
MESSAGES = st.lists(
    _objects(parameters.MESSAGE).map(lambda own: {"role": "user", "content": "Hi"} | own)
    | st.lists(_objects(parameters.PART), max_size=2).map(lambda parts: {"role": "user", "content": parts}),
    max_size=3,
)
# Close to a request that is answered: one or two fields of it are anything.
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
NEARLY = st.one_of(
    _objects(parameters.CHAT),
    st.fixed_dictionaries({"meshnet": INNER}),
    st.fixed_dictionaries({"stream": st.just(True), "stream_options": INNER}),
    st.fixed_dictionaries({"messages": MESSAGES}),
)
OF_CHATS = NEARLY.map(lambda own: ASKED | own)
OF_TEXTS = _objects(parameters.COMPLETION).map(lambda own: {"model": "tiny", "prompt": "Once"} | own)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


BODIES = st.one_of(
    st.tuples(st.just(CHAT), OF_CHATS.map(encoded)),
    st.tuples(st.just(COMPLETIONS), OF_TEXTS.map(encoded)),
    st.tuples(st.sampled_from([CHAT, COMPLETIONS]), VALUE.map(encoded) | st.binary(max_size=40)),
)


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node("only", lease_until=timezone.now() + timedelta(hours=1))


@async_to_sync
async def post(node: Node, key: Credential, path: str, body: bytes) -> tuple[int, str, bytes]:
    socket = PeerSocket(node.peer_id, "tiny")
    socket.reply = answer
    sent = {"Authorization": f"Bearer {key.text}"}
    try:
        response: Any = await AsyncClient().post(path, body, content_type="application/json", headers=sent)
        got = b"".join([part async for part in response]) if response.streaming else response.content
    finally:
        socket.leave()
    return response.status_code, response["Content-Type"], got


def answer(request: wire.Request) -> list[wire.Answer]:
    return streams(HELLO if request.path == CHAT else TEXT)(request)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(BODIES)
@example((CHAT, encoded(ASKED)))
@example((CHAT, encoded(ASKED | {"stream": True, "n": 2, "stream_options": {"include_usage": True}})))
@example((COMPLETIONS, encoded({"model": "tiny", "prompt": "Once", "stream": True})))
@example((CHAT, encoded(ASKED | {"model": "a\0b"})))
@example((CHAT, encoded(ASKED | {"stop": "\ud83d"})))
@example((CHAT, encoded(ASKED | {"tools": [{"type": "function", "function": {"name": "\ud83d"}}]})))
def test_no_body_is_answered_with_anything_but_the_documents_shapes(
    node: Node, api_key: Credential, asked: tuple[str, bytes]
) -> None:
    path, body = asked
    status, content_type, got = post(node, api_key, path, body)
    if status != 200:
        fields = json.loads(got)
        ERROR.validate(fields)
        code = fields["error"]["code"]
        assert CODES[code].status == status
        assert status < 500 or code == "deadline_exceeded"  # a tenth of a second may be asked for
        return
    is_streamed = content_type.startswith("text/event-stream")
    assert not is_streamed or got.endswith(b"data: [DONE]\n\n")
    events = [line[6:] for line in got.split(b"\n\n") if line.startswith(b"data: {")] if is_streamed else [got]
    for event in events:
        SHAPES[path, is_streamed].validate(json.loads(event))
