"""What both versions of the wire share: codes, and errors as answers."""

from __future__ import annotations

from relay import wire
from relay.wire import Code


def test_every_code_has_a_status_and_a_close_code_that_daphne_can_send() -> None:
    assert set(wire.STATUS) == set(Code)
    assert all(4000 <= wire.close_code(code) <= 4999 for code in Code)
    assert wire.close_code(Code.UNAUTHORIZED) == wire.CLOSE_CREDENTIAL == 4401
    assert wire.close_code(Code.CONFLICT) == wire.CLOSE_REPLACED == 4409
    assert wire.close_code(Code.UPGRADE) == wire.CLOSE_UPGRADE == 4406


def test_an_error_of_anyone_can_be_read() -> None:
    assert wire.error_of(502, b"<html>") == ("internal", "status 502: <html>")
    answer = wire.error_response("1", Code.PEER_BUSY, "later", {"retry-after": "1"})
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert wire.error_of(answer.status, answer.body) == ("peer_busy", "later")
