from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from nodes.deadline import Deadline
from nodes.downstream import DownstreamHop
from nodes.forwarding import Session
from nodes.hops import Dialler
from nodes.route import Route
from relay import headers as names
from relay.headers import Hop
from tests.nodes.test_downstream import FakeDialler, FakePath

SESSION = Session("5e" * 16, 0, "ticket 0", "bfloat16", 99, Deadline.after(60))
PATHS: dict[str, FakePath] = {}


def hop(name: str, start: int, end: int, relay_addr: str = "ws://relay") -> DownstreamHop:
    path = PATHS[name] = FakePath("relay")
    dialler: Any = FakeDialler(path, None, None, "relay")
    return DownstreamHop(Hop(name * 8, start, end, None, relay_addr), cast(Dialler, dialler))


def in_epoch(epoch: int) -> Session:
    return replace(SESSION, epoch=epoch, ticket=f"ticket {epoch}")


def tickets(path: FakePath) -> list[str]:
    """Under which the session was freed."""
    return [headers[names.TICKET] for method, _, headers, _ in path.asked if method == "DELETE"]


def test_a_hop_that_stays_keeps_its_connections_and_what_it_holds() -> None:
    stays, leaves = hop("a", 2, 4), hop("b", 4, 6)
    stays.num_held = 17
    route = Route(SESSION, (0, 2), [stays, leaves])
    comes = hop("c", 4, 6)
    route.switch(in_epoch(1), (0, 2), [hop("a", 2, 4), comes])

    assert route.hops == [stays, comes]
    assert [one.num_held for one in route.hops] == [17, 0]
    assert route.num_held(20) == 0


def test_a_hop_of_the_same_node_with_other_layers_holds_nothing() -> None:
    stays = hop("a", 2, 4)
    stays.num_held = 17
    route = Route(SESSION, (0, 2), [stays, hop("b", 4, 6)])
    route.switch(in_epoch(1), (0, 2), [hop("a", 2, 6)])

    assert [one.num_held for one in route.hops] == [0]


def test_a_hop_that_is_reached_another_way_now_is_asked_that_way_and_holds_as_much() -> None:
    before = hop("a", 2, 6)
    before.num_held = 17
    route = Route(SESSION, (0, 2), [before])
    after = hop("a", 2, 6, "ws://another")
    route.switch(in_epoch(1), (0, 2), [after])

    assert route.hops == [after]
    assert after.num_held == 17


def test_a_hop_that_was_lost_and_is_given_again_gets_new_connections() -> None:
    before = hop("a", 2, 6)
    before.is_lost = True
    route = Route(SESSION, (0, 2), [before])
    before.knows_grammar = True
    after = hop("a", 2, 6)
    route.switch(in_epoch(1), (0, 2), [after])

    assert route.hops == [after]
    assert not after.is_lost
    assert after.knows_grammar


def test_hops_that_were_left_are_known_with_the_last_epoch_they_were_in() -> None:
    stays, leaves = hop("a", 2, 4), hop("b", 4, 6)
    route = Route(SESSION, (0, 2), [stays, leaves])
    route.switch(in_epoch(1), (0, 2), [hop("a", 2, 4, "ws://another"), hop("c", 4, 6)])
    last = route.hops[1]
    route.switch(in_epoch(2), (0, 2), [hop("a", 2, 4, "ws://another"), hop("b", 4, 6)])

    assert route.left() == [(leaves, 0), (last, 1)], "who is only reached another way isn't left"


def test_each_is_freed_under_the_ticket_it_knows() -> None:
    route = Route(SESSION, (0, 2), [hop("a", 2, 4), hop("b", 4, 6)])
    route.switch(in_epoch(1), (0, 2), [hop("a", 2, 4), hop("c", 4, 6)])
    paths = dict(PATHS)
    route.switch(in_epoch(2), (0, 2), [hop("a", 2, 4), hop("d", 4, 6)])
    first = route.hops[0]
    route.release()

    assert tickets(paths["b"]) == ["ticket 0"]
    assert tickets(paths["c"]) == ["ticket 1"]
    assert tickets(PATHS["d"]) == ["ticket 2"]
    assert first.layers == (2, 4)


def test_a_node_that_has_come_back_is_freed_once_under_the_last_ticket() -> None:
    route = Route(SESSION, (0, 2), [hop("a", 2, 6)])
    left = PATHS["a"]
    route.switch(in_epoch(1), (0, 2), [hop("b", 2, 6)])
    route.switch(in_epoch(2), (0, 2), [hop("a", 2, 6)])
    route.release()

    assert tickets(left) == []
    assert left.num_closed == 1
    assert tickets(PATHS["a"]) == ["ticket 2"]


def test_who_belongs_to_another_head_is_closed_and_not_freed() -> None:
    route = Route(SESSION, (0, 2), [hop("a", 2, 6)])
    left = PATHS["a"]
    route.switch(in_epoch(1), (0, 2), [hop("b", 2, 6)])
    route.close()

    assert tickets(left) == tickets(PATHS["b"]) == []
    assert left.num_closed == PATHS["b"].num_closed == 1
