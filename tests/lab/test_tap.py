from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from relay import wire
from tests.lab.tap import Asked, Steps, Tap
from tests.nodes.meshes import Mesh, Told, tell
from tests.nodes.relays import MiniRelay, key_of

CUTS = [(0, 2), (2, 4), (4, 6)]
WAYS = ["tunnel", "relay", "direct"]
MIDDLE, TAIL = (f"{number:032x}" for number in (2, 3))


@contextmanager
def tapped(way: str) -> Iterator[tuple[Mesh, Steps, list[Tap]]]:
    """Nodes with fake engines that reach each other past taps: one before the relay, or one before each port."""
    steps = Steps()
    with ExitStack() as stack:
        if way == "direct":
            mesh = stack.enter_context(Mesh(CUTS, relayed=False, direct=True))
            taps = []
            for node in mesh.nodes:
                assert node.endpoint
                port = urlsplit(node.endpoint).port
                assert port
                taps.append(stack.enter_context(Tap(("127.0.0.1", port), steps, node.peer_id)))
                node.endpoint = f"http://127.0.0.1:{taps[-1].port}"
            yield mesh, steps, taps
            return
        relay = stack.enter_context(MiniRelay())
        port = urlsplit(relay.server.url).port
        assert port
        taps = [stack.enter_context(Tap(("127.0.0.1", port), steps))]
        relay.proxy_url = f"ws://127.0.0.1:{taps[0].port}"
        versions = [(1,) if way == "relay" else (1, 2)]
        yield stack.enter_context(Mesh(CUTS, relay=relay, wire_versions=versions)), steps, taps


def chat(mesh: Mesh) -> Told:
    told = mesh.chat()
    mesh.wait_until_free()
    return told


def on(asked: list[Asked], peer_id: str) -> list[int]:
    return [one.step for one in asked if one.peer_id == peer_id]


@pytest.mark.parametrize("way", WAYS)
def test_it_sees_every_step_at_every_hop_and_its_answer(way: str) -> None:
    with tapped(way) as (mesh, steps, _):
        told = chat(mesh)
    seen = steps.seen()
    assert told.paths == ["local", way, way]
    assert on(seen, MIDDLE) == on(seen, TAIL) != []
    assert all(asked.answer and asked.answer.status == 200 for asked in seen)
    assert len({asked.session for asked in seen}) == 1
    assert {(asked.epoch, asked.start_layer, asked.peer_id) for asked in seen} == {(0, 2, MIDDLE), (0, 4, TAIL)}


@pytest.mark.parametrize("way", WAYS)
def test_a_trigger_acts_once_before_the_request_arrives(way: str) -> None:
    with tapped(way) as (mesh, steps, _):
        middle = mesh.nodes[1]
        worked: list[int] = []
        trigger = steps.at(
            lambda asked: asked.peer_id == MIDDLE and asked.step >= 2,
            lambda asked: worked.append(len(middle.engine.steps)),
        )
        assert not trigger.has_come
        chat(mesh)
    assert trigger.wait().step == 2
    assert worked == [1]


@pytest.mark.parametrize("way", ["tunnel", "direct"])
def test_a_step_may_be_lost_in_a_black_hole_around_one_node(way: str) -> None:
    with tapped(way) as (mesh, steps, taps):
        prefix = "" if way == "direct" else f"{key_of(TAIL).split('.')[0]} /ws"
        trigger = steps.at(
            lambda asked: asked.peer_id == TAIL and asked.step == 2, lambda _: taps[-1].fail(prefix, "blackhole")
        )
        body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}
        answer = mesh.begin(mesh.request(body, x_meshnet_deadline_ms=1500))
        assert isinstance(answer, wire.Response) or tell(answer).error, "the chat ends with an error"
        assert not trigger.wait().is_answered
        assert on(steps.seen(), TAIL)[:2] == [1, 2]
        assert all(asked.is_answered for asked in steps.seen() if asked.peer_id == MIDDLE)
