from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodes.backoff import Backoff
from nodes.membership import REMINDER_S, Membership, NoCredential
from nodes.registration import Standing
from nodes.state import NodeState, StateError
from nodes.tracker import Tracker, TrackerRefused, TrackerUnreachable, TrackerUntrusted
from tests.nodes.meshes import shared_tls
from tests.nodes.trackers import FACTS, Answer, MiniTracker, refusal, registered, standing


class Joining:
    """A membership with next to no pauses, its tracker and its state."""

    def __init__(
        self,
        folder: Path,
        site: MiniTracker,
        key: str | None,
        join_token: str = "join.token",
        endpoint: str | None = None,
    ) -> None:
        self.site, self.stopping = site, threading.Event()
        self.state = NodeState(folder)
        self.state.open()
        if key:
            self.state.write_key(key)
        self.tracker = Tracker(site.url, shared_tls())
        self.heard: list[Standing] = []
        self.membership = Membership(
            self.tracker,
            self.state,
            replace(FACTS, endpoint=endpoint),
            join_token,
            self.stopping,
            Backoff(0.02, 0.02),
            first_deadline_s=0.3,
            revoked_pause_s=0.02,
        )
        self.membership.hear = self.heard.append

    def close(self) -> None:
        self.stopping.set()
        self.membership._wake.set()
        if self.membership._thread.is_alive():
            self.membership._thread.join(10)
        self.tracker.close()
        self.state.close()


Make = Callable[..., Joining]


@pytest.fixture
def site() -> Iterator[MiniTracker]:
    with MiniTracker() as started:
        yield started


@pytest.fixture
def joining(tmp_path: Path, site: MiniTracker) -> Iterator[Make]:
    made: list[Joining] = []

    def make(key: str | None = None, **options: Any) -> Joining:
        made.append(Joining(tmp_path / "state", site, key, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def answers(*sequence: Answer) -> Callable[[str], Answer]:
    """One after the other; the last one stays."""
    left = list(sequence)
    return lambda verb: left.pop(0) if len(left) > 1 else left[0]


def test_a_node_joins_with_its_token_and_keeps_the_key_it_gets(joining: Make, site: MiniTracker) -> None:
    node = joining()
    registration = node.membership.join()

    assert registration
    assert site.asked[0][:2] == ("register", "join.token")
    assert node.state.read_key() == "n.k"
    assert node.membership.approved.is_set()
    assert node.heard


def test_the_next_time_it_comes_with_its_key(joining: Make, site: MiniTracker) -> None:
    joining(key="old.key").membership.join()

    assert site.asked[0][:2] == ("register", "old.key")


def test_a_key_that_the_tracker_doesnt_know_is_replaced_by_joining_again(joining: Make, site: MiniTracker) -> None:
    site.answer = answers(refusal(401, "unauthorized"), registered(node_key="new.key"))
    node = joining(key="old.key")
    node.membership.join()

    assert [credential for _, credential, _ in site.asked] == ["old.key", "join.token"]
    assert node.state.read_key() == "new.key"


def test_without_key_and_token_it_says_what_to_give(joining: Make) -> None:
    with pytest.raises(NoCredential, match="--join-token"):
        joining(join_token="").membership.join()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "unauthorized"),
        (401, "revoked"),
        (409, "fingerprint_mismatch"),
        (409, "name_taken"),
        (426, "upgrade"),
        (400, "x"),
    ],
)
def test_a_refused_join_ends_at_once(joining: Make, site: MiniTracker, status: int, code: str) -> None:
    site.answer = lambda verb: refusal(status, code, "that is why")
    with pytest.raises(TrackerRefused, match="that is why"):
        joining().membership.join()
    assert len(site.asked) == 1


def test_a_tracker_that_fails_at_first_is_tried_again(joining: Make, site: MiniTracker) -> None:
    site.answer = answers((500, b""), (502, b""), registered(node_key="n.k"))

    assert joining().membership.join()
    assert len(site.asked) == 3


def test_at_first_start_a_tracker_that_cant_be_reached_is_given_up(joining: Make, site: MiniTracker) -> None:
    site.answer = lambda verb: (500, b"")
    started = time.monotonic()
    with pytest.raises(TrackerUnreachable):
        joining().membership.join()
    assert time.monotonic() - started < 5
    assert len(site.asked) > 2


def test_a_tracker_that_cant_be_trusted_is_given_up_at_once(joining: Make) -> None:
    node = joining()

    def untrusted(*arguments: object) -> None:
        raise TrackerUntrusted("self-signed certificate")

    node.tracker.register = untrusted  # type: ignore[method-assign, assignment]
    started = time.monotonic()
    with pytest.raises(TrackerUntrusted):
        node.membership.join()
    assert time.monotonic() - started < node.membership._first_deadline_s


def test_told_to_stop_it_doesnt_join(joining: Make, site: MiniTracker) -> None:
    site.answer = lambda verb: (500, b"")
    node = joining()
    threading.Timer(0.05, node.stopping.set).start()

    assert node.membership.join() is None


