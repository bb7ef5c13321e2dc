"""What nodes are credited with: of one session purely, and in the rows of the day."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.conftest import MakeNode
from tests.tracker.sessions import begin_chat
from tracker import answers, contributions, endings, epochs
from tracker.answers import Answer, Completion
from tracker.chats import Chat
from tracker.contributions import Work, had_by_client, work_of
from tracker.endings import Outcome
from tracker.events import Delta
from tracker.hopreports import HopReport, Report
from tracker.models import ChatSession, Contribution, Failover, JoinToken, Node, SessionHop
from tracker.routing import RouteElement

NOW = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
PROMPT = (1, 2, 3, 4, 5)
Rows = list[tuple[str, int, int, int]]


def answer_of(num_ids: int) -> Answer:
    answer = Completion(answers.CHAT, "chatcmpl-1", 0, "tiny").new_answer({})
    if num_ids:
        answer.add(Delta("text", ids=tuple(range(num_ids)), prompt_ids=PROMPT))
    return answer


def test_work_is_tokens_times_layers() -> None:
    assert work_of([(0, 6, 10)]) == Work(10, 60)
    assert work_of([]) == work_of([(2, 4, 0)]) == Work(0, 0)


def test_a_token_counts_once_in_a_layer_however_often_the_node_was_on_the_route() -> None:
    assert work_of([(0, 6, 10), (0, 6, 25), (0, 6, 7)]) == Work(25, 150)
    assert work_of([(0, 4, 10), (2, 6, 20)]) == Work(20, 2 * 10 + 4 * 20)


STRETCHES = st.lists(st.tuples(st.integers(0, 5), st.integers(6, 9), st.integers(0, 50)), max_size=5)


@given(STRETCHES, STRETCHES)
def test_more_work_is_never_less_and_never_more_than_its_sum(first: Any, second: Any) -> None:
    one, other, both = work_of(first), work_of(second), work_of(first + second)
    assert max(one.token_layers, other.token_layers) <= both.token_layers <= one.token_layers + other.token_layers
    assert both == work_of(second + first)


def test_the_client_had_what_went_through_the_route_and_one_token_more() -> None:
    assert had_by_client(answer_of(4), {}, 0) == {0: 8}
    assert had_by_client(answer_of(0), {}, 0) == {}


def test_each_epoch_has_brought_what_came_until_the_next() -> None:
    assert had_by_client(answer_of(8), {1: 7, 2: 10}, 2) == {0: 6, 1: 9, 2: 12}


def test_an_epoch_that_brought_nothing_is_credited_with_nothing() -> None:
    assert had_by_client(answer_of(8), {1: 7, 2: 7}, 2) == {0: 6, 2: 12}
    assert had_by_client(answer_of(2), {1: None}, 1) == {1: 6}
    assert had_by_client(answer_of(2), {1: len(PROMPT)}, 1) == {1: 6}, "lost while the prompt went in"


@pytest.fixture
def nodes(make_node: MakeNode, connect: Any, join_token: Any, ticket_key: Any) -> list[Node]:
    """A head whose owner is known, and a tail whose isn't."""
    made = [make_node("head", 0, 6, joined_with=join_token[0]), make_node("tail", 6, 12)]
    for node in made:
        connect(node)
    return made


def told(node: Node, start: int, end: int, tokens: int | None, epoch: int | None = None) -> HopReport:
    return HopReport(node.peer_id, start, end, "tunnel", 3, 30.0, 20.0, 1.0, tokens=tokens, epoch=epoch)


def end(chat: Chat, report: Report | None, num_ids: int = 4, state: str = ChatSession.State.DONE) -> None:
    if num_ids:
        chat.answer.add(Delta("text", ids=tuple(range(num_ids)), prompt_ids=PROMPT))
    chat.answer.report = report
    endings.finish(chat, Outcome(state), NOW)


def rows() -> Rows:
    found = Contribution.objects.order_by("node_name")
    return [(row.node_name, row.sessions, row.tokens, row.token_layers) for row in found]


def reported(nodes: list[Node], tokens: int | None = 8) -> Report:
    return Report(5, 4, (told(nodes[0], 0, 6, tokens), told(nodes[1], 6, 12, tokens)))


