"""Eight threads ask over one node's tunnel for a minute, by wss through nginx and a relay; every answer is checked.

A lost connection, a failed or a wrong answer is a fault, and the exit code says so. The figures are of a machine on
which asker, asked, nginx and relay share the cores.

    python -m bench.tunnel [--quick] [--json]
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
from pathlib import Path

from bench.report import finish, options
from nodes.sockets import tls_context
from tests.lab.askers import ask_for
from tests.lab.processes import free_port
from tests.lab.site import Site
from tests.lab.terminator import Terminator

NUM_ASKERS = 8


def main() -> None:
    chosen = options(__doc__)
    duration_s = 10.0 if chosen.quick else 60.0
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        site = Site(Path(folder) / "site", public_url=f"https://127.0.0.1:{port}", TRUSTED_PROXIES="127.0.0.1")
        with Terminator(Path(folder) / "tls", site.port, port) as terminator, site:
            outcome = ask_for(site, tls_context(str(terminator.ca_file)), NUM_ASKERS, duration_s)
    percentiles = statistics.quantiles(outcome.took_ms, n=100)
    print(f"Python {platform.python_version()}, {NUM_ASKERS} askers, {duration_s:.0f} s, one wss connection")
    for failure in sorted(set(outcome.failures)):
        print(f"{outcome.failures.count(failure)} x {failure}")
    figures = {
        "answers": float(len(outcome.took_ms)),
        "answers_per_s": round(len(outcome.took_ms) / duration_s, 1),
        "mib_per_s": round(outcome.num_bytes / duration_s / 2**20, 1),
        "p50_ms": round(percentiles[49], 2),
        "p99_ms": round(percentiles[98], 2),
        "wrong": float(outcome.num_wrong),
        "failed": float(len(outcome.failures)),
    }
    finish(figures, chosen.json)
    sys.exit(1 if outcome.num_wrong or outcome.failures else 0)


if __name__ == "__main__":
    main()
