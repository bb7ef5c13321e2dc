"""Chats whose hops are lost, from the order to the last event, over real doors; tracker and layers are fakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from nodes import timings
from nodes.boundaries import Budget
from nodes.deadline import Deadline
from nodes.engine import EngineError
from nodes.events import Answer
from nodes.reroute import Loss, NextRoute, NotNow, NotOurs
from relay import headers as names
from relay import wire
from relay.headers import encode_route
from tests.nodes.meshes import Mesh, TestNode, Told, tell

PROMPT = "abcdefghij"
NUM_PROMPT, NUM_TOKENS = 11, 8  # BOS comes before it


class Tracker:
    """Answers reroutes with the spare instead of the tail, or with `error`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.asked: list[tuple[int, Loss]] = []
        self.has_asked = threading.Event()
        self.error: Exception | None = None

    def ask(
        self, session: str, epoch: int, loss: Loss, position: int, failed: Sequence[str], deadline: Deadline
    ) -> NextRoute:
        self.asked.append((epoch, loss))
        self.has_asked.set()
        if self.error:
            raise self.error
        head, _, spare = self._mesh.nodes
        hops = [(head.peer_id, *head.layers), (spare.peer_id, *spare.layers)]
        _, text = self._mesh.signer.sign(hops, session=session, epoch=epoch + 1)
        return NextRoute(epoch + 1, text, (spare.hop,))


