"""Version 1 of the wire, byte for byte, in both directions."""

from __future__ import annotations

import base64
import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay import envelope, wire
from relay.wire import Cancel, Chunk, Code, End, Request, Response, WireError
from tests.relay.ends import response

BF16 = b"\x80\x3f\x00\xff"

MESSAGES = [
    pytest.param(
        Request("a1", "POST", "/forward", {"x-meshnet-start-layer": "12"}, BF16),
        '{"request_id":"a1","method":"POST","path":"/forward","headers":{"x-meshnet-start-layer":"12"},'
        '"body_base64":"gD8A/w=="}',
        envelope.decode_request,
        id="request, binary",
    ),
    pytest.param(
        Request("a1", "POST", "/v1/completions", {"content-type": "application/json"}, b'{"a":1}', "", 1500),
        '{"request_id":"a1","method":"POST","path":"/v1/completions","headers":{"content-type":"application/json"},'
        '"deadline_ms":1500,"body":"{\\"a\\":1}"}',
        envelope.decode_request,
        id="request, text, deadline",
    ),
    pytest.param(
        Request("a1", "GET", "/health"),
        '{"request_id":"a1","method":"GET","path":"/health","headers":{}}',
        envelope.decode_request,
        id="request, empty",
    ),
    pytest.param(
        Response("a1", 200, {"x-meshnet-shape": "1,1,2"}, BF16),
        '{"request_id":"a1","status":200,"headers":{"x-meshnet-shape":"1,1,2"},"body_base64":"gD8A/w=="}',
        envelope.decode_answer,
        id="answer, binary",
    ),
    pytest.param(
        Response("a1", 200, {"content-type": "application/json"}, '{"é":1}'.encode()),
        '{"request_id":"a1","status":200,"headers":{"content-type":"application/json"},"body":"{\\"\\u00e9\\":1}"}',
        envelope.decode_answer,
        id="answer, text",
    ),
    pytest.param(
        Response("a1", 200, {"content-type": "text/event-stream"}, stream=True),
        '{"request_id":"a1","status":200,"headers":{"content-type":"text/event-stream"},"stream":true}',
        envelope.decode_answer,
        id="answer, streamed",
    ),
    pytest.param(
        Chunk("a1", b"data: 1\n\n"),
        '{"request_id":"a1","chunk":"data: 1\\n\\n"}',
        envelope.decode_answer,
        id="chunk, text",
    ),
    pytest.param(Chunk("a1", b"\xff"), '{"request_id":"a1","chunk_base64":"/w=="}', envelope.decode_answer, id="chunk"),
    pytest.param(End("a1"), '{"request_id":"a1","end":true}', envelope.decode_answer, id="end"),
    pytest.param(
        Cancel("a1"), '{"request_id":"a1","type":"relay-http-cancel"}', envelope.decode_peer, id="cancel, to the peer"
    ),
]


@pytest.mark.parametrize(("frame", "text", "decode"), MESSAGES)
def test_a_frame_is_these_bytes_both_ways(frame: Any, text: str, decode: Any) -> None:
    assert envelope.encode(frame) == text
    assert decode(text) == frame


def test_a_request_to_a_peer_carries_its_type_and_who_asks() -> None:
    text = envelope.encode(Request("a1", "GET", "/health", sender="abc123", deadline_ms=7), to_peer=True)
    assert text == (
        '{"request_id":"a1","method":"GET","path":"/health","headers":{},"deadline_ms":7,'
        '"type":"relay-http-request","from":"abc123"}'
    )
    assert envelope.decode_peer(text) == Request("a1", "GET", "/health", sender="abc123", deadline_ms=7)


def test_it_reads_what_the_record_shows() -> None:
    text = """{"request_id": "0f", "method": "POST", "path": "/forward",
               "headers": {"X-Meshnet-Shape": "1,1,2", "X-Meshnet-Start-Layer": "12"}, "body_base64": "gD8A/w=="}"""
    headers = {"x-meshnet-shape": "1,1,2", "x-meshnet-start-layer": "12"}
    assert envelope.decode_request(text) == Request("0f", "POST", "/forward", headers, BF16)


def test_it_reads_an_answer_with_its_type_and_with_keys_nobody_knows() -> None:
    text = '{"type":"relay-http-response","request_id":"0f","status":204,"colour":"red"}'
    assert envelope.decode_answer(text) == Response("0f", 204)


def test_base64_counts_where_a_body_came_both_ways() -> None:
    assert (
        response(envelope.decode_answer('{"request_id":"1","status":200,"body":"x","body_base64":"eQ=="}')).body == b"y"
    )


@given(st.binary(max_size=200), st.sampled_from(["", "application/json", "text/plain", "application/octet-stream"]))
@example(b"\xef\xbb\xbf", "text/plain")
def test_any_body_of_any_type_survives(body: bytes, content_type: str) -> None:
    answer = Response("1", 200, {"content-type": content_type}, body)
    assert envelope.decode_answer(envelope.encode(answer)) == answer
    assert envelope.decode_answer(envelope.encode(Chunk("1", body))) == Chunk("1", body)


