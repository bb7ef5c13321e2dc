"""What a process knows of others' peers: snapshots, and news between them."""

from __future__ import annotations

import pytest

from relay.directory import Directory, Entry, Snapshot


def entry(process: str = "p", generation: int = 1) -> Entry:
    return Entry(process, generation, "m", 1000.0, 2, "192.0.2.1")


def snapshot(change: int, **peers: Entry) -> Snapshot:
    return Snapshot(change, {"p": "ws://p", "q": "ws://q"}, peers, {})


@pytest.fixture
def directory() -> Directory:
    directory = Directory()
    directory.take(snapshot(10, a=entry()))
    return directory


def test_an_entry_comes_back_from_its_text() -> None:
    assert Entry.from_json(entry().to_json()) == entry()


def test_what_a_later_version_adds_is_left_aside() -> None:
    assert Entry.from_json(entry().to_json().replace("{", '{"colour":"red",', 1)) == entry()


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"process":"p"}', entry().to_json().replace("1,", '"x",', 1)])
def test_what_is_no_entry_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        Entry.from_json(text)


def test_it_knows_what_the_snapshot_says(directory: Directory) -> None:
    assert directory.entry("a") == entry()
    assert directory.entry("b") is None
    assert set(directory.entries()) == {"a"}


def test_a_peer_of_a_dead_process_is_nowhere_but_not_forgotten(directory: Directory) -> None:
    directory.take(Snapshot(10, {"q": "ws://q"}, None, {}))
    assert directory.entry("a") is None
    assert directory.entries() == {}
    assert directory.last_known("a") == entry()


def test_a_snapshot_without_changes_keeps_what_was_known(directory: Directory) -> None:
    directory.take(Snapshot(10, {"p": "ws://p"}, None, {}))
    assert directory.entry("a") == entry()


def test_news_counts_at_once_and_the_newest_wins(directory: Directory) -> None:
    directory.heard_of("a", entry("q", 12))
    directory.heard_of("a", entry("p", 11))
    assert directory.entry("a") == entry("q", 12)


def test_news_outlives_a_snapshot_that_was_read_before_it(directory: Directory) -> None:
    directory.heard_of("b", entry("q", 12))
    directory.take(snapshot(11, a=entry()))
    assert set(directory.entries()) == {"a", "b"}
    directory.take(snapshot(13, a=entry()))
    assert set(directory.entries()) == {"a"}


def test_a_late_farewell_of_an_older_registration_takes_nothing(directory: Directory) -> None:
    directory.heard_of("a", entry("q", 12))
    directory.heard_gone("a", 1)
    assert directory.entry("a") == entry("q", 12)
    directory.heard_gone("a", 12)
    assert directory.entry("a") is None


def test_a_process_is_doubled_where_peers_are_at_another_one_with_its_address(directory: Directory) -> None:
    directory.processes = {"p": "ws://p", "twin": "ws://p", "q": "ws://q"}
    assert not directory.has_twin("p", "ws://p"), "which has no peers may only have been given the address"
    directory.heard_of("b", entry("q", 11))
    assert not directory.has_twin("p", "ws://p")
    directory.heard_of("c", entry("twin", 12))
    assert directory.has_twin("p", "ws://p")
