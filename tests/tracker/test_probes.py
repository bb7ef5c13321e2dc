"""Nodes are asked how they are: one that a head accused, and those whose time without sessions is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.utils import timezone

from relay import wire
from relay.wire import Code
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import FakeHead, PeerSocket, http_server, send
from tracker import probes
from tracker.breaker import State
from tracker.candidates import candidates_of
from tracker.heads import by_http
from tracker.models import Lease, Node
from tracker.probes import Prober, failure_of

Reply = Callable[[wire.Request], list[wire.Answer]]
pytestmark = pytest.mark.django_db


def well(request: wire.Request) -> list[wire.Answer]:
    return [wire.Response(request.request_id, 200, {}, b"{}")]


def broken(request: wire.Request) -> list[wire.Answer]:
    return [wire.error_response(request.request_id, Code.INTERNAL, "the engine has stopped")]


@async_to_sync
async def look(node: Node, reply: Reply, *, socket: bool = True) -> list[wire.Frame]:
    """A head has accused the node, whose socket answers so; what the node was asked."""
    peer, prober = PeerSocket(node.peer_id, "tiny"), Prober()
    peer.reply = reply
    try:
        prober.look_at(node)
        prober.look_at(node)
        if not socket:
            peer.leave()
        await prober.idle()
    finally:
        peer.leave()
    await node.arefresh_from_db()
    return peer.frames


@async_to_sync
async def wait_for_recovered(prober: Prober, *sockets: tuple[Node, Reply]) -> None:
    peers = [PeerSocket(node.peer_id, "tiny") for node, _ in sockets]
    for peer, (_, reply) in zip(peers, sockets, strict=True):
        peer.reply = reply
    prober.start()
    await prober.idle()
    for peer, (node, _) in zip(peers, sockets, strict=True):
        peer.leave()
        await node.arefresh_from_db()


def left_out(make_node: MakeNode, name: str, seconds: float) -> Node:
    until = timezone.now() + timedelta(seconds=seconds)
    return make_node(name, breaker_until=until, breaker_openings=1, breaker_reason="it said nothing")


def test_an_accused_node_that_answers_goes_on_working(make_node: MakeNode) -> None:
    node = make_node("a")
    [request] = look(node, well)
    assert isinstance(request, wire.Request)
    assert (request.method, request.path) == ("GET", "/health")
    assert node.breaker_until is None


def test_an_accused_node_that_fails_is_left_out_and_says_why(make_node: MakeNode) -> None:
    node = make_node("a")
    look(node, broken)
    assert node.breaker.state(timezone.now()) == State.OPEN
    assert node.breaker_reason == "asked how it is, the engine has stopped"


def test_a_node_whose_socket_is_gone_is_offline_and_welcome_when_it_is_back(make_node: MakeNode) -> None:
    node = make_node("a")
    look(node, broken, socket=False)
    assert node.breaker_until is None


def test_until_an_accused_node_has_answered_others_come_first(make_node: MakeNode) -> None:
    node, other = make_node("a"), make_node("b")

    @async_to_sync
    async def candidates() -> dict[str, bool]:
        """Whether each is on trial while the accused one keeps its answer back."""
        peers = [PeerSocket(one.peer_id, "tiny") for one in (node, other)]
        probes.prober.look_at(node)
        found = await sync_to_async(candidates_of)(node.model, timezone.now())
        for peer in peers:
            peer.leave()
        await probes.prober.idle()
        return {shard.peer_id: shard.is_on_trial for shard in found.shards}

    assert candidates() == {node.peer_id: True, other.peer_id: False}


def test_a_busy_relay_says_nothing_about_a_node(make_node: MakeNode) -> None:
    node = make_node("a")
    look(node, lambda request: [wire.error_response(request.request_id, Code.RATE_LIMITED, "slower")])
    assert node.breaker_until is None


def test_a_node_that_was_left_out_is_used_again_when_it_answers(make_node: MakeNode) -> None:
    over, later = left_out(make_node, "over", 0), left_out(make_node, "later", 9)
    wait_for_recovered(Prober(), (over, well), (later, well))
    assert over.breaker_until is None
    assert later.breaker_until is not None


def test_a_node_that_still_fails_is_left_out_for_longer(make_node: MakeNode) -> None:
    node = left_out(make_node, "a", 0)
    wait_for_recovered(Prober(), (node, broken))
    assert node.breaker_openings == 2
    assert node.breaker.state(timezone.now() + timedelta(seconds=15)) == State.OPEN


def test_one_process_at_a_time_asks(make_node: MakeNode) -> None:
    node = left_out(make_node, "a", 0)
    Lease.objects.create(name="probes", holder="another", until=timezone.now() + timedelta(seconds=60))
    wait_for_recovered(Prober(), (node, well))
    assert node.breaker_until is not None


@async_to_sync
async def failure(call: Any) -> str | None:
    return await failure_of(call, deadline_s=0.05)


def test_a_node_that_says_nothing_has_failed() -> None:
    async def silent(request: wire.Request) -> Any:
        await asyncio.Event().wait()
        yield

    assert failure(silent) == "it didn't answer within 0.05 s"


def test_a_node_that_hangs_up_has_failed() -> None:
    async def nothing(request: wire.Request) -> Any:
        return
        yield

    assert failure(nothing) == "it gave no answer"
    assert failure(FakeHead(status=204)) is None


def test_a_node_that_listens_is_asked_there(make_node: MakeNode) -> None:
    asked = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        send(handler, 200, b"{}")

    with http_server(answer) as url:
        assert async_to_sync(failure_of)(by_http(url)) is None
    assert asked == ["/health"]
    assert "can't be asked" in (async_to_sync(failure_of)(by_http(url)) or "")


def test_the_site_asks_more_often_than_nodes_are_left_out() -> None:
    assert probes.DEADLINE_S + probes.PERIOD_S < 10
