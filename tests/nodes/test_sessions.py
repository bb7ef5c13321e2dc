"""What a numbered step means, without any tensor."""

from __future__ import annotations

from typing import Any

import pytest

from nodes.sessions import MAX_SESSIONS, Busy, Missing, Session, Sessions, Stale, StepKey

ID, OTHER = "a" * 32, "b" * 32


def key(step: int, position: int = 0, num_tokens: int = 1, **fields: Any) -> StepKey:
    given: dict[str, Any] = {"session": ID, "epoch": 0, "layers": (0, 6), "reserve_tokens": 0} | fields
    return StepKey(step=step, position=position, num_tokens=num_tokens, **given)


class Node:
    """Works steps as an engine does; an answer is a text that names the step."""

    def __init__(self, room: int = 100) -> None:
        self.sessions: Sessions[list[int], str] = Sessions(room, idle_s=600)
        self.num_worked, self.now = 0, 1000.0

    def work(self, step: StepKey, token_ids: tuple[int, ...] = ()) -> str:
        session, kept = self.sessions.begin(step, self.now)
        if kept is not None:
            return kept
        self.num_worked += 1
        answer = f"epoch {step.epoch} step {step.step}"
        self.sessions.finish(session, step, token_ids, answer)
        return answer

    def session(self, session_id: str = ID) -> Session[list[int], str]:
        return self.sessions._sessions[session_id]


@pytest.fixture
def node() -> Node:
    return Node()


def test_steps_append(node: Node) -> None:
    assert node.work(key(1, 0, 5)) == "epoch 0 step 1"
    assert node.work(key(2, 5)) == "epoch 0 step 2"
    assert node.sessions.cached_tokens == 6
    assert node.sessions.num_open == 1


def test_a_repeated_step_gets_its_kept_answer_and_nothing_is_worked(node: Node) -> None:
    first = node.work(key(1, 0, 5))
    assert node.work(key(1, 0, 5)) == first
    assert node.num_worked == 1
    assert node.sessions.cached_tokens == 5


def test_a_late_copy_of_a_lower_step_is_stale_and_touches_nothing(node: Node) -> None:
    node.work(key(1, 0, 5))
    node.work(key(2, 5, 3))
    node.work(key(3, 6, 2))
    with pytest.raises(Stale, match="step 2 comes after step 3"):
        node.work(key(2, 5, 3))
    assert node.sessions.cached_tokens == 8
    assert node.work(key(3, 6, 2)) == "epoch 0 step 3"


def test_a_step_may_leave_numbers_out(node: Node) -> None:
    node.work(key(1, 0, 5))
    assert node.work(key(9, 5)) == "epoch 0 step 9"


def test_a_step_before_the_caches_end_crops_it(node: Node) -> None:
    node.work(key(1, 0, 5), (1, 2, 3, 4, 5))
    node.work(key(2, 2, 2), (13, 14))
    assert node.sessions.cached_tokens == 4
    assert node.session().token_ids == [1, 2, 13, 14]


def test_a_step_after_the_caches_end_is_missing_what_is_between(node: Node) -> None:
    node.work(key(1, 0, 5))
    with pytest.raises(Missing) as caught:
        node.work(key(2, 7))
    assert caught.value.cached_tokens == 5
    assert node.work(key(3, 5, 3)) == "epoch 0 step 3"  # the replay


def test_an_unknown_session_is_missing_everything(node: Node) -> None:
    with pytest.raises(Missing) as caught:
        node.work(key(4, 12))
    assert caught.value.cached_tokens == 0
    assert node.sessions.num_open == 0


def test_a_higher_epoch_goes_on_with_the_cache_and_its_own_step_numbers(node: Node) -> None:
    node.work(key(7, 0, 5))
    assert node.work(key(1, 5, epoch=1)) == "epoch 1 step 1"
    assert node.sessions.cached_tokens == 6


def test_a_lower_epoch_is_stale_once_a_higher_one_is_seen_even_if_it_could_not_be_worked(node: Node) -> None:
    node.work(key(1, 0, 5))
    with pytest.raises(Missing):
        node.work(key(1, 9, epoch=2))
    with pytest.raises(Stale, match="epoch 1 comes after epoch 2"):
        node.work(key(2, 5, epoch=1))
    with pytest.raises(Stale):
        node.work(key(8, 5))
    assert node.sessions.cached_tokens == 5


def test_a_route_that_gives_the_node_other_layers_starts_from_nothing(node: Node) -> None:
    node.work(key(1, 0, 5))
    with pytest.raises(Missing) as caught:
        node.work(key(1, 5, epoch=1, layers=(2, 6)))
    assert caught.value.cached_tokens == 0
    assert node.sessions.cached_tokens == 0
    assert node.work(key(2, 0, 6, epoch=1, layers=(2, 6))) == "epoch 1 step 2"


def test_the_first_step_reserves_room_and_the_end_returns_it() -> None:
    node = Node(room=100)
    node.work(key(1, 0, 5, reserve_tokens=60))
    with pytest.raises(Busy, match="room for 50 tokens; 40 are free"):
        node.work(key(1, 0, 5, session=OTHER, reserve_tokens=50))
    node.sessions.close(ID, 0, 2000, 1000)
    assert node.sessions.reserved_tokens == 0
    node.work(key(1, 0, 5, session=OTHER, reserve_tokens=100))


