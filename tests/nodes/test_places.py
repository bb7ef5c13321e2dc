from __future__ import annotations

from nodes.places import Places
from nodes.registration import Place, Registration
from tests.nodes.trackers import registered

PLACE = Place(3, 6, 7)


def registration(start_layer: int, end_layer: int) -> Registration:
    return Registration.read(registered(start_layer=start_layer, end_layer=end_layer)[1], "n.k")


def test_a_move_waits_until_no_session_is_left() -> None:
    places = Places()
    places.hear(PLACE)

    assert not places.calls_away((0, 3), is_idle=False)
    assert places.calls_away((0, 3), is_idle=True)
    assert places.take() == (PLACE, None)
    assert places.take() == (None, None)


def test_a_move_that_is_taken_back_or_done_calls_nobody() -> None:
    places = Places()
    places.hear(PLACE)
    assert not places.calls_away((3, 6), is_idle=True)

    places.hear(None)
    assert not places.calls_away((0, 3), is_idle=True)


def test_where_the_tracker_believes_a_node_elsewhere_it_goes_there_at_once() -> None:
    places, elsewhere = Places(), registration(3, 6)
    places.registered(registration(0, 3), (0, 3))
    places.registered(elsewhere, None)
    assert not places.is_believed_elsewhere, "it is what it was waiting for, or the same"

    places.registered(elsewhere, (0, 3))
    assert places.calls_away((0, 3), is_idle=False)
    assert places.take() == (None, elsewhere)


def test_a_move_comes_before_a_registration_that_it_will_make_anew() -> None:
    places = Places()
    places.registered(registration(1, 4), (0, 3))
    places.hear(PLACE)

    assert places.take() == (PLACE, None)
