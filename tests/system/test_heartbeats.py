from __future__ import annotations

import re

from bench import heartbeats
from tests.lab.site import Site


def test_many_heartbeats_while_people_look_on_lose_no_lease_on_sqlite(site: Site) -> None:
    said_before = len(site.log())
    nodes = heartbeats.join(site, num_nodes=50, num_sessions=10)
    seen = heartbeats.measure(site, nodes, seconds=3)
    assert (seen.errors, seen.lost) == ([], [])
    assert all(node.number for node in nodes)
    assert len(seen.pages_s) >= heartbeats.NUM_READERS
    assert not re.search("Traceback|database is locked", site.log()[said_before:])
