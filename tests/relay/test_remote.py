"""Ends of other processes in the switchboard; the bus is a list, and what it refuses."""

from __future__ import annotations

from typing import Any, cast

import pytest

from relay import codec, wire
from relay.bus import Bus
from relay.directory import Directory, Entry, Snapshot
from relay.hub import Edge, Hub
from relay.links import Link
from relay.remote import Remotes, framed, unframed
from relay.wire import Cancel, Chunk, Code, End, Error, Request, Response

ASKED = Request("1", "POST", "/forward", {"x-a": "1"}, b"ask")


class Road:
    """Where the bus would be: what was sent, decoded; `room` and `most`, of an item, are the test's to change."""

    process = "here"

    def __init__(self) -> None:
        self.is_up, self.room, self.most = True, 10_000_000, 10_000_000
        self.sent: list[tuple[str, str, codec.Addressed]] = []  # to which process, the caller's scope, the frame

    def has_room(self, process: str, num_bytes: int) -> bool:
        return self.is_up and num_bytes <= self.room

    def send(self, process: str, item: bytes) -> bool:
        if len(item) > self.most:
            return False
        scope, data = unframed(item)
        self.sent.append((process, scope, codec.decode_frame(data)))
        return True

    def last(self) -> Any:
        return self.sent[-1][2].frame


class Socket:
    """A local end: what it was told."""

    def __init__(self, hub: Hub, peer_id: str, scope: str = "m") -> None:
        self.frames: list[wire.Frame] = []
        self._hub = hub
        self.link: Link[Edge] = hub.attach(peer_id, scope, self)

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        self.frames.append(frame)

    def close(self, code: Code, message: str) -> None:
        self._hub.detach(self.link)

    def error(self) -> Code:
        [frame] = self.frames
        assert isinstance(frame, Error)
        return frame.code


@pytest.fixture
async def hub() -> Hub:
    return Hub()


@pytest.fixture
def road() -> Road:
    return Road()


@pytest.fixture
def directory() -> Directory:
    """Peer b lives at process p, peer c at q."""
    directory = Directory()
    peers = {"b": Entry("p", 1, "m", 1.0, 2, ""), "c": Entry("q", 2, "m", 1.0, 2, "")}
    directory.take(Snapshot(2, {"here": "", "p": "ws://p", "q": "ws://q"}, peers, {}))
    return directory


@pytest.fixture
def remotes(hub: Hub, directory: Directory, road: Road) -> Remotes:
    remotes = Remotes(hub, directory)
    remotes.bus = cast("Bus", road)
    hub.remote = remotes.find
    return remotes


def asked_abroad(road: Road) -> str:
    """The id under which the last request crossed."""
    frame = road.last()
    assert isinstance(frame, Request)
    return frame.request_id


async def test_a_frame_comes_back_from_its_item_with_its_callers_scope() -> None:
    assert unframed(framed("", b"\x02x")) == ("", b"\x02x")
    assert unframed(framed("modèle", b"")) == ("modèle", b"")


async def test_a_request_to_another_process_peer_crosses_with_who_asks_and_his_scope(
    hub: Hub, remotes: Remotes, road: Road
) -> None:
    a = Socket(hub, "a")
    hub.request(a.link, "b", ASKED)
    [(process, scope, (frame, to, sender))] = road.sent
    assert (process, scope, to, sender) == ("p", "m", "b", "a")
    assert isinstance(frame, Request)
    assert (frame.body, frame.headers) == (b"ask", {"x-a": "1"})
    answer = Response(frame.request_id, 200, body=b"out")
    remotes.hear("p", framed("", codec.encode_frame(answer, sender="b")))
    assert a.frames == [Response("1", 200, body=b"out")]


async def test_an_answer_of_a_process_that_was_not_asked_is_dropped(hub: Hub, remotes: Remotes, road: Road) -> None:
    a = Socket(hub, "a")
    hub.request(a.link, "b", ASKED)
    remotes.hear("q", framed("", codec.encode_frame(Response(asked_abroad(road), 200))))
    remotes.hear("p", framed("", codec.encode_frame(Response("unheard-of", 200))))
    assert a.frames == []


