"""A step's frame stays behind on the tunnel, the step is worked on the other path, and then the frame arrives.

Real layers on both nodes. Every step is as a draft's: several tokens of which the next step crops all but the first, so
that a late copy which were worked would leave its tokens in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nodes.deadline import Deadline
from nodes.downstream import DownstreamHop
from nodes.forwarding import Session
from nodes.pipeline import Pipeline
from nodes.sampling import Sampling
from relay import headers as names
from relay.headers import Hop
from relay.wire import Code, Response, error_of
from tests.lab.faultproxy import UP, FaultProxy
from tests.nodes.relays import MiniRelay
from tests.nodes.sites import Site, node_options
from tests.nodes.test_node import Running

NUM_STEPS = 14
HELD_STEP = 4
PROMPT = list(range(3, 19))
DRAFT = [40, 41]  # what follows the last token in each step, and is cropped by the next


@dataclass
class Two:
    """Two nodes of one model whose relay is behind a proxy."""

    site: Site
    proxy: FaultProxy
    head: Running

    def pipeline(self, patience_s: float = 30.0) -> Pipeline:
        first, second = self.site.peer_id(1), self.site.peer_id(2)
        fingerprint = self.site.tracker.asked[0][2]["model"]["fingerprint"]
        ticket, text = self.site.signer.sign([(first, 0, 3), (second, 3, 6)], fingerprint=fingerprint, dtype="float32")
        serving = self.head.node.serving
        assert serving
        assert serving._engine
        assert serving._api
        assert serving._api._head
        hop = Hop(second, 3, 6, None, self.site.relay.address(second), (1, 2))
        session = Session(ticket.session, 0, text, "float32", 64, Deadline.after(30))
        hops = [DownstreamHop(hop, replace(serving._api._head.dialler, patience_s=patience_s))]
        return Pipeline(session, serving._engine, (0, 3), first, hops)


@pytest.fixture(scope="module")
def two(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with MiniRelay() as relay, FaultProxy(("127.0.0.1", relay.server.port)) as proxy:
        relay.proxy_url = f"ws://127.0.0.1:{proxy.port}"
        site, folder = Site(relay), tmp_path_factory.mktemp("late")
        with site.tracker:
            options = node_options(tiny_path, tracker_url=site.tracker.url, state_folder=folder / "1")
            head = Running(options)
            tail = Running(
                node_options(
                    tiny_path,
                    tracker_url=site.tracker.url,
                    name="2",
                    state_folder=folder / "2",
                    start_layer=3,
                    end_layer=6,
                )
            )
            for _ in range(2):
                assert relay.registered.acquire(timeout=60)
            assert head.node.serving
            assert head.node.serving.bridge
            assert head.node.serving.bridge.connected.wait(5)
            yield Two(site, proxy, head)
            head.stop()
            tail.stop()


def generate(pipeline: Pipeline, after: Callable[[int], None] = lambda number: None) -> list[int]:
    """What the tail samples at each step; `after` is called with the number of each that is done."""
    greedy = Sampling(0.0, 1.0, 7)
    ids = [one.token_id for one in pipeline.forward(PROMPT, 0, greedy)]
    after(1)
    for number in range(2, NUM_STEPS + 1):
        tokens, position = [ids[-1], *DRAFT], len(PROMPT) + number - 2
        ids += [one.token_id for one in pipeline.forward(tokens, position, greedy)]
        after(number)
    pipeline.release()
    return ids


def is_step(message: bytes) -> bool:
    return b"/forward" in message and b'"%s":"%d"' % (names.STEP.encode(), HELD_STEP) in message


def num_asked(relay: MiniRelay) -> int:
    return sum(request.headers.get(names.STEP) == str(HELD_STEP) for request in relay.asked)


@pytest.mark.parametrize(("steps_later", "status"), [(0, 200), (5, 409)])
def test_a_late_copy_of_a_step_changes_nothing(
    two: Two, steps_later: int, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = generate(two.pipeline())
    relay, proxy = two.site.relay, two.proxy
    before = num_asked(relay)
    held = proxy.hold("/ws", is_step, UP)
    late: list[Response] = []

    def deliver(number: int) -> None:
        if number == HELD_STEP + steps_later:
            held.wait()
            num_answered = len(relay.answered)
            assert held.release()
            late.append(answer_after(relay, num_answered))

    pipeline = two.pipeline(patience_s=0.3)
    disturbed = generate(pipeline, deliver)
    proxy.heal("/ws")

    assert disturbed == undisturbed
    assert len(set(disturbed)) > 3, "a model that always says the same would hide a fault"
    assert num_asked(relay) == before + 2
    assert pipeline.hops[0].statistics.path == "relay"
    assert "no answer through the tunnel in time; trying the relay" in caplog.text
    assert late[0].status == status
    assert status == 200 or error_of(status, late[0].body)[0] == Code.STALE


def answer_after(relay: MiniRelay, num_answered: int) -> Response:
    """The tail's next answer."""
    until = time.monotonic() + 5
    while len(relay.answered) == num_answered:
        assert time.monotonic() < until
        time.sleep(0.002)
    answer = relay.answered[num_answered]
    assert isinstance(answer, Response)
    return answer