def test_large_text_that_json_would_blow_up_goes_as_base64_and_stays_below_the_message_limit() -> None:
    text = Response("1", 200, {"content-type": "text/plain"}, b"\0" * wire.MAX_BODY_BYTES)
    encoded = envelope.encode(text)
    assert '"body_base64":' in encoded
    assert len(encoded) < wire.MAX_MESSAGE_BYTES
    assert envelope.decode_answer(encoded) == text


def test_large_text_that_json_keeps_small_stays_text() -> None:
    assert '"body":"aaa' in envelope.encode(Response("1", 200, {"content-type": "text/plain"}, b"a" * 100_000))


@pytest.mark.parametrize(
    ("text", "code", "request_id", "words"),
    [
        ("nonsense", Code.BAD_REQUEST, "", "not JSON"),
        ("[" * 60_000, Code.BAD_REQUEST, "", "not JSON"),
        ('{"a":' + "9" * 5000 + "}", Code.BAD_REQUEST, "", "not JSON"),
        ("[]", Code.BAD_REQUEST, "", "not a JSON object"),
        ("{}", Code.BAD_REQUEST, "", "request_id"),
        ('{"request_id":7}', Code.BAD_REQUEST, "", "request_id"),
        ('{"request_id":"a b"}', Code.BAD_REQUEST, "", "request_id"),
        ('{"request_id":"' + "a" * 129 + '"}', Code.BAD_REQUEST, "", "request_id"),
        ('{"request_id":"1"}', Code.BAD_REQUEST, "1", "method and path"),
        ('{"request_id":"1","method":"GET","path":7}', Code.BAD_REQUEST, "1", "method and path"),
        ('{"request_id":"1","method":"GET","path":"/health","headers":[1]}', Code.BAD_REQUEST, "1", "headers"),
        ('{"request_id":"1","method":"GET","path":"/health","headers":{"a":1}}', Code.BAD_REQUEST, "1", "'a'"),
        ('{"request_id":"1","method":"GET","path":"/health","headers":{"a b":"1"}}', Code.BAD_REQUEST, "1", "'a b'"),
        (
            '{"request_id":"1","method":"GET","path":"/health","headers":{"a":"1\\r\\nb: 2"}}',
            Code.BAD_REQUEST,
            "1",
            "a",
        ),
        ('{"request_id":"1","method":"GET","path":"/health","headers":{"a\\n":"1"}}', Code.BAD_REQUEST, "1", "a"),
        ('{"request_id":"1","method":"GET","path":"/health","deadline_ms":0}', Code.BAD_REQUEST, "1", "deadline_ms"),
        ('{"request_id":"1","method":"GET","path":"/health","deadline_ms":true}', Code.BAD_REQUEST, "1", "deadline_ms"),
        ('{"request_id":"1","method":"GET","path":"/health","from":7}', Code.BAD_REQUEST, "1", "from"),
        ('{"request_id":"1","method":"GET","path":"/health","body_base64":"%%"}', Code.BAD_REQUEST, "1", "base64"),
        ('{"request_id":"1","method":"GET","path":"/health","body_base64":7}', Code.BAD_REQUEST, "1", "base64"),
        ('{"request_id":"1","method":"GET","path":"/health","body":{}}', Code.BAD_REQUEST, "1", "text"),
        ('{"request_id":"1","method":"GET","path":"/health","body":"\\ud83d"}', Code.BAD_REQUEST, "1", "text"),
    ],
)
def test_it_refuses_a_request_saying_what_is_wrong(text: str, code: Code, request_id: str, words: str) -> None:
    with pytest.raises(WireError, match=words) as caught:
        envelope.decode_request(text)
    assert (caught.value.code, caught.value.request_id) == (code, request_id)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"request_id":"1"}', "status, chunk"),
        ('{"request_id":"1","end":1}', "status, chunk"),
        ('{"request_id":"1","status":"200"}', "status"),
        ('{"request_id":"1","status":true}', "status"),
        ('{"request_id":"1","status":600}', "status"),
        ('{"request_id":"1","chunk":7}', "chunk"),
        ('{"request_id":"1","chunk_base64":"\\u00e9"}', "chunk"),
    ],
)
def test_it_refuses_an_answer_saying_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(WireError, match=words) as caught:
        envelope.decode_answer(text)
    assert (caught.value.code, caught.value.request_id) == (Code.BAD_REQUEST, "1")


@given(st.text() | st.recursive(st.none() | st.integers() | st.text() | st.booleans(), st.lists).map(json.dumps))
def test_any_text_is_a_frame_or_an_error(text: str) -> None:
    for decode in (envelope.decode_request, envelope.decode_answer, envelope.decode_peer, envelope.decode_register):
        with pytest.raises(WireError):
            decode(text)


FIELDS = st.sampled_from(
    [
        "request_id",
        "method",
        "path",
        "headers",
        "body",
        "body_base64",
        "status",
        "stream",
        "chunk",
        "end",
        "type",
        "from",
    ]
)
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    ["1", "GET", "/health", "", "relay-http-request", "register", "error", 200, True, None, {}, []]
)