def test_the_nodes_of_a_session_are_credited_on_its_day(nodes: list[Node]) -> None:
    for _ in range(2):
        end(begin_chat(), reported(nodes))
    assert rows() == [("head", 2, 16, 96), ("tail", 2, 16, 96)]
    row = Contribution.objects.get(node=nodes[0])
    assert (row.day, row.model_name) == (NOW.date(), "tiny")
    assert (row.owner, row.owner_label) == (JoinToken.objects.get(), "test")
    assert Contribution.objects.get(node=nodes[1]).owner is None
    assert [hop.tokens for hop in SessionHop.objects.all()] == [8] * 4


def test_no_head_credits_more_than_the_client_asked_and_got(nodes: list[Node]) -> None:
    end(begin_chat(), reported(nodes, 10**6))
    assert rows() == [("head", 1, 9, 54), ("tail", 1, 9, 54)]


@pytest.mark.parametrize("state", [ChatSession.State.CANCELLED, ChatSession.State.FAILED])
def test_without_a_report_they_are_credited_with_what_the_client_had(nodes: list[Node], state: str) -> None:
    end(begin_chat(), None, state=state)
    assert rows() == [("head", 1, 8, 48), ("tail", 1, 8, 48)]


def test_a_head_that_doesnt_count_tokens_is_one_that_tells_nothing(nodes: list[Node]) -> None:
    end(begin_chat(), reported(nodes, None))
    assert rows() == [("head", 1, 8, 48), ("tail", 1, 8, 48)]


def test_who_brought_nothing_is_credited_with_nothing(nodes: list[Node]) -> None:
    end(begin_chat(), None, num_ids=0, state=ChatSession.State.FAILED)
    assert rows() == []


def next_epoch(chat: Chat, route: list[tuple[Node, int, int]], position: int, kind: str) -> None:
    session = ChatSession.objects.get(pk=chat.session_pk)
    failover = Failover(session=session, kind=kind, start_layer=0, end_layer=6, position=position, at=NOW)
    hops = [(node, RouteElement(node.peer_id, start, end)) for node, start, end in route]
    assert epochs.take_next(session, hops, failover)


def test_a_hop_that_was_lost_is_credited_by_its_head_and_so_is_who_took_over(
    nodes: list[Node], make_node: MakeNode
) -> None:
    chat, spare = begin_chat(), make_node("spare", 6, 12)
    next_epoch(chat, [(nodes[0], 0, 6), (spare, 6, 12)], 7, "hop")
    hops = told(nodes[0], 0, 6, 12), told(spare, 6, 12, 12)
    end(chat, Report(5, 8, hops, left=(told(nodes[1], 6, 12, 6, epoch=0),)), num_ids=8)
    assert rows() == [("head", 1, 12, 72), ("spare", 1, 12, 72), ("tail", 1, 6, 36)]
    lost = SessionHop.objects.get(node=nodes[1])
    assert (lost.steps, lost.path, lost.tokens) == (3, "tunnel", 6)


def test_a_head_that_died_is_credited_and_its_tail_not_twice(nodes: list[Node], make_node: MakeNode) -> None:
    chat, spare = begin_chat(), make_node("spare", 0, 6)
    next_epoch(chat, [(spare, 0, 6), (nodes[1], 6, 12)], 7, "head")
    end(chat, Report(5, 8, (told(spare, 0, 6, 12), told(nodes[1], 6, 12, 12))), num_ids=8)
    assert rows() == [("head", 1, 6, 36), ("spare", 1, 12, 72), ("tail", 1, 12, 72)]


def test_a_node_that_was_deleted_meanwhile_keeps_its_name(nodes: list[Node]) -> None:
    chat, report = begin_chat(), reported(nodes)
    nodes[1].delete()
    end(chat, report)
    assert rows() == [("head", 1, 8, 48), ("tail", 1, 8, 48)]
    assert Contribution.objects.get(node_name="tail").node is None


def test_totals_are_by_whoever_did_most_first(nodes: list[Node]) -> None:
    end(begin_chat(), Report(5, 4, (told(nodes[0], 0, 6, 2), told(nodes[1], 6, 12, 8))))
    every = Contribution.objects.all()
    sums = {"sessions": 1, "tokens": 8, "token_layers": 48}
    assert contributions.totals(every, "node_name")[0] == {"node_name": "tail"} | sums
    assert [row["owner_label"] for row in contributions.totals(every, "owner_label")] == ["", "test"]
