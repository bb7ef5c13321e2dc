"""All 65,536 bfloat16 patterns, NaN payloads among them, come through a hop as they went in: relayed and direct."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from nodes.activations import decode, encode
from nodes.api import NodeApi
from nodes.deadline import Deadline
from nodes.events import Answer
from nodes.hops import DirectHop, RelayHop
from nodes.hops import Path as HopPath
from nodes.server import NodeServer
from relay import wire
from tests.lab.ends import Envelope
from tests.lab.record import Peer
from tests.lab.site import Site
from tests.nodes.meshes import shared_tls
from tests.system.test_record import enrol

SHAPE = (1, 256, 256)
HEADERS = {"content-type": "application/octet-stream"}


def assert_bit_exact(hop: HopPath) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).reshape(SHAPE)
    for hidden in (patterns, patterns.transpose(1, 2), torch.empty(1, 0, 256, dtype=torch.bfloat16)):
        body = encode(hidden, "bfloat16")
        answer = hop.ask("POST", "/forward", HEADERS, body, Deadline.after(10))
        back = decode(answer.body, cast(tuple[int, int, int], tuple(hidden.shape)), "bfloat16")
        assert answer.status == 200
        assert len(body) == 2 * hidden.numel()
        assert torch.equal(back.view(torch.int16), hidden.contiguous().view(torch.int16))


def test_through_the_relay(site: Site, tiny: Path, alias: Callable[[Path, str], Path]) -> None:
    """From our caller's side through the real relay to a peer that sends back what it got."""
    folder = alias(tiny, "tiny-bits")
    with site.mesh(folder, ["0:7"]):
        peer_id, key, relay_url = enrol(site, folder, "echo")

        def echo(envelope: Envelope, body: bytes) -> tuple[int, dict[str, str], bytes | str]:
            return 200, HEADERS, body

        with Peer(relay_url, peer_id, key, echo):
            hop = RelayHop(f"{relay_url.removesuffix('/ws')}/rpc/{peer_id}", site.node_key("tiny-bits-0"), shared_tls())
            assert_bit_exact(hop)
            hop.close()


class EchoApi:
    """Stands where a node's API is, behind its HTTP door."""

    def begin(self, request: wire.Request, door: str) -> Future[Answer]:
        answered: Future[Answer] = Future()
        answered.set_result(wire.Response(request.request_id, 200, HEADERS, request.body))
        return answered


@pytest.fixture
def server() -> Any:
    opened = NodeServer("127.0.0.1", 0)
    host, port = opened.start()
    opened.api = cast(NodeApi, EchoApi())
    yield f"http://{host}:{port}"
    opened.stop(5)


def test_direct_over_http(server: str) -> None:
    hop = DirectHop(server, shared_tls())
    assert_bit_exact(hop)
    hop.close()
