from __future__ import annotations

from django.conf import settings

from relay import report
from relay.hub import hub
from tests.relay.test_review import Socket


async def test_each_registered_peer_is_a_row_and_callers_are_none() -> None:
    peer, caller = Socket("aa11"), Socket("bb22")
    hub.register(peer.link)
    peer.link.bytes_in, peer.link.replaced = 7, 2
    [row] = report.rows()
    assert (row.peer_id, row.scope, row.process, row.num_in_flight) == ("aa11", "tiny", settings.RELAY_URL, 0)
    assert row.since == peer.link.since
    assert (row.bytes_in, row.num_replaced, row.rtt_s) == (7, 2, None)
    for socket in (peer, caller):
        hub.detach(socket.link)
    assert report.rows() == []
