"""The route and the ticket as they travel in headers, byte for byte."""

from __future__ import annotations

import pytest

from relay.headers import (
    Hop,
    Ticket,
    decode_route,
    decode_ticket,
    encode_route,
    encode_ticket,
    is_peer_id,
    is_session_id,
)
from relay.wire import Code, WireError

ROUTE = [
    Hop("abc123ff", 12, 18, "http://172.29.0.7:7002", "wss://relay/rpc/abc123ff"),
    Hop("def456aa", 18, 30, None, None, (1, 2)),
]
ROUTE_TEXT = (
    '[{"endpoint":"http://172.29.0.7:7002","start_layer":12,"end_layer":18,"peer_id":"abc123ff",'
    '"relay_addr":"wss://relay/rpc/abc123ff"},'
    '{"endpoint":null,"start_layer":18,"end_layer":30,"peer_id":"def456aa","wire":[1,2]}]'
)
TICKET = Ticket(
    "k1", "0a" * 16, 0, "ff", "aaaa", (("aaaa", 0, 12), ("bbbb", 12, 30)), "bfloat16", 16, -5, 1_800_000_000
)
PAYLOAD = (
    b'{"dtype":"bfloat16","epoch":0,"expires":1800000000,"fingerprint":"ff","head":"aaaa",'
    b'"hops":[["aaaa",0,12],["bbbb",12,30]],"kid":"k1","max_tokens":16,"seed":-5,'
    b'"session":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"}'
)


def test_a_route_is_these_bytes_both_ways() -> None:
    assert encode_route(ROUTE) == ROUTE_TEXT
    assert decode_route(ROUTE_TEXT) == ROUTE


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "7",
        "null",
        "[7]",
        '["a"]',
        "[{}]",
        '[{"start_layer":3,"end_layer":3,"peer_id":"a"}]',
        '[{"start_layer":-1,"end_layer":3,"peer_id":"a"}]',
        '[{"start_layer":true,"end_layer":3,"peer_id":"a"}]',
        '[{"start_layer":0,"end_layer":3,"peer_id":7}]',
        '[{"start_layer":0,"end_layer":3,"peer_id":"a","endpoint":7}]',
        '[{"start_layer":0,"end_layer":3,"peer_id":"a","wire":2}]',
        '[{"start_layer":0,"end_layer":3,"peer_id":"a","wire":["2"]}]',
        "[" * 100_000,
    ],
)
def test_a_route_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="x-meshnet-route") as caught:
        decode_route(text)
    assert caught.value.code is Code.BAD_REQUEST


def test_a_ticket_signs_these_bytes() -> None:
    assert TICKET.payload() == PAYLOAD


def test_a_ticket_survives_its_header() -> None:
    text = encode_ticket(TICKET.payload(), b"\xff" * 64)
    assert text.isascii()
    assert not set(text) & set("+/= \n")
    assert decode_ticket(text) == (TICKET, PAYLOAD, b"\xff" * 64)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"epoch":0', b'"epoch":"0"'),
        (b'"epoch":0', b'"epoch":true'),
        (b'"kid":"k1"', b'"kid":1'),
        (b'"kid":"k1",', b""),
        (b'"session":"0a', b'"session":"0A'),
        (b'["aaaa",0,12],["bbbb",12,30]', b""),
        (b'["bbbb",12,30]', b'["bbbb",12]'),
        (b'"expires":1800000000', b'"expires":1.5'),
        (b"{", b"["),
    ],
)
def test_a_ticket_with_a_wrong_field_is_refused(old: bytes, new: bytes) -> None:
    assert old in PAYLOAD
    with pytest.raises(WireError, match="x-meshnet-ticket") as caught:
        decode_ticket(encode_ticket(PAYLOAD.replace(old, new), b""))
    assert caught.value.code is Code.FORBIDDEN


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "....", "é.é", "7.7"])
def test_what_is_no_ticket_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="x-meshnet-ticket"):
        decode_ticket(text)


def test_ids_have_one_form() -> None:
    assert is_session_id("0a" * 16)
    assert not is_session_id("0A" * 16)
    assert not is_session_id("0a" * 16 + "\n")
    assert is_peer_id("abc123ff")
    assert not is_peer_id("tracker")