async def test_an_error_of_the_other_process_is_the_outcome_and_nothing_is_cancelled(
    hub: Hub, remotes: Remotes, road: Road
) -> None:
    a = Socket(hub, "a")
    hub.request(a.link, "b", ASKED)
    remotes.hear("p", framed("", codec.encode_frame(Error(asked_abroad(road), Code.PEER_BUSY, "wait"))))
    assert a.error() is Code.PEER_BUSY
    assert len(road.sent) == 1


async def test_without_room_on_the_way_the_request_is_refused_at_once(hub: Hub, remotes: Remotes, road: Road) -> None:
    a = Socket(hub, "a")
    road.room = 10
    hub.request(a.link, "b", ASKED)
    assert a.error() is Code.BUSY
    assert not hub.switchboard.flights


async def test_while_nobody_can_be_reached_the_refusal_says_so(
    hub: Hub, remotes: Remotes, road: Road, directory: Directory
) -> None:
    a, stranger = Socket(hub, "a"), Socket(hub, "s", scope="another")
    road.is_up = False
    directory.forget_all()
    hub.request(a.link, "b", ASKED)
    hub.request(stranger.link, "b", ASKED)
    assert (a.error(), stranger.error()) == (Code.BUSY, Code.NOT_FOUND)


async def test_the_peers_of_a_dead_process_are_not_found(
    hub: Hub, remotes: Remotes, road: Road, directory: Directory
) -> None:
    a = Socket(hub, "a")
    directory.take(Snapshot(2, {"here": "", "q": "ws://q"}, None, {}))
    hub.request(a.link, "b", ASKED)
    assert a.error() is Code.NOT_FOUND


async def test_when_what_is_on_the_way_may_be_lost_both_directions_end(hub: Hub, remotes: Remotes, road: Road) -> None:
    a, other, local = Socket(hub, "a"), Socket(hub, "o"), Socket(hub, "l")
    hub.register(local.link)
    hub.request(a.link, "b", ASKED)
    hub.request(other.link, "c", ASKED)
    remotes.hear("p", framed("m", codec.encode_frame(Request("theirs", "POST", "/forward", sender="x"), to="l")))
    [asked] = local.frames
    assert isinstance(asked, Request)
    remotes.failed("p", "the test says so")
    assert a.error() is Code.BUSY
    assert other.frames == []
    assert local.frames[1:] == [Cancel(asked.request_id)]


async def test_when_a_process_has_died_its_peers_are_gone(hub: Hub, remotes: Remotes, road: Road) -> None:
    a = Socket(hub, "a")
    hub.request(a.link, "b", ASKED)
    remotes.gone("p")
    assert a.error() is Code.PEER_GONE


async def test_a_caller_that_leaves_is_a_cancel_on_the_way(hub: Hub, remotes: Remotes, road: Road) -> None:
    a = Socket(hub, "a")
    hub.request(a.link, "b", ASKED)
    asked = asked_abroad(road)
    hub.detach(a.link)
    assert road.sent[-1] == ("p", "", codec.Addressed(Cancel(asked), "", "a"))


async def test_what_others_ask_reaches_the_peer_and_its_answer_goes_back_under_their_id(
    hub: Hub, remotes: Remotes, road: Road
) -> None:
    local = Socket(hub, "l")
    hub.register(local.link)
    remotes.hear("p", framed("m", codec.encode_frame(Request("theirs", "POST", "/forward", sender="x"), to="l")))
    [asked] = local.frames
    assert isinstance(asked, Request)
    assert asked.sender == "x"
    hub.answer(local.link, Response(asked.request_id, 200, stream=True))
    hub.answer(local.link, Chunk(asked.request_id, b"1"))
    hub.answer(local.link, End(asked.request_id))
    assert [(process, it.frame, it.sender) for process, _, it in road.sent] == [
        ("p", Response("theirs", 200, stream=True), "l"),
        ("p", Chunk("theirs", b"1"), "l"),
        ("p", End("theirs"), "l"),
    ]