def test_what_never_fits_is_told_apart_from_what_doesnt_fit_now() -> None:
    with pytest.raises(
        Busy, match="room for 101 tokens, and this node holds 100 in all: ask for fewer with max_tokens"
    ):
        Node(room=100).work(key(1, 0, 5, reserve_tokens=101))


def test_a_session_that_outgrows_its_reservation_takes_more_while_there_is_some() -> None:
    node = Node(room=8)
    node.work(key(1, 0, 5))
    node.work(key(2, 5, 3))
    with pytest.raises(Busy):
        node.work(key(3, 8))
    assert node.sessions.cached_tokens == 8
    assert node.work(key(4, 6, 2)) == "epoch 0 step 4"


def test_a_refused_session_holds_nothing(node: Node) -> None:
    with pytest.raises(Busy):
        node.work(key(1, 0, 5, reserve_tokens=101))
    assert (node.sessions.num_open, node.sessions.reserved_tokens, node.sessions.cached_tokens) == (0, 0, 0)


def test_a_closed_session_stays_closed_until_its_ticket_ends(node: Node) -> None:
    node.work(key(1, 0, 5))
    assert node.sessions.close(ID, 0, until=1300, now=1000)
    assert (node.sessions.num_open, node.sessions.cached_tokens) == (0, 0)
    node.now = 1299
    with pytest.raises(Stale, match="closed"):
        node.work(key(2, 0, 5))
    node.now = 1301
    node.work(key(3, 0, 5))


def test_an_unknown_session_can_be_closed_before_its_first_step_comes(node: Node) -> None:
    assert not node.sessions.close(ID, 0, until=1300, now=1000)
    with pytest.raises(Stale, match="closed"):
        node.work(key(1, 0, 5))


def test_closing_an_epoch_leaves_the_next_one_open(node: Node) -> None:
    node.sessions.close(ID, 0, until=1300, now=1000)
    assert node.work(key(1, 0, 5, epoch=1)) == "epoch 1 step 1"


def test_a_lower_epoch_cannot_close_the_session(node: Node) -> None:
    node.work(key(1, 0, 5, epoch=1))
    with pytest.raises(Stale):
        node.sessions.close(ID, 0, until=1300, now=1000)
    assert node.sessions.cached_tokens == 5


def test_closing_twice_keeps_the_higher_epoch_and_the_later_end(node: Node) -> None:
    node.sessions.close(ID, 2, until=1300, now=1000)
    node.sessions.close(ID, 1, until=1200, now=1000)
    node.now = 1250
    with pytest.raises(Stale):
        node.work(key(1, 0, epoch=2))


def test_an_idle_session_is_freed_and_one_in_use_is_not(node: Node) -> None:
    node.work(key(1, 0, 5))
    node.work(key(1, 0, 5, session=OTHER))
    node.now += 400
    node.work(key(2, 5))
    node.now += 300
    assert node.sessions.expire(node.now) == [OTHER]
    assert node.sessions.cached_tokens == 6


def test_ids_that_cannot_come_back_are_forgotten(node: Node) -> None:
    for number in range(10):
        node.sessions.close(f"{number:032x}", 0, until=1100, now=1000)
    node.sessions.expire(1200)
    assert not node.sessions._closed


def test_a_failed_step_leaves_nothing_to_trust(node: Node) -> None:
    node.work(key(1, 0, 5))
    node.sessions.drop_cache(ID)
    with pytest.raises(Missing) as caught:
        node.work(key(2, 5))
    assert caught.value.cached_tokens == 0


def test_the_number_of_sessions_is_bounded() -> None:
    node = Node(room=10 * MAX_SESSIONS)
    for number in range(MAX_SESSIONS):
        node.work(key(1, session=f"{number:032x}"))
    with pytest.raises(Busy):
        node.work(key(1, session=ID))
    node.work(key(2, 1, session=f"{5:032x}"))


def test_dropped_caches_give_back_all_room_and_no_fence(node: Node) -> None:
    node.work(key(1, 0, 5, epoch=2, reserve_tokens=50))
    node.work(key(1, 0, 5, session=OTHER))
    assert node.sessions.drop_caches() == 2

    assert (node.sessions.cached_tokens, node.sessions.reserved_tokens, node.sessions.num_open) == (0, 0, 0)
    with pytest.raises(Stale):
        node.work(key(9, 0, 5, epoch=1))
    with pytest.raises(Missing) as missing:
        node.work(key(2, 5, epoch=2))
    assert missing.value.cached_tokens == 0
    assert node.work(key(3, 0, 6, epoch=2, reserve_tokens=50)) == "epoch 2 step 3"
    assert node.sessions.drop_caches() == 1


def test_it_tells_which_epochs_it_holds_those_first_that_were_idle_longest(node: Node) -> None:
    for number, session in enumerate((OTHER, ID)):
        node.work(key(1, 0, 1, session=session, epoch=number))
        node.now += 1

    assert node.sessions.epochs(9) == {OTHER: 0, ID: 1}
    assert node.sessions.epochs(1) == {OTHER: 0}