def test_a_revoked_key_is_tried_three_times_and_then_it_ends(joining: Make, site: MiniTracker) -> None:
    site.answer = lambda verb: refusal(401, "revoked", "the key was revoked")
    with pytest.raises(TrackerRefused, match="revoked"):
        joining(key="old.key").membership.join()
    assert len(site.asked) == 3


def test_a_key_revoked_while_it_runs_is_tried_three_times_and_then_it_stops(
    joining: Make, site: MiniTracker, caplog: pytest.LogCaptureFixture
) -> None:
    site.answer = lambda verb: (
        registered() if verb == "register" else refusal(401, "revoked", "revoked by the operator")
    )
    node = joining(key="old.key")
    node.membership.join()
    node.membership.start()

    assert node.stopping.wait(10)
    assert isinstance(node.membership.failure, TrackerRefused)
    assert site.verbs.count("heartbeat") == 3
    assert "revoked by the operator (try 1 of 3)" in caplog.text
    assert not node.membership.approved.is_set()


def test_a_new_key_is_kept_shown_at_once_and_used_by_whoever_shows_one(joining: Make, site: MiniTracker) -> None:
    site.answer = answers(
        registered(node_key="old.key", heartbeat_s=3600), standing(new_key="new.key", heartbeat_s=3600), standing()
    )
    node = joining()
    registration = node.membership.join()
    assert registration
    assert str(registration.node_key) == "old.key"
    node.membership.start()
    node.membership.tell()  # a first heartbeat at once
    site.wait_for("heartbeat", 2)

    assert [credential for _, credential, _ in site.asked[:3]] == ["join.token", "old.key", "new.key"]
    assert node.state.read_key() == str(registration.node_key) == "new.key"
    assert "new.key" not in repr(registration)


def test_a_new_key_that_cant_be_kept_isnt_used(
    joining: Make, site: MiniTracker, caplog: pytest.LogCaptureFixture
) -> None:
    site.answer = answers(registered(node_key="old.key", new_key="new.key"), standing())
    node = joining()
    write_key = node.state.write_key

    def full(key: str) -> None:
        if key == "new.key":
            raise StateError("the disk is full")
        write_key(key)

    node.state.write_key = full  # type: ignore[method-assign]
    registration = node.membership.join()
    assert registration
    assert str(registration.node_key) == node.state.read_key() == "old.key"
    assert "the disk is full" in caplog.text


def test_a_banned_node_waits_says_it_once_and_comes_back(
    joining: Make, site: MiniTracker, caplog: pytest.LogCaptureFixture
) -> None:
    banned = refusal(403, "banned", "node one is banned until 10:00 UTC: it lies")
    site.answer = answers(registered(node_key="n.k"), banned, banned, refusal(409, "not_registered"), registered())
    node = joining()
    node.membership.join()
    node.membership.start()
    site.wait_for("register", 2)

    assert not node.stopping.is_set()
    assert site.verbs[:5] == ["register", "heartbeat", "heartbeat", "heartbeat", "register"]
    assert caplog.text.count("banned until 10:00 UTC: it lies") == 1
    assert node.membership.approved.wait(10)


def test_a_key_that_becomes_unknown_while_it_runs_ends_it(joining: Make, site: MiniTracker) -> None:
    site.answer = lambda verb: registered() if verb == "register" else refusal(401, "unauthorized")
    node = joining(key="old.key")
    node.membership.join()
    node.membership.start()

    assert node.stopping.wait(10)
    assert site.verbs.count("heartbeat") == 1


def test_a_node_that_waits_for_approval_says_so_once_and_goes_on_when_it_comes(
    joining: Make, site: MiniTracker, caplog: pytest.LogCaptureFixture
) -> None:
    site.answer = answers(
        registered(status="pending", node_key="n.k"), standing(status="pending"), standing(status="pending"), standing()
    )
    node = joining()
    with caplog.at_level(logging.INFO):
        node.membership.join()
        assert not node.membership.approved.is_set()
        node.membership.start()
        assert node.membership.approved.wait(10)
    assert caplog.text.count("Waiting for approval") == 1
    assert caplog.text.count("Approved") == 1


def test_a_running_node_outlives_its_tracker(
    joining: Make, site: MiniTracker, caplog: pytest.LogCaptureFixture
) -> None:
    site.answer = answers(registered(node_key="n.k"), (500, b""), (503, b""), (500, b""), standing())
    node = joining()
    with caplog.at_level(logging.INFO):
        node.membership.join()
        node.membership.start()
        site.wait_for("heartbeat", 5)
    assert not node.stopping.is_set()
    assert caplog.text.count("The tracker can't be reached") == 1
    assert caplog.text.count("The tracker is back") == 1


def test_a_heartbeat_that_fails_is_tried_again_before_the_next_is_due(joining: Make, site: MiniTracker) -> None:
    """What was kept open to the tracker may be dead, and a new connection work."""
    site.answer = answers(registered(node_key="n.k", heartbeat_s=3600), (503, b""), standing(heartbeat_s=3600))
    node = joining()
    node.membership.join()
    node.membership.start()
    node.membership.serving()  # a first heartbeat at once
    site.wait_for("heartbeat", 2)