class Chats:
    """A head, a tail and a spare one."""

    def __init__(self, kept_bytes: int = 1_000_000) -> None:
        self.mesh = Mesh([(0, 2), (2, 4), (2, 4)])
        self.tracker = Tracker(self.mesh)
        self.at_token: Callable[[int], None] = lambda number: None
        self._kept_bytes = kept_bytes

    def __enter__(self) -> Chats:
        self.mesh.__enter__()
        self.head, self.tail, self.spare = self.mesh.nodes
        self.tail.engine.next_token = self._tails_next_token
        assert self.head.api._head
        self.head.api._head = replace(
            self.head.api._head, rerouter=self.tracker, keeping=Budget(self._kept_bytes), max_drafts=0
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self.mesh.__exit__()

    def request(self, **changes: Any) -> wire.Request:
        hops = [(node.peer_id, *node.layers) for node in (self.head, self.tail)]
        body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
        route = encode_route([self.tail.hop])
        return self.mesh.request(body, "/v1/completions", hops=hops, **{"x_meshnet_route": route} | changes)

    def begin(self, **changes: Any) -> Answer:
        return self.mesh.begin(self.request(**changes))

    def tell(self, **changes: Any) -> Told:
        return tell(self.begin(**changes))

    def is_gone(self, node: TestNode) -> None:
        """The relay knows it no more."""
        assert self.mesh.relay
        self.mesh.relay.peers.pop(node.peer_id, None)

    def _tails_next_token(self, position: int, last_id: int) -> int:
        self.at_token(position - NUM_PROMPT)
        return last_id + 1


@pytest.fixture(params=[0, 1_000_000], ids=["tokens", "activations"])
def chats(request: pytest.FixtureRequest) -> Iterator[Chats]:
    with Chats(request.param) as made:
        yield made


def lose_tail(chats: Chats, at: int = 3) -> None:
    """Its layers fail before the answer's token of that number, from 0, and from then on nobody reaches it."""

    def lose(number: int) -> None:
        if number == at:
            chats.is_gone(chats.tail)
            raise EngineError("lost")

    chats.at_token = lose


def until_free(*nodes: TestNode) -> None:
    until = time.monotonic() + 20
    while any(node.engine.num_sessions or node.api.num_chats or node.api._num_releasing for node in nodes):
        assert time.monotonic() < until, [node.engine.num_sessions for node in nodes]
        time.sleep(0.005)


def test_a_chat_that_loses_its_tail_says_what_it_would_have_said(chats: Chats) -> None:
    undisturbed = chats.tell()
    lose_tail(chats)
    told = chats.tell()

    assert (told.text, told.ids, told.finish_reason) == (undisturbed.text, undisturbed.ids, "length")
    assert [event["meshnet"]["position"] for event in told.content] == [
        event["meshnet"]["position"] for event in undisturbed.content
    ]
    assert [hop["peer_id"] for hop in told.summary["hops"]] == [chats.head.peer_id, chats.spare.peer_id]
    [failover] = told.summary["failovers"]
    assert (failover["epoch"], failover["replayed_tokens"]) == (1, NUM_PROMPT + 2)
    [left] = told.summary["left"]
    assert (left["peer_id"], left["epoch"], left["tokens"]) == (chats.tail.peer_id, 0, NUM_PROMPT + 2)
    assert [hop["tokens"] for hop in told.summary["hops"]] == [NUM_PROMPT + NUM_TOKENS - 1] * 2
    assert "failovers" not in undisturbed.summary
    assert "left" not in undisturbed.summary
    assert told.error is None
    until_free(chats.head, chats.spare)


def test_those_who_look_on_hear_what_it_went_on_without(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "TELL_S", 0.0)
    lose_tail(chats)
    told = chats.tell()

    progress = told.content[-1]["meshnet"]["progress"]
    assert progress["failovers"] == told.summary["failovers"]
    assert [hop["peer_id"] for hop in progress["left"]] == [chats.tail.peer_id]
    assert {step["epoch"] for step in progress["steps"]} == {0, 1}


def test_a_node_that_is_gone_is_told_of_with_every_cause(chats: Chats) -> None:
    chats.is_gone(chats.tail)
    told = chats.tell()

    assert len(told.ids) == NUM_TOKENS
    [(epoch, loss)] = chats.tracker.asked
    assert (epoch, loss.peer_id, loss.code) == (0, chats.tail.peer_id, "node_failed")
    assert "tunnel: peer_gone" in loss.cause


def test_when_nobody_takes_over_in_the_sites_time_there_is_one_error_after_the_summary(chats: Chats) -> None:
    chats.tracker.error = NotNow("layers 2–3 have no node online", 0)
    lose_tail(chats)
    told = chats.tell(**{names.FAILOVER_WAIT_MS: 1500})

    assert told.error
    assert told.error["code"] == "node_failed"
    assert f"layers 2–3 on peer {chats.tail.peer_id[:8]}" in told.error["message"]
    assert "no other node could take over: layers 2–3 have no node online" in told.error["message"]
    assert told.is_done
    assert len(told.ids) == 3


def test_a_session_that_the_tracker_has_given_to_another_head_ends_and_frees_nothing_elsewhere(chats: Chats) -> None:
    chats.tracker.error = NotOurs("epoch 1 is the session's")

    def lose(number: int) -> None:
        if number == 3:
            raise EngineError("lost")

    chats.at_token = lose
    told = chats.tell()

    assert told.error
    assert told.error["code"] == "stale"
    until_free(chats.head)
    assert chats.tail.engine.num_sessions == 1


def test_who_leaves_while_there_is_no_other_node_isnt_waited_for(chats: Chats) -> None:
    chats.tracker.error = NotNow("nobody", 0)
    lose_tail(chats)
    answer = chats.begin()
    assert chats.tracker.has_asked.wait(10)
    answer.cancel()  # type: ignore[union-attr]

    until_free(chats.head)


def test_a_head_that_is_drained_while_it_waits_says_so(chats: Chats) -> None:
    chats.tracker.error = NotNow("nobody", 0)
    lose_tail(chats)
    answer = chats.begin()
    assert chats.tracker.has_asked.wait(10)
    chats.head.api.refuse_chats("this node is being drained")

    told = tell(answer)
    assert told.error
    assert told.error["code"] == "draining"


def test_a_chat_takes_another_route_when_the_tracker_wants_it_to(chats: Chats) -> None:
    undisturbed = chats.tell()
    sessions = iter(range(100))

    def move(number: int) -> None:
        if number == 3 and next(sessions) == 0:
            for session, _ in list(chats.head.api._chats):
                chats.head.api.move(session)

    chats.at_token = move
    told = chats.tell()

    assert told.ids == undisturbed.ids
    assert [loss.code for _, loss in chats.tracker.asked] == ["move"]
    assert told.summary["hops"][1]["peer_id"] == chats.spare.peer_id
    chats.mesh.wait_until_free()


def test_what_the_tracker_says_is_over_before_an_epoch_doesnt_end_the_chat_in_it(chats: Chats) -> None:
    closed: list[str] = []
    lose_tail(chats, at=2)

    def spare_token(position: int, last_id: int) -> int:
        if not closed:
            [(session, begun)] = list(chats.head.api._chats)
            closed.append(session)
            chats.head.api.close(session, begun)
        return last_id + 1

    chats.spare.engine.next_token = spare_token
    told = chats.tell()

    assert closed
    assert told.error is None
    assert len(told.ids) == NUM_TOKENS
    until_free(chats.head, chats.spare)


def test_a_chat_that_has_gone_on_is_closed_under_its_last_epoch(chats: Chats) -> None:
    lose_tail(chats)
    request = chats.request()
    told = tell(chats.mesh.begin(request))
    until_free(chats.head, chats.spare)
    again = chats.mesh.begin(request)

    assert len(told.ids) == NUM_TOKENS
    assert isinstance(again, wire.Response)
    assert again.status in (403, 409)
    closed = chats.spare.engine.sessions._closed[request.headers[names.SESSION]]
    assert closed[0] == 1