async def test_the_scope_is_checked_again_here(hub: Hub, remotes: Remotes, road: Road) -> None:
    local = Socket(hub, "l")
    hub.register(local.link)
    for scope in ("another", ""):
        remotes.hear("p", framed(scope, codec.encode_frame(Request("1", "POST", "/forward", sender="x"), to="l")))
        assert road.last().code is Code.NOT_FOUND
    remotes.hear("p", framed("", codec.encode_frame(Request("1", "POST", "/forward", sender=wire.TRACKER), to="l")))
    assert len(local.frames) == 1


async def test_what_is_asked_of_a_peer_that_has_moved_goes_no_further(hub: Hub, remotes: Remotes, road: Road) -> None:
    remotes.hear("p", framed("m", codec.encode_frame(Request("1", "POST", "/forward", sender="x"), to="c")))
    [(process, _, (error, _, _))] = road.sent
    assert isinstance(error, Error)
    assert (process, error.request_id, error.code) == ("p", "1", Code.PEER_GONE)


async def test_a_cancel_of_theirs_reaches_the_peer(hub: Hub, remotes: Remotes, road: Road) -> None:
    local = Socket(hub, "l")
    hub.register(local.link)
    remotes.hear("p", framed("m", codec.encode_frame(Request("1", "POST", "/forward", sender="x"), to="l")))
    remotes.hear("q", framed("", codec.encode_frame(Cancel("1"), sender="x")))
    assert len(local.frames) == 1
    remotes.hear("p", framed("", codec.encode_frame(Cancel("1"), sender="x")))
    assert isinstance(local.frames[1], Cancel)


async def test_answers_that_find_no_room_end_their_request_at_both_ends(hub: Hub, remotes: Remotes, road: Road) -> None:
    local = Socket(hub, "l")
    hub.register(local.link)
    remotes.hear("p", framed("m", codec.encode_frame(Request("1", "POST", "/forward", sender="x"), to="l")))
    [asked] = local.frames
    assert isinstance(asked, Request)
    hub.answer(local.link, Response(asked.request_id, 200, stream=True))
    road.most = 100
    hub.answer(local.link, Chunk(asked.request_id, bytes(200)))
    assert local.frames[1:] == [Cancel(asked.request_id)]
    assert (road.last().request_id, road.last().code) == ("1", Code.BUSY)
    assert not hub.switchboard.flights


UNREADABLE = [b"\x02", b"\x02\x00\x00", b"\x02\xff\xff", b"\x02\x00\x01\xff\x02"]


@pytest.mark.parametrize("item", [*UNREADABLE, framed("", b"\x02\x01\x00\x05{}")])
async def test_what_cannot_be_read_is_dropped(remotes: Remotes, road: Road, item: bytes) -> None:
    remotes.hear("p", item)
    assert road.sent == []


async def test_a_request_that_cannot_be_read_is_answered(remotes: Remotes, road: Road) -> None:
    data = codec.encode_frame(Request("1", "POST", "/forward", sender="x")).replace(b'"POST"', b"123456")
    remotes.hear("p", framed("m", data))
    assert (road.last().request_id, road.last().code) == ("1", Code.BAD_REQUEST)


async def test_ends_that_nothing_hangs_on_are_let_go(
    hub: Hub, remotes: Remotes, road: Road, directory: Directory
) -> None:
    a, local = Socket(hub, "a"), Socket(hub, "l")
    hub.register(local.link)
    hub.request(a.link, "b", ASKED)
    hub.request(a.link, "c", Request("2", "POST", "/forward"))
    remotes.hear("p", framed("m", codec.encode_frame(Request("1", "POST", "/forward", sender="x"), to="l")))
    directory.heard_gone("b", 1)
    directory.heard_gone("c", 2)
    remotes.sweep()
    assert len(hub.switchboard.links) == 5
    hub.detach(a.link)
    hub.detach(local.link)
    remotes.sweep()
    assert not hub.switchboard.links
