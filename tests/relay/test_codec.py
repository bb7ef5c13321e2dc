"""Version 2 of the wire, byte for byte, in both directions."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay import wire
from relay.codec import Addressed, decode_frame, encode_frame
from relay.wire import (
    Cancel,
    Chunk,
    Code,
    Drain,
    End,
    Error,
    Hello,
    Kind,
    Ping,
    Pong,
    Request,
    Response,
    Welcome,
    WireError,
)

BF16 = b"\x80\x3f\x00\xff"

MESSAGES = [
    (
        Request("a1", "POST", "/forward", {"x-a": "12"}, BF16, deadline_ms=1500),
        1,
        b'{"id":"a1","method":"POST","path":"/forward","headers":{"x-a":"12"},"deadline_ms":1500}',
        BF16,
    ),
    (Response("a1", 200, {"x-a": "1"}, BF16), 2, b'{"id":"a1","status":200,"headers":{"x-a":"1"}}', BF16),
    (Response("a1", 200, stream=True), 2, b'{"id":"a1","status":200,"headers":{},"stream":true}', b""),
    (Chunk("a1", BF16), 3, b'{"id":"a1"}', BF16),
    (Chunk("a1", b""), 3, b'{"id":"a1"}', b""),
    (End("a1"), 3, b'{"id":"a1","last":true}', b""),
    (Cancel("a1"), 4, b'{"id":"a1"}', b""),
    (Ping(7), 5, b'{"n":7}', b""),
    (Pong(7), 6, b'{"n":7}', b""),
    (Error("a1", Code.PEER_GONE, "é"), 7, b'{"id":"a1","code":"peer_gone","message":"\\u00e9"}', b""),
    (Error("", Code.UPGRADE, "no"), 7, b'{"id":"","code":"upgrade","message":"no"}', b""),
    (Hello("abc"), 8, b'{"peer_id":"abc"}', b""),
    (
        Welcome("abc", 3, {"max_headers": 32}, "wss://relay/rpc/abc"),
        9,
        b'{"peer_id":"abc","generation":3,"limits":{"max_headers":32},"relay_addr":"wss://relay/rpc/abc"}',
        b"",
    ),
    (Drain(1000, 5000), 10, b'{"reconnect_in_ms":1000,"spread_ms":5000}', b""),
]


def raw(kind: int, meta: Any, body: bytes = b"") -> bytes:
    """A frame by hand; `meta` may be bytes that are no JSON."""
    head = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    return bytes((2, kind, *divmod(len(head), 256))) + head + body


@pytest.mark.parametrize(("frame", "kind", "meta", "body"), MESSAGES)
def test_a_frame_is_these_bytes_both_ways(frame: Any, kind: int, meta: bytes, body: bytes) -> None:
    data = raw(kind, meta, body)
    assert encode_frame(frame) == data
    assert decode_frame(data) == Addressed(frame)


def test_a_frame_says_whom_it_is_for_and_whom_it_is_from() -> None:
    data = encode_frame(Response("a1", 204), to="abc", sender="def")
    assert data == raw(2, b'{"id":"a1","to":"abc","status":204,"headers":{},"from":"def"}')
    assert decode_frame(data) == Addressed(Response("a1", 204), "abc", "def")


def test_who_asks_stands_in_the_request() -> None:
    request = Request("a1", "GET", "/health", sender="abc")
    assert decode_frame(encode_frame(request)) == Addressed(request, "", "abc")


def test_header_names_are_read_without_case_and_unknown_keys_are_ignored() -> None:
    data = raw(1, {"id": "1", "method": "GET", "path": "/health", "headers": {"X-A": "b"}, "colour": "red"})
    assert decode_frame(data).frame == Request("1", "GET", "/health", {"x-a": "b"})


def test_a_code_of_a_later_version_is_an_internal_error() -> None:
    assert decode_frame(raw(7, {"id": "1", "code": "new", "message": "m"})).frame == Error("1", Code.INTERNAL, "m")


@pytest.mark.parametrize(
    ("data", "code", "request_id", "words"),
    [
        (b"", Code.UPGRADE, "", "no version"),
        (b"\x03\x01\x00\x02{}", Code.UPGRADE, "", "version 3 came; upgrade to version 2"),
        (b"{", Code.UPGRADE, "", "upgrade to version 2"),
        (b"\x02\x01", Code.BAD_REQUEST, "", "shorter"),
        (b"\x02\x01\x00\x09{}", Code.BAD_REQUEST, "", "shorter"),
        (b"\x02\x01\xff\xff" + b" " * 65535, Code.TOO_LARGE, "", "meta is 65535 bytes"),
        (raw(1, b"nonsense"), Code.BAD_REQUEST, "", "not JSON"),
        (raw(1, b"\xff\xfe"), Code.BAD_REQUEST, "", "not JSON"),
        (raw(1, b"[" * 10_000), Code.BAD_REQUEST, "", "not JSON"),
        (raw(1, []), Code.BAD_REQUEST, "", "not a JSON object"),
        (raw(1, {}), Code.BAD_REQUEST, "", "id must be"),
        (raw(4, {"id": ""}), Code.BAD_REQUEST, "", "id must be"),
        (raw(0, {}), Code.BAD_REQUEST, "", "unknown kind 0"),
        (raw(11, {"id": "1"}), Code.BAD_REQUEST, "", "unknown kind 11"),
        (raw(1, {"id": "1"}), Code.BAD_REQUEST, "1", "method and path"),
        (raw(1, {"id": "1", "to": "a b"}), Code.BAD_REQUEST, "1", "to must be a peer_id"),
        (raw(1, {"id": "1", "from": 7}), Code.BAD_REQUEST, "1", "from must be a peer_id"),
        (raw(2, {"id": "1"}), Code.BAD_REQUEST, "1", "status"),
        (raw(2, {"id": "1", "status": 200, "stream": True}, b"x"), Code.BAD_REQUEST, "1", "no body"),
        (raw(2, {"id": "1", "status": 200, "headers": {"a": "1\r\nb: 2"}}), Code.BAD_REQUEST, "1", "header 'a'"),
        (raw(3, {"id": "1", "last": True}, b"x"), Code.BAD_REQUEST, "1", "have no body"),
        (raw(4, {"id": "1"}, b"x"), Code.BAD_REQUEST, "1", "have no body"),
        (raw(5, {"n": 1}, b"x"), Code.BAD_REQUEST, "", "no body"),
        (raw(5, {"n": -1}), Code.BAD_REQUEST, "", "n must be"),
        (raw(5, {"n": True}), Code.BAD_REQUEST, "", "n must be"),
        (raw(6, {"n": 2**53}), Code.BAD_REQUEST, "", "n must be"),
        (raw(7, {"id": "1", "code": 7}), Code.BAD_REQUEST, "1", "code and message"),
        (raw(8, {}), Code.BAD_REQUEST, "", "peer_id must be"),
        (raw(9, {"peer_id": "a", "generation": 1}), Code.BAD_REQUEST, "", "a WELCOME has"),
        (raw(10, {"reconnect_in_ms": 1}), Code.BAD_REQUEST, "", "spread_ms must be"),
    ],
)
def test_it_refuses_a_frame_saying_what_is_wrong(data: bytes, code: Code, request_id: str, words: str) -> None:
    with pytest.raises(WireError, match=words) as caught:
        decode_frame(data)
    assert (caught.value.code, caught.value.request_id) == (code, request_id)


@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.RESPONSE, Kind.CHUNK])
def test_a_body_may_have_the_limit_and_no_byte_more(kind: Kind) -> None:
    meta = {"id": "1", "method": "POST", "path": "/forward", "status": 200}
    frame: Any = decode_frame(raw(kind, meta, b"x" * wire.MAX_BODY_BYTES)).frame
    assert len(frame.data if kind is Kind.CHUNK else frame.body) == wire.MAX_BODY_BYTES
    with pytest.raises(WireError, match="the limit is 1048576") as caught:
        decode_frame(raw(kind, meta, b"x" * (wire.MAX_BODY_BYTES + 1)))
    assert (caught.value.code, caught.value.request_id) == (Code.TOO_LARGE, "1")


def test_whatever_headers_version_1_takes_fit_into_a_frame() -> None:
    headers = {f"{number:064d}": '"' * (wire.MAX_META_BYTES // 32 - 65) for number in range(32)}
    request = Request("i" * 128, "POST", "/forward", headers, sender="s" * 128)
    assert decode_frame(encode_frame(request, to="t" * 128)) == Addressed(request, "t" * 128, "s" * 128)


def test_meta_that_no_frame_can_carry_is_refused_before_it_is_sent() -> None:
    with pytest.raises(WireError, match="meta is") as caught:
        encode_frame(Request("1", "POST", "/" * 100_000))
    assert (caught.value.code, caught.value.request_id) == (Code.TOO_LARGE, "1")


def test_a_long_message_of_an_error_is_cut() -> None:
    error = decode_frame(encode_frame(Error("1", Code.INTERNAL, "é" * 100_000))).frame
    assert error == Error("1", Code.INTERNAL, "é" * 500)


IDS = st.text("abcdefgh0123456789~!", min_size=1, max_size=128)
HEADERS = st.dictionaries(st.text("abc-xyz", min_size=1, max_size=20), st.text('az "\\\t~', max_size=50), max_size=32)
BODIES = st.binary(max_size=300)
NUMBERS = st.integers(0, 2**53 - 1)
FRAMES: st.SearchStrategy[Any] = st.one_of(
    st.builds(Request, IDS, st.text(max_size=9), st.text(max_size=50), HEADERS, BODIES, deadline_ms=NUMBERS.map(abs)),
    st.builds(Response, IDS, st.integers(100, 599), HEADERS, BODIES),
    st.builds(Response, IDS, st.integers(100, 599), HEADERS, stream=st.just(True)),
    st.builds(Chunk, IDS, BODIES),
    st.builds(End, IDS),
    st.builds(Cancel, IDS),
    st.builds(Error, IDS | st.just(""), st.sampled_from(Code), st.text(max_size=500)),
    st.builds(Ping, NUMBERS),
    st.builds(Pong, NUMBERS),
    st.builds(Hello, IDS),
    st.builds(Welcome, IDS, NUMBERS, st.dictionaries(st.text(max_size=9), st.integers()), st.text(max_size=50)),
    st.builds(Drain, NUMBERS, NUMBERS),
)


@given(FRAMES)
@example(Response("1", 200, {}, b'{"id":"2"}'))
def test_any_frame_survives(frame: Any) -> None:
    if isinstance(frame, Request) and not frame.deadline_ms:
        return
    assert decode_frame(encode_frame(frame)).frame == frame


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"\x02" + tail))
def test_any_bytes_are_a_frame_or_an_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_frame(data)


@given(FRAMES, st.data())
def test_a_frame_with_bytes_changed_is_a_frame_or_an_error(frame: Any, data: st.DataObject) -> None:
    """So that the fuzz gets past the first bytes."""
    damaged = bytearray(encode_frame(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for piece in (bytes(damaged), bytes(damaged[:cut])):
        with contextlib.suppress(WireError):
            decode_frame(piece)


ABOUT_REQUESTS = ["id", "to", "from", "method", "path", "headers", "deadline_ms", "status", "stream", "last"]
KEYS = st.sampled_from([*ABOUT_REQUESTS, "n", "code", "message", "peer_id", "generation", "limits", "relay_addr"])
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    ["1", "GET", "/health", "", "\ud83d", 200, -1, 10**30, 0.5, True, None, {}, {"a": "b"}, {"a": 1}, [], [[]]]
)


@given(st.integers(0, 12), st.dictionaries(KEYS, VALUES), st.binary(max_size=3))
def test_any_object_of_known_keys_is_a_frame_or_an_error(kind: int, meta: Any, body: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_frame(raw(kind, meta, body))


@pytest.mark.parametrize(
    "data",
    [
        raw(1, {"id": "1", "method": "POST", "path": "/forward"}, b"x" * (4 * wire.MAX_BODY_BYTES)),
        raw(5, {"n": 1}, b"x" * (4 * wire.MAX_BODY_BYTES)),
        b"\x02\x01\xff\xff" + b"[" * (4 * wire.MAX_BODY_BYTES),
    ],
    ids=["request", "ping", "meta"],
)
def test_what_is_over_a_limit_costs_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_frame(data)
        assert tracemalloc.get_traced_memory()[1] < 256 * wire.KIB
    finally:
        tracemalloc.stop()
