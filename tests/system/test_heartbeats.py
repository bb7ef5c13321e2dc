from __future__ import annotations

import re
from pathlib import Path

from bench import heartbeats


def test_many_heartbeats_while_people_look_on_lose_no_lease_on_sqlite(tmp_path: Path) -> None:
    with heartbeats.site_with_people(tmp_path) as site:
        nodes = heartbeats.join(site, num_nodes=50, num_sessions=10)
        seen = heartbeats.measure(site, nodes, seconds=3)
        log = site.log()
    assert (seen.errors, seen.lost) == ([], [])
    assert all(node.number for node in nodes)
    assert len(seen.pages_s) >= heartbeats.NUM_READERS
    assert not re.search("Traceback|database is locked", log)