def test_a_tracker_that_stays_away_is_asked_ever_more_seldom_at_random_times(tmp_path: Path, site: MiniTracker) -> None:
    draws = iter([1.0] * 7 + [0.25])
    node = Joining(tmp_path / "state", site, "n.k")
    node.membership._backoff = Backoff(1.0, 30.0, lambda: next(draws))
    pauses = [node.membership._lost(TrackerUnreachable("HTTP 500")) for _ in range(8)]
    node.close()

    usual_s = node.membership._heartbeat_s
    assert pauses[0] == 1, "at once, nearly: perhaps only the kept connection is dead"
    assert [pause_s - usual_s for pause_s in pauses[1:]] == [2, 4, 8, 16, 30, 30, 7.5]


def test_a_tracker_that_stays_away_is_named_again_now_and_then(joining: Make, caplog: pytest.LogCaptureFixture) -> None:
    membership = joining(key="n.k").membership
    membership._lost(TrackerUnreachable("HTTP 500"))
    membership._lost(TrackerUnreachable("HTTP 500"))
    assert len(caplog.records) == 1
    assert membership._lost_at
    membership._lost_at = membership._said_at = membership._lost_at - REMINDER_S
    membership._lost(TrackerUnreachable("HTTP 502"))

    assert "hasn't been reached for 10 minutes: HTTP 502" in caplog.text


def test_a_lease_that_the_tracker_ended_is_begun_anew(joining: Make, site: MiniTracker) -> None:
    site.answer = answers(
        registered(node_key="n.k"),
        standing(),
        refusal(409, "not_registered"),
        (500, b""),
        registered(registration="r2"),
        standing(),
    )
    node = joining()
    node.membership.join()
    node.membership.start()
    site.wait_for("heartbeat", 4)

    assert site.verbs[:6] == ["register", "heartbeat", "heartbeat", "register", "register", "heartbeat"]
    assert site.asked[4][1] == "n.k"
    assert [told(site, number) for number in (1, 2, 5, 6)] == [("r1", 1), ("r1", 2), ("r2", 1), ("r2", 2)]


def told(site: MiniTracker, number: int) -> tuple[str, int]:
    message = site.asked[number][2]
    return message["registration"], message["number"]


def test_a_heartbeat_that_wasnt_answered_has_used_up_its_number(joining: Make, site: MiniTracker) -> None:
    site.answer = answers(registered(node_key="n.k"), (500, b""), standing())
    node = joining()
    node.membership.join()
    node.membership.start()
    site.wait_for("heartbeat", 2)

    assert [told(site, number) for number in (1, 2)] == [("r1", 1), ("r1", 2)]


def test_told_to_renew_it_registers_at_once_with_what_it_is_now(joining: Make, site: MiniTracker) -> None:
    site.answer = answers(registered(node_key="n.k", heartbeat_s=60), (500, b""), registered(heartbeat_s=60))
    node = joining()
    node.membership.join()
    node.membership.start()
    node.membership.renew(replace(FACTS, endpoint="http://192.0.2.7:7002"))
    site.wait_for("register", 2)
    assert site.asked[1][2]["endpoint"] == "http://192.0.2.7:7002"


def test_each_answer_is_heard_and_each_heartbeat_brings_news(joining: Make, site: MiniTracker) -> None:
    node = joining()
    node.membership.news = lambda: {"state": "serving", "cached_tokens": 7}
    node.membership.join()
    node.membership.start()
    site.wait_for("heartbeat", 2)

    assert site.asked[1][2] == {"state": "serving", "cached_tokens": 7, "registration": "r1", "number": 1}
    assert len(node.heard) >= 2


def test_leaving_ends_the_lease(joining: Make, site: MiniTracker) -> None:
    node = joining()
    node.membership.join()
    node.membership.start()
    node.membership.leave()
    num_asked = len(site.asked)

    assert site.asked[-1][:2] == ("unregister", "n.k")
    assert not node.membership._thread.is_alive()
    assert len(site.asked) == num_asked


def test_a_tracker_that_cant_be_told_doesnt_hold_the_node(
    joining: Make, site: MiniTracker, caplog: pytest.LogCaptureFixture
) -> None:
    node = joining()
    node.membership.join()
    site.answer = lambda verb: (500, b"")
    node.membership.leave()

    assert "couldn't be told" in caplog.text


def test_an_endpoint_is_looked_at_as_soon_as_it_answers(
    joining: Make, site: MiniTracker, caplog: pytest.LogCaptureFixture
) -> None:
    site.answer = answers(
        registered(node_key="n.k", heartbeat_s=0.2, endpoint_error="status 503"),
        standing(endpoint_error="refused"),
        standing(),
    )
    node = joining(endpoint="http://127.0.0.1:1")
    node.membership.join()
    assert "503" not in caplog.text  # nothing could be there yet
    node.membership.start()
    node.membership.serving()
    assert node.membership.endpoint_tried.wait(10)
    assert node.membership.endpoint_proved.wait(10)
    assert "can't use this node's endpoint: refused" in caplog.text
