from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.tracker import Tracker, TrackerRefused, TrackerUnreachable, TrackerUntrusted
from relay.wire import PROTOCOL_VERSION, WIRE_VERSIONS
from tests.nodes.certificates import tls_pair
from tests.nodes.meshes import shared_tls
from tests.nodes.trackers import FACTS, MiniTracker, refusal, registered, standing


@pytest.fixture
def site() -> Iterator[MiniTracker]:
    with MiniTracker() as started:
        yield started


@pytest.fixture
def tracker(site: MiniTracker) -> Iterator[Tracker]:
    made = Tracker(site.url + "/", shared_tls())
    yield made
    made.close()


def test_registering_says_what_the_node_is(site: MiniTracker, tracker: Tracker) -> None:
    registration = tracker.register("join.token", FACTS)

    assert (registration.node_key, registration.peer_id) == ("n.k", "ab" * 16)
    assert registration.standing.is_approved
    verb, credential, message = site.asked[0]
    assert (verb, credential) == ("register", "join.token")
    assert message["protocol_version"] == PROTOCOL_VERSION
    assert message["wire_versions"] == list(WIRE_VERSIONS)
    assert message["model"] == {
        "name": "tiny",
        "fingerprint": "f" * 64,
        "num_layers": 4,
        "hidden_size": 8,
        "context_length": 64,
        "layer_bytes": None,
        "head_bytes": None,
        "tail_bytes": None,
    }
    assert (message["start_layer"], message["end_layer"], message["relay"], message["endpoint"]) == (0, 2, True, None)


def test_a_node_that_has_a_key_keeps_it(site: MiniTracker, tracker: Tracker) -> None:
    site.answer = lambda verb: registered()

    assert tracker.register("my.key", FACTS).node_key == "my.key"


def test_a_heartbeat_brings_time_and_keys(site: MiniTracker, tracker: Tracker) -> None:
    site.answer = lambda verb: standing(now=5.5, ticket_keys={"k1": "abc"}, heartbeat_s=1.5, status="pending")
    heard = tracker.heartbeat("my.key", {"state": "serving"})

    assert (heard.now, heard.ticket_keys, heard.heartbeat_s, heard.is_approved) == (5.5, {"k1": "abc"}, 1.5, False)
    assert site.asked[0] == ("heartbeat", "my.key", {"state": "serving"})


@pytest.mark.parametrize("status", [400, 401, 403, 409, 426])
def test_a_refusal_has_the_trackers_words(site: MiniTracker, tracker: Tracker, status: int) -> None:
    site.answer = lambda verb: refusal(status, "some_code", "because of that")
    with pytest.raises(TrackerRefused, match="because of that") as refused:
        tracker.register("t", FACTS)
    assert (refused.value.status, refused.value.code) == (status, "some_code")


def test_a_revoked_key_is_told_from_an_unknown_one(site: MiniTracker, tracker: Tracker) -> None:
    for code, is_revoked in (("revoked", True), ("unauthorized", False)):
        site.answer = lambda verb, code=code: refusal(401, code)  # type: ignore[misc]
        with pytest.raises(TrackerRefused) as refused:
            tracker.heartbeat("t", {})
        assert refused.value.is_revoked == is_revoked


@pytest.mark.parametrize("answer", [(500, b"boom"), (503, refusal(503, "x")[1]), (429, b""), (502, b"<html>")])
def test_an_answer_that_says_later_is_no_refusal(site: MiniTracker, tracker: Tracker, answer: Any) -> None:
    site.answer = lambda verb: answer
    with pytest.raises(TrackerUnreachable):
        tracker.register("t", FACTS)


@pytest.mark.parametrize(
    "answer", [(404, b"<html>"), (302, b""), (200, b"<html>"), (200, {}), (200, []), (200, {"status": 7})]
)
def test_what_is_no_tracker_is_refused(site: MiniTracker, tracker: Tracker, answer: Any) -> None:
    site.answer = lambda verb: answer
    with pytest.raises(TrackerRefused):
        tracker.register("t", FACTS)
    assert len(site.asked) == 1  # a redirect isn't followed


def test_a_tracker_that_isnt_there_is_unreachable_and_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TrackerUnreachable, match="Connection refused"):
        Tracker(f"http://127.0.0.1:{port}", shared_tls()).register("t", FACTS)


def test_no_proxy_of_the_environment_comes_in_between(
    site: MiniTracker, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert tracker.register("t", FACTS)


def test_a_private_authority_is_trusted_when_it_is_given(tmp_path: Path) -> None:
    server_tls, client_tls = tls_pair(tmp_path)
    with MiniTracker() as site:
        site._server.socket = server_tls.wrap_socket(site._server.socket, server_side=True)
        url = site.url.replace("http:", "https:")
        trusting, doubting = Tracker(url, client_tls), Tracker(url, ssl.create_default_context())

        assert trusting.register("t", FACTS).peer_id
        with pytest.raises(TrackerUntrusted, match=r"certificate.*--ca-file"):
            doubting.register("t", FACTS)
        trusting.close()
        doubting.close()
