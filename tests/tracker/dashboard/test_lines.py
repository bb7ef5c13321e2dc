"""Figures over time as a line, and in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tracker.dashboard.lines import HEIGHT, WIDTH, Point, line, newest, top_of

END = datetime(2026, 11, 30, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def points(*values: float | None) -> list[Point]:
    """One a minute, the last one at the end."""
    return [(END - (len(values) - 1 - number) * MINUTE, value) for number, value in enumerate(values)]


def ms(value: float) -> str:
    return f"{value:g} ms"


def test_a_line_goes_from_its_first_point_to_the_end_of_the_picture() -> None:
    drawn = line(points(*[10.0] * 61), END, HOUR)
    assert drawn.path.startswith("M0.0 0.0h0L2.0 0.0L")
    assert drawn.path.endswith(f"L{WIDTH:.1f} 0.0")
    assert drawn.end == (WIDTH, 0.0)


def test_its_lower_edge_is_nothing_and_its_upper_edge_the_most() -> None:
    drawn = line(points(40.0, 10.0, 0.0), END, 2 * MINUTE)
    assert drawn.path == "M0.0 0.0h0L60.0 18.0L120.0 24.0"
    assert (drawn.lowest, drawn.highest, drawn.top) == (0.0, 40.0, 40.0)


def test_where_a_sample_is_missing_nothing_is_drawn() -> None:
    drawn = line(points(1.0, 1.0, None, None, 1.0, 1.0), END, 5 * MINUTE)
    assert drawn.path.count("M") == 2
    assert line(points(1.0, 1.0, None, 1.0), END, 3 * MINUTE).path.count("M") == 1, "one that is late is none missing"


def test_a_point_alone_is_a_dot() -> None:
    assert line(points(5.0), END, HOUR).path == "M120.0 0.0h0"


def test_what_is_older_than_the_picture_isnt_in_it() -> None:
    assert line([(END - 2 * HOUR, 99.0), (END, 1.0)], END, HOUR).highest == 1.0


def test_nothing_measured_draws_nothing_and_says_so() -> None:
    drawn = line(points(None, None), END, HOUR)
    assert (drawn.path, drawn.end) == ("", None)
    assert drawn.in_words("round trip", ms, HOUR) == "round trip: nothing measured within the last 60 minutes"


def test_it_says_in_words_what_it_shows() -> None:
    said = line(points(8.0, 40.0, 12.0), END, 2 * HOUR).in_words("round trip", ms, 2 * HOUR)
    assert said == "round trip: 12 ms now, 8 ms to 40 ms within the last 2 hours"
    said = line(points(8.0, None, None, None), END, HOUR).in_words("round trip", ms, HOUR)
    assert said == "round trip: not measured now, 8 ms within the last 60 minutes"


def test_only_zeros_lie_on_the_lower_edge() -> None:
    assert line(points(0.0, 0.0), END, MINUTE).path == f"M0.0 {HEIGHT:.1f}h0L120.0 {HEIGHT:.1f}"


def test_lines_of_one_picture_share_its_upper_edge_and_its_end() -> None:
    sent, received = points(10.0, None), points(40.0, 20.0)
    assert (top_of(sent, received), top_of([])) == (40.0, 1.0)
    assert line(sent, END, MINUTE, top_of(sent, received)).path == "M0.0 18.0h0"
    assert newest([sent, received, []], END - HOUR) == END
    assert newest([[]], END - HOUR) == END - HOUR
