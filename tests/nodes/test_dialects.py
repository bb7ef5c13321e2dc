from __future__ import annotations

import json

import pytest

from nodes.dialects import FrameDialect, TextDialect, refused
from nodes.framing import Outgoing
from relay import codec, envelope
from relay.wire import Cancel, Code, Error, Ping, Request, Response, WireError
from tests.nodes.websockets import BINARY, PING, TEXT


def test_version_1_writes_text_and_asks_with_the_websockets_own_ping() -> None:
    answer = Response("r1", 200, {"content-type": "application/json"}, b'{"token_ids":[1]}')

    assert TextDialect().encode(answer) == Outgoing(envelope.encode(answer), TEXT)
    assert TextDialect().encode(Ping(7)) == Outgoing(b"7", PING)


def test_version_2_writes_binary_frames() -> None:
    for frame in (Response("r1", 200, {}, b"\x00\xff"), Ping(7)):
        assert FrameDialect().encode(frame) == Outgoing(codec.encode_frame(frame), BINARY)


def test_both_read_what_the_relay_says() -> None:
    request = Request("r1", "POST", "/forward", {"a": "1"}, b"\x00\xff", "tracker")

    assert TextDialect().read(envelope.encode(request, to_peer=True)) == request
    assert FrameDialect().read(codec.encode_frame(request)) == request
    assert TextDialect().read(envelope.encode(Cancel("r1"))) == Cancel("r1")
    assert FrameDialect().read(codec.encode_frame(Cancel("r1"))) == Cancel("r1")


def test_both_read_what_it_says_of_the_socket_as_the_same_error() -> None:
    error = Error("", Code.CONFLICT, "replaced")

    assert TextDialect().read(envelope.encode_error(Code.CONFLICT, "replaced")) == error
    assert FrameDialect().read(codec.encode_frame(error)) == error


def test_an_error_without_an_envelope_has_the_status_that_it_names() -> None:
    found = TextDialect().read(json.dumps({"type": "error", "status": 409, "message": "replaced"}))

    assert isinstance(found, Error)
    assert refused(found).status == 409


@pytest.mark.parametrize("message", ["", "[]", "not json", b"\xff", '{"type":"something-new"}', '{"request_id":"r1"}'])
def test_what_version_1_cant_read_is_a_wire_error(message: str | bytes) -> None:
    with pytest.raises(WireError):
        TextDialect().read(message)


@pytest.mark.parametrize("message", ["text", b"", b"\x01\x01\x00\x00", b"\x02\x63\x00\x02{}"])
def test_what_version_2_cant_read_is_a_wire_error(message: str | bytes) -> None:
    with pytest.raises(WireError):
        FrameDialect().read(message)


def test_a_refusal_says_why_and_with_which_status() -> None:
    failed = refused(Error("", Code.UPGRADE, "speak version 3"))

    assert (failed.cause, failed.status) == ("the relay refuses: speak version 3", 426)
