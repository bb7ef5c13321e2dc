"""What the site costs a client of its API, against asking the head of the route itself.

One chat at a time, over a node that computes a tiny model: streams of one token and of many, through the site and from
the node's own door with tickets that are signed here, in turn. What a stream of one token takes longer through the site
is a request's cost, and what each further token adds beyond that is a token's. Then 64 streams at once on one process
of the site, whose heads the benchmark plays at an even pace: how even it comes out, what a stream takes in memory.

    python -m bench.api [--quick] [--json]
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

if not __package__:  # run as a file: this folder would be searched first
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.callers import Caller, Crowd, Listener, request_of
from bench.heads import MODEL, Heads
from bench.report import finish, median, options, spread, table
from bench.servers import allow_many_files, cpu_s, rss_kib
from relay import headers
from tests.lab.processes import free_port
from tests.lab.site import Site

NUM_LAYERS = 2
NUM_STREAMS, NUM_WARMING_UP, NUM_HEADS = 64, 8, 8
PAUSE_S = 0.1  # between two tokens of a stream
APART_S = 0.05  # between the beginnings of two


@dataclass(frozen=True)
class Pair:
    """The same stream from the head itself and through the site, one right after the other."""

    head_ms: float
    site_ms: float

    @property
    def more_ms(self) -> float:
        return self.site_ms - self.head_ms


@dataclass
class Cost:
    short: list[Pair] = field(default_factory=list)  # of one token
    long: list[Pair] = field(default_factory=list)
    num_tokens: int = 0  # of a long one
    site_cpu_s: float = 0.0  # of all the short ones, whatever else the machine has to do

    def per_request_ms(self) -> float:
        return median([pair.more_ms for pair in self.short])

    def per_token_ms(self) -> float:
        more = median([pair.more_ms for pair in self.long]) - self.per_request_ms()
        return more / (self.num_tokens - 1)


@dataclass
class Together:
    listeners: list[Listener]
    kib_per_stream: float
    site_cpu_s: float
    seconds: float  # in which it was used
    num_tokens: int  # that came meanwhile
    most_late_s: float  # of the heads' own

    @property
    def gaps_ms(self) -> list[float]:
        return [gap_s * 1000 for one in self.listeners for gap_s in one.gaps_s]


def main() -> None:
    chosen = options(__doc__)
    rounds, long_tokens, seconds = (9, 64, 6) if chosen.quick else (60, 128, 40)
    allow_many_files()
    key = Ed25519PrivateKey.generate()
    with tempfile.TemporaryDirectory() as folder, site_of(Path(folder), key) as site:
        cost = alone(site, Path(folder), key, rounds, long_tokens)
        crowd = together(site, seconds)
    print_tables(cost, crowd)
    gaps_ms = crowd.gaps_ms
    figures = {
        "overhead_ms_per_token": round(cost.per_token_ms(), 3),
        "overhead_ms_per_request": round(cost.per_request_ms(), 2),
        "max_gap_over_median": round(max(gaps_ms) / median(gaps_ms), 2),
        "rss_kib_per_stream": round(crowd.kib_per_stream, 1),
        "site_cpu_ms_per_token": round(crowd.site_cpu_s * 1000 / crowd.num_tokens, 3),
        "site_cpu_ms_per_request": round(cost.site_cpu_s * 1000 / rounds, 2),
    }
    finish(figures, chosen.json)


@contextlib.contextmanager
def site_of(folder: Path, key: Ed25519PrivateKey) -> Iterator[Site]:
    text = base64.b64encode(key.private_bytes_raw()).decode()
    with Site(folder / "mesh", TICKET_KEYS=text) as site:
        yield site


def alone(site: Site, folder: Path, key: Ed25519PrivateKey, rounds: int, long_tokens: int) -> Cost:
    """One chat at a time. The first round warms up."""
    from tests.nodes.models import make_tiny_llama, make_tokenizer  # here: who plays the heads has no need of torch

    model, port = make_tiny_llama(folder / "tiny", num_layers=NUM_LAYERS), free_port()
    cost, letter = Cost(num_tokens=long_tokens), str(make_tokenizer().convert_tokens_to_ids("e"))
    node = site.start_node("head", model, f"0:{NUM_LAYERS}", "--listen", f"127.0.0.1:{port}", "--drafts", "off")
    assert site.process
    with site.serving(model.name, [node]):
        tickets = Tickets(site, key)
        with contextlib.closing(Caller(site.port)) as of_site, contextlib.closing(Caller(port)) as of_head:
            for number in range(rounds + 1):
                for num_tokens, pairs in ((1, cost.short), (long_tokens, cost.long)):
                    body = {"model": "tiny", "prompt": "hello", "max_tokens": num_tokens, "temperature": 0}
                    body |= {"stream": True, "logit_bias": {letter: 100}}  # each token is text of its own
                    asked = tickets.headers(num_tokens)
                    head_s = of_head.stream_s(body | {"seed": 1, "top_p": 1, "stop": []}, asked)
                    before_s = cpu_s(site.process.pid)
                    pair = Pair(head_s * 1000, of_site.stream_s(body, site.headers) * 1000)
                    if number:
                        pairs.append(pair)
                        cost.site_cpu_s += cpu_s(site.process.pid) - before_s if num_tokens == 1 else 0.0
    return cost


class Tickets:
    """What the site signs and sends to a head, for chats that are asked without it."""

    def __init__(self, site: Site, key: Ed25519PrivateKey) -> None:
        self._key, self._peer_id = key, site.peer_id("head")
        self._kid = hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:8]
        [[self._fingerprint, self._dtype]] = site.rows(
            "SELECT fingerprint, wire_dtype FROM tracker_languagemodel WHERE name = 'tiny'"
        )

    def headers(self, num_tokens: int) -> dict[str, str]:
        session, expires = secrets.token_hex(16), int(time.time()) + 600
        hops = ((self._peer_id, 0, NUM_LAYERS),)
        named = self._kid, session, 0, self._fingerprint, self._peer_id, hops, self._dtype
        payload = headers.Ticket(*named, num_tokens, 1, expires).payload()
        return {
            headers.SESSION: session,
            headers.EPOCH: "0",
            headers.TICKET: headers.encode_ticket(payload, self._key.sign(payload)),
            headers.ROUTE: "[]",
            headers.PREFILL_CHUNK: "128",
            headers.DEADLINE_MS: "60000",
        }


def print_tables(cost: Cost, crowd: Together) -> None:
    rows = [
        [str(tokens), *(spread([getattr(pair, name) for pair in pairs]) for name in ("head_ms", "site_ms", "more_ms"))]
        for tokens, pairs in ((1, cost.short), (cost.num_tokens, cost.long))
    ]
    print(table(["tokens", "from the head, ms", "through the site, ms", "more, ms"], rows))
    gaps_ms = sorted(crowd.gaps_ms)
    of = {share: gaps_ms[int(len(gaps_ms) * share)] for share in (0.5, 0.99, 0.999)}
    gaps = [f"{of[share]:.1f}" for share in of] + [f"{gaps_ms[-1]:.1f}", f"{crowd.most_late_s * 1000:.1f}"]
    row = [str(len(crowd.listeners)), *gaps, f"{crowd.site_cpu_s / crowd.seconds:.2f}"]
    print(table(["streams", "gap, ms", "99 %", "99.9 %", "most", "a head late by", "busy"], [row]))


def together(site: Site, seconds: float) -> Together:
    assert site.process
    pid, num_tokens = site.process.pid, round(seconds / PAUSE_S)
    body = {"model": MODEL["name"], "messages": [{"role": "user", "content": "hello"}], "stream": True}
    noted: dict[str, float] = {}

    def at_full() -> None:
        noted["kib"], noted["cpu_s"], noted["at"] = rss_kib(pid), cpu_s(pid), time.perf_counter()

    with Heads(site, NUM_HEADS, PAUSE_S) as heads:

        def run(num_streams: int, num_tokens: int) -> list[Listener]:
            asked = request_of(site.port, "/v1/chat/completions", body | {"max_tokens": num_tokens}, site.headers)
            return Crowd(site.port, asked).run(num_streams, APART_S, at_full)

        run(NUM_WARMING_UP, 40)  # what the first of anything costs isn't a stream's
        before_kib = rss_kib(pid)
        heads.most_late_s()
        listeners = run(NUM_STREAMS, num_tokens)
        used_s, seconds = cpu_s(pid) - noted["cpu_s"], time.perf_counter() - noted["at"]
        num_tokens = sum(moment > noted["at"] for one in listeners for moment in one.times)
        kib = (noted["kib"] - before_kib) / NUM_STREAMS
        return Together(listeners, kib, used_s, seconds, num_tokens, heads.most_late_s())


if __name__ == "__main__":
    main()
