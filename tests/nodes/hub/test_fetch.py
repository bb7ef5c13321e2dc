"""Bytes come right or not at all: cuts are gone on from, lies are noticed, and what never comes is given up."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodes.backoff import Backoff
from nodes.hub.client import Hub
from nodes.hub.fetch import Fetcher, HubUnreachable, Patience
from nodes.hub.listing import HubFile, HubId, Listing
from nodes.hub.sparse import Record, SparseFile
from nodes.layout import ModelError
from tests.lab.hub import Faults, LocalHub

NAME, FILE, SIZE = "acme/tiny", "model.safetensors", 400_000
DATA = random.Random(0).randbytes(SIZE)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    folder = tmp_path_factory.mktemp("model")
    (folder / FILE).write_bytes(DATA)
    (folder / "config.json").write_text("{}")
    with LocalHub({NAME: folder}) as hub:
        yield hub


@pytest.fixture
def local(served: LocalHub) -> Iterator[LocalHub]:
    served.faults = Faults()
    served.asked.clear()
    served.sent.clear()
    yield served
    served.faults.release.set()


@pytest.fixture
def listing(local: LocalHub) -> Listing:
    return Hub(local.url).list(HubId(NAME))


@pytest.fixture
def fetcher(local: LocalHub, listing: Listing) -> Fetcher:
    return fetcher_of(local, listing)


def fetcher_of(local: LocalHub, listing: Listing, deadline_s: float = 20, timeout_s: float = 5) -> Fetcher:
    return Fetcher(Hub(local.url, timeout_s=timeout_s), listing, Patience(deadline_s, Backoff(0.01, 0.05)))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SparseFile]:
    with SparseFile(tmp_path / FILE, SIZE) as opened:
        yield opened


def held(file: SparseFile, start: int, end: int) -> bool:
    return file.path.read_bytes()[start:end] == DATA[start:end]


def test_a_part_comes_and_nothing_else(local: LocalHub, fetcher: Fetcher, file: SparseFile) -> None:
    fetcher.fill(file, [(1000, 5000), (300_000, 300_001), (5000, 6000)])
    assert held(file, 1000, 6000)
    assert held(file, 300_000, 300_001)
    assert local.sent[FILE] == 5001
    assert file.path.read_bytes()[6000:300_000] == bytes(294_000)
    assert file.path.stat().st_blocks * 512 < SIZE  # holes take no room


def test_what_is_there_isnt_fetched_again(local: LocalHub, fetcher: Fetcher, file: SparseFile) -> None:
    fetcher.fill(file, [(0, 50_000)])
    fetcher.fill(file, [(40_000, 60_000), (10, 20)])
    assert local.sent[FILE] == 60_000


def test_after_a_cut_it_goes_on_where_it_was(local: LocalHub, fetcher: Fetcher, file: SparseFile) -> None:
    local.faults.cut_after_bytes = [100_000, 0, 1]
    fetcher.fill(file, [(0, SIZE)])
    assert file.path.read_bytes() == DATA
    assert local.sent[FILE] == SIZE
    conditions = [asked.headers.get("if-range") for asked in local.asked if asked.is_cdn]
    assert conditions[0] is None
    assert all(conditions[1:])


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_later_is_believed(local: LocalHub, fetcher: Fetcher, file: SparseFile, status: int) -> None:
    local.faults.statuses, local.faults.cdn_statuses = [status], [status]
    fetcher.fill(file, [(0, 100)])
    assert held(file, 0, 100)


def test_an_address_of_the_cdn_that_has_run_out_is_asked_for_anew(
    local: LocalHub, fetcher: Fetcher, file: SparseFile
) -> None:
    local.faults.cdn_statuses = [403, 401]
    fetcher.fill(file, [(0, 100)])
    assert held(file, 0, 100)


def test_a_new_process_goes_on_with_what_is_recorded(
    local: LocalHub, fetcher: Fetcher, tmp_path: Path, listing: Listing
) -> None:
    """As after kill -9: nothing is closed, the record is what there is."""
    first = SparseFile(tmp_path / FILE, SIZE)
    first.__enter__()
    fetcher.fill(first, [(0, 100_000)])
    first.record()
    fetcher.fill(first, [(100_000, 150_000)])  # written, and not recorded

    with SparseFile(tmp_path / FILE, SIZE) as second:
        fetcher_of(local, listing).fill(second, [(0, 200_000)])
        assert held(second, 0, 200_000)
    assert local.sent[FILE] == 250_000


def test_what_stops_it_keeps_what_has_come(fetcher: Fetcher, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    came = 0

    def tick(count: int) -> None:
        nonlocal came
        came += count
        if came > SIZE // 2:
            raise Stop

    with pytest.raises(Stop):
        with SparseFile(tmp_path / FILE, SIZE) as file:
            fetcher.fill(file, [(0, SIZE)], tick)
    (start, end), *_ = Record.read(tmp_path / FILE, SIZE).filled
    assert (start, end) == (0, came)
    assert (tmp_path / FILE).read_bytes()[:end] == DATA[:end]


def test_a_sender_that_stalls_is_left_and_asked_again(local: LocalHub, listing: Listing, file: SparseFile) -> None:
    local.faults.hold_after_bytes = 50_000
    unheld = threading.Thread(target=unhold_when_held, args=(local.faults,))
    unheld.start()
    fetcher_of(local, listing, timeout_s=0.3).fill(file, [(0, SIZE)])
    unheld.join()
    assert file.path.read_bytes() == DATA


def unhold_when_held(faults: Faults) -> None:
    faults.held.wait(20)
    faults.hold_after_bytes = None


def test_no_progress_is_given_up_and_says_why(local: LocalHub, listing: Listing, file: SparseFile) -> None:
    local.faults.cdn_statuses = [503] * 1000
    with pytest.raises(HubUnreachable, match=r"HTTP 503 for model\.safetensors of acme/tiny.*nothing came for"):
        fetcher_of(local, listing, deadline_s=0.1).fill(file, [(0, 100)])


def test_a_hub_nobody_is_at_is_given_up(listing: Listing, file: SparseFile) -> None:
    fetcher = Fetcher(Hub("http://127.0.0.1:9"), listing, Patience(0.05, Backoff(0.01, 0.02)))
    with pytest.raises(HubUnreachable, match="ConnectError"):
        fetcher.fill(file, [(0, 100)])


def lie_about_length(faults: Faults) -> None:
    faults.extra_total = 1


def lie_about_content(faults: Faults) -> None:
    faults.linked_etag = "0" * 64


def answer_whole(faults: Faults) -> None:
    faults.has_ranges = False


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lie_about_length, r"model\.safetensors has 400001 bytes at 127\.0\.0\.1, and 400000 as the hub lists it"),
        (lie_about_content, r"model\.safetensors is another file now, with SHA-256 0+, than the hub listed"),
        (answer_whole, "answers no byte ranges"),
    ],
)
def test_a_lie_is_refused_at_once(
    local: LocalHub, fetcher: Fetcher, file: SparseFile, lie: Callable[[Faults], None], words: str
) -> None:
    lie(local.faults)
    with pytest.raises(ModelError, match=words):
        fetcher.fill(file, [(0, 100)])
    assert not file.known.filled


def test_other_bytes_than_were_asked_for_are_never_taken(local: LocalHub, listing: Listing, file: SparseFile) -> None:
    local.faults.shift = 7
    with pytest.raises(HubUnreachable, match="answers bytes 7-106 of"):
        fetcher_of(local, listing, deadline_s=0.1).fill(file, [(0, 100)])
    assert not file.known.filled


def test_a_file_shorter_than_listed_is_named(local: LocalHub, listing: Listing, tmp_path: Path) -> None:
    listed = listing.files[FILE]
    longer = Listing(listing.name, listing.commit, {FILE: HubFile(SIZE + 10, listed.sha256)})
    with SparseFile(tmp_path / FILE, SIZE + 10) as file:
        with pytest.raises(ModelError, match=r"model\.safetensors of acme/tiny@\w+ is shorter than"):
            fetcher_of(local, longer).fill(file, [(SIZE, SIZE + 10)])


def test_a_file_that_changes_on_the_way_is_fetched_anew(local: LocalHub, fetcher: Fetcher, file: SparseFile) -> None:
    told: list[int] = []
    fetcher.fill(file, [(0, 1000)])
    local.faults.cdn_etag = '"moved"'
    fetcher.fill(file, [(0, 1000), (5000, 6000)], told.append)
    assert held(file, 0, 1000)
    assert held(file, 5000, 6000)
    assert sum(told) == 1000  # what was lost has been taken back
    assert local.asked[-1].headers.get("if-range") in (None, '"moved"')


def test_a_whole_files_hash_is_checked(local: LocalHub, fetcher: Fetcher, file: SparseFile) -> None:
    local.faults.corrupt = FILE
    fetcher.fill(file, [(0, 100)])
    assert not file.known.is_verified
    with pytest.raises(ModelError, match=r"came with SHA-256 \w+, but the hub lists \w+: thrown away; start again"):
        fetcher.fill(file, [(0, SIZE)])
    assert not file.known.filled
    local.faults.corrupt = ""
    fetcher.fill(file, [(0, SIZE)])
    assert file.known.is_verified


def test_a_small_file_is_checked_against_the_hash_that_git_has(local: LocalHub, listing: Listing) -> None:
    assert fetcher_of(local, listing).read("config.json") == b"{}"
    wrong = Listing(NAME, listing.commit, {"config.json": HubFile(2, git_sha1="0" * 40)})
    with pytest.raises(ModelError, match=r"config\.json came with another git hash"):
        fetcher_of(local, wrong).read("config.json")
    wrong = Listing(NAME, listing.commit, {"config.json": HubFile(2, sha256="0" * 64)})
    with pytest.raises(ModelError, match=r"config\.json came with another SHA-256"):
        fetcher_of(local, wrong).read("config.json")
    assert listing.files["config.json"].git_sha1 == hashlib.sha1(b"blob 2\0{}").hexdigest()
