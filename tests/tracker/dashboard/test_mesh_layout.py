"""Where nodes are drawn: in the order of their layers, apart from each other, few or many."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest

from tracker.dashboard.mesh_layout import (
    BOX_HEIGHT,
    BOX_WIDTH,
    MAX_COLUMNS,
    Band,
    Box,
    Layout,
    Machine,
    Section,
    columns_of,
    curve,
    layout,
)


def band(*starts: int, num_layers: int = 12, model: str = "tiny", first_key: int = 0) -> Band:
    return Band(model, num_layers, [Machine(first_key + number, start) for number, start in enumerate(starts)])


def drawn(*bands: Band) -> Layout:
    return layout([Section("wss://a", bands)])


def test_nodes_stand_from_left_to_right_as_their_layers_follow_each_other() -> None:
    boxes = drawn(band(6, 0, 6)).boxes
    assert boxes[1].x < boxes[0].x == boxes[2].x
    assert boxes[0].y == boxes[1].y < boxes[2].y


@pytest.mark.parametrize("num_nodes", [1, 3, 20, 200, 1000])
@pytest.mark.parametrize("num_starts", [1, 4, 30])
def test_no_two_overlap_and_all_lie_within_the_picture(num_nodes: int, num_starts: int) -> None:
    made = drawn(band(*(number % num_starts for number in range(num_nodes)), num_layers=30))
    places = sorted({(box.x, box.y) for box in made.boxes.values()})
    assert len(places) == num_nodes
    columns = sorted({x for x, _ in places})
    assert all(right - left >= BOX_WIDTH for left, right in pairwise(columns))
    rows = sorted({y for _, y in places})
    assert all(below - above >= BOX_HEIGHT for above, below in pairwise(rows))
    assert columns[-1] + BOX_WIDTH <= made.width
    assert rows[-1] + BOX_HEIGHT <= made.height


def test_many_with_the_same_layers_stand_in_several_columns() -> None:
    assert [len(column) for column in columns_of(band(*[0] * 200))] == [25] * 8
    assert [len(column) for column in columns_of(band(*[0] * 3, *[6] * 30))] == [3, *[5] * 5, 5]


def test_few_stand_in_one() -> None:
    assert [len(column) for column in columns_of(band(0, 0, 0, 0, 6))] == [4, 1]


def test_shards_that_begin_anywhere_share_columns_in_their_order() -> None:
    columns = columns_of(band(*range(40), num_layers=80))
    assert len(columns) <= MAX_COLUMNS
    starts = [machine.start_layer for column in columns for machine in column]
    assert starts == sorted(starts)


def test_200_nodes_are_no_wider_than_a_screen_and_not_many_screens_high() -> None:
    made = drawn(
        band(*[0, 20, 40, 60] * 30, num_layers=80),
        band(*[0, 12] * 25, num_layers=24, first_key=200),
        band(*[0, 4] * 15, first_key=300),
    )
    assert len(made.boxes) == 200
    assert made.width < 1400
    assert made.height < 1500


def test_a_trunk_ends_at_the_last_node_that_is_connected() -> None:
    machines = [Machine(0, 0), Machine(1, 0, is_connected=False), Machine(2, 6, is_connected=False)]
    made = drawn(Band("tiny", 12, machines))
    [trunk] = made.trunks
    assert trunk.bottom == made.boxes[0].middle
    assert trunk.x < made.boxes[0].x


def test_models_that_share_a_relay_share_its_trunks_and_others_have_their_own() -> None:
    one, other, third = band(0), band(0, model="b", first_key=1), band(0, model="c", first_key=2)
    made = layout([Section("wss://a", [one, other]), Section("wss://b", [third])])
    assert [title.text for title in made.relays] == ["wss://a", "wss://b"]
    assert [title.text for title in made.models] == ["tiny", "b", "c"]
    first, second = made.trunks
    assert first.bottom == made.boxes[1].middle
    assert made.relays[1].y < second.top < second.bottom == made.boxes[2].middle
    assert made.boxes[0].y < made.boxes[1].y < made.relays[1].y < made.boxes[2].y


def test_nobody_there_is_an_empty_picture() -> None:
    assert layout([]).boxes == {}
    assert drawn(band()).trunks == []


def test_few_nodes_stand_wider_apart_than_many() -> None:
    few, many = drawn(band(0, 6)), drawn(band(*[0, 6] * 20))
    assert few.pitch.column > many.pitch.column
    assert few.pitch.row > many.pitch.row


def test_among_many_a_line_leads_from_the_right_of_a_box_to_the_left_of_another_also_backwards() -> None:
    places = drawn(band(*[0, 6] * 20))
    for a, b in permutations([Box(0, 0), Box(400, 80), Box(0, 160)], 2):
        line = curve(places, a, b, lower=5)
        assert line.path.startswith(f"M{a.x + BOX_WIDTH:.0f} {a.middle + 5:.0f}C")
        assert line.path.endswith(f" {b.x:.0f} {b.middle + 5:.0f}")


def test_among_few_it_runs_below_them_and_the_deeper_the_further() -> None:
    places = drawn(band(0, 6))
    here, next_to, far = (Box(column * places.pitch.column, 0) for column in range(3))
    near, wide = curve(places, here, next_to), curve(places, here, far)
    assert BOX_HEIGHT < near.y < wide.y < places.pitch.row
    assert near.x < wide.x