@given(st.dictionaries(FIELDS, VALUES))
def test_any_object_of_known_keys_is_a_frame_or_an_error(message: Any) -> None:
    for decode in (envelope.decode_request, envelope.decode_answer, envelope.decode_peer, envelope.decode_register):
        with contextlib.suppress(WireError):
            decode(json.dumps(message))


@pytest.mark.parametrize(("num_bytes", "passes"), [(-1, True), (0, True), (1, False)])
@pytest.mark.parametrize("kind", ["body", "body_base64"])
def test_a_body_may_have_the_limit_and_no_byte_more(num_bytes: int, passes: bool, kind: str) -> None:
    data = b"x" * (wire.MAX_BODY_BYTES + num_bytes)
    value = base64.b64encode(data).decode() if kind == "body_base64" else data.decode()
    decode: Any
    request = json.dumps({"request_id": "1", "method": "POST", "path": "/forward", kind: value})
    answer = json.dumps({"request_id": "1", "status": 200, kind: value})
    for decode, text in ((envelope.decode_request, request), (envelope.decode_answer, answer)):
        if passes:
            assert decode(text).body == data
        else:
            with pytest.raises(WireError, match="the limit is 1048576") as caught:
                decode(text)
            assert (caught.value.code, caught.value.request_id) == (Code.TOO_LARGE, "1")


def test_headers_are_bounded_in_number_and_in_bytes() -> None:
    def request(headers: Any) -> str:
        return json.dumps({"request_id": "1", "method": "GET", "path": "/health", "headers": headers})

    assert len(envelope.decode_request(request({str(n): "v" for n in range(32)})).headers) == 32
    with pytest.raises(WireError, match="at most 32"):
        envelope.decode_request(request({str(n): "v" for n in range(33)}))
    with pytest.raises(WireError, match="exceed 8192") as caught:
        envelope.decode_request(request({"a": "v" * 8192}))
    assert caught.value.code is Code.TOO_LARGE


def test_an_error_of_the_socket_is_readable_as_an_envelope_and_as_the_records_frame() -> None:
    text = envelope.encode_error(Code.UNAUTHORIZED, "who?")
    assert text == (
        '{"type":"error","request_id":"","status":401,"message":"who?",'
        '"body":"{\\"error\\": {\\"code\\": \\"unauthorized\\", \\"message\\": \\"who?\\"}}"}'
    )
    answer = response(envelope.decode_answer(text))
    assert (answer.request_id, answer.status) == ("", 401)
    assert wire.error_of(answer.status, answer.body) == ("unauthorized", "who?")
    short = response(envelope.decode_answer('{"type":"error","status":409,"message":"replaced"}'))
    assert (short.request_id, short.status) == ("", 409)
    assert wire.error_of(short.status, short.body)[1] == "replaced"


def test_a_registration_is_these_bytes() -> None:
    assert envelope.decode_register('{"type":"register","peer_id":"abc"}') == "abc"
    assert envelope.encode_registered("abc", "wss://relay/rpc/abc") == (
        '{"type":"registered","peer_id":"abc","relay_addr":"wss://relay/rpc/abc","limits":{"max_body_bytes":1048576,'
        '"max_message_bytes":2861738,"max_headers":32,"max_meta_bytes":8192,"max_in_flight":64,'
        '"max_bytes_in_flight":8388608,"max_deadline_ms":600000}}'
    )
    for text in ('{"type":"register"}', '{"peer_id":"abc"}', '{"type":"register","peer_id":7}'):
        with pytest.raises(WireError, match="first message"):
            envelope.decode_register(text)


BRACKETS = "[" + "{}," * 900_000 + "{}]"
LONG = [
    pytest.param('{"request_id":"1","x":' + BRACKETS + "}", Code.BAD_REQUEST, id="brackets"),
    pytest.param('{"request_id":"1","x":[' + '"",' * 900_000 + '""]}', Code.BAD_REQUEST, id="strings"),
    pytest.param('{"x":"\\\\",' + '"y":' + BRACKETS + "}", Code.BAD_REQUEST, id="brackets beside an escape"),
    pytest.param(
        '{"request_id":"1","status":200,"body_base64":"' + "A" * 2_700_000 + '"}', Code.TOO_LARGE, id="base64"
    ),
]


@pytest.mark.parametrize(("text", "code"), LONG)
def test_a_long_message_costs_no_more_than_its_strings(text: str, code: Code) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as caught:
            envelope.decode_answer(text)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text)
    finally:
        tracemalloc.stop()
    assert caught.value.code is code


def test_a_long_text_may_hold_any_quotes_and_brackets() -> None:
    body = json.dumps([{"a": "\\"}] * 40_000).encode()
    answer = Response("1", 200, {"content-type": "application/json"}, body)
    assert wire.MAX_BODY_BYTES > len(body) > 400_000
    envelope_of_text = json.dumps({"request_id": "1", "status": 200, "headers": answer.headers, "body": body.decode()})
    assert envelope.decode_answer(envelope_of_text) == answer
