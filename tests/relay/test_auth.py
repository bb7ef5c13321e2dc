from __future__ import annotations

import asyncio
import threading

import pytest

from relay import auth
from relay.auth import Authenticator, Identity, bearer
from relay.wire import Code, WireError

NODE = Identity("a", "m", approved=True)
PENDING = Identity("p", "m", approved=False, reason="waits")


class Directory:
    """The callable behind the authenticator: who is known, and how often it was asked."""

    def __init__(self) -> None:
        self.known = {"good": NODE, "pending": PENDING}
        self.num_asked = 0
        self.is_broken = False
        self.gate = threading.Event()
        self.gate.set()
        self.now = 0.0

    def __call__(self, credential: str) -> Identity | None:
        self.num_asked += 1
        identity = self.known.get(credential)
        if self.is_broken:
            raise RuntimeError("the database is away")
        assert self.gate.wait(10)
        return identity


@pytest.fixture
def directory() -> Directory:
    return Directory()


@pytest.fixture
def authenticator(directory: Directory) -> Authenticator:
    return Authenticator(directory, lambda: directory.now)


async def test_a_good_credential_is_asked_once_in_ten_seconds(
    directory: Directory, authenticator: Authenticator
) -> None:
    assert authenticator.known("good") is None
    assert await authenticator.identify("good", "addr") == NODE
    assert authenticator.known("good") == NODE
    directory.now = 9.9
    assert authenticator.known("good") == NODE
    directory.now = 10.0
    assert authenticator.known("good") is None
    assert directory.num_asked == 1


async def test_answers_that_have_expired_make_room(directory: Directory, authenticator: Authenticator) -> None:
    for number in range(100):
        directory.known[f"good {number}"] = NODE
        directory.now += 1
        await authenticator.identify(f"good {number}", "addr")
    assert len(authenticator._kept) <= 11


async def test_no_more_answers_are_kept_than_the_bound(
    directory: Directory, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "MAX_KEPT", 3)
    for number in range(5):
        directory.known[f"good {number}"] = NODE
        await authenticator.identify(f"good {number}", "addr")
    assert [number for number in range(5) if authenticator.known(f"good {number}")] == [2, 3, 4]


async def test_a_bad_credential_is_refused_and_not_kept(directory: Directory, authenticator: Authenticator) -> None:
    for _ in range(2):
        with pytest.raises(WireError, match="unknown or revoked") as caught:
            await authenticator.identify("bad", "addr")
        assert caught.value.code is Code.UNAUTHORIZED
    assert directory.num_asked == 2


async def test_who_waits_for_approval_is_not_kept_so_that_approval_shows_at_once(
    directory: Directory, authenticator: Authenticator
) -> None:
    assert await authenticator.identify("pending", "addr") == PENDING
    assert authenticator.known("pending") is None


async def test_it_keeps_no_credential_in_the_clear(authenticator: Authenticator) -> None:
    await authenticator.identify("good", "addr")
    assert "good" not in repr(vars(authenticator))


async def test_a_forgotten_peer_is_asked_again(directory: Directory, authenticator: Authenticator) -> None:
    await authenticator.identify("good", "addr")
    authenticator.forget("other")
    assert authenticator.known("good") == NODE
    authenticator.forget("a")
    assert authenticator.known("good") is None


async def test_an_answer_from_before_a_revocation_does_not_count(
    directory: Directory, authenticator: Authenticator
) -> None:
    directory.gate.clear()
    task = asyncio.create_task(authenticator.identify("good", "addr"))
    while not directory.num_asked:
        await asyncio.sleep(0)
    del directory.known["good"]
    authenticator.forget("a")
    directory.gate.set()
    with pytest.raises(WireError):
        await task
    assert authenticator.known("good") is None


async def test_sockets_that_bring_the_same_credential_share_one_question(
    directory: Directory, authenticator: Authenticator
) -> None:
    directory.gate.clear()
    tasks = [asyncio.create_task(authenticator.identify("good", "addr")) for _ in range(20)]
    while not directory.num_asked:
        await asyncio.sleep(0)
    tasks[0].cancel()  # the one that asked first leaves
    directory.gate.set()
    assert await asyncio.gather(*tasks[1:]) == [NODE] * 19
    assert directory.num_asked == 1


async def test_questions_that_wait_are_bounded(
    directory: Directory, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "MAX_LOOKUPS", 2)
    directory.gate.clear()
    tasks = [asyncio.create_task(authenticator.identify(name, "addr")) for name in ("good", "pending")]
    await asyncio.sleep(0)
    with pytest.raises(WireError, match="try again") as caught:
        await authenticator.identify("third", "addr")
    assert caught.value.code is Code.BUSY
    directory.gate.set()
    assert await asyncio.gather(*tasks) == [NODE, PENDING]


async def test_an_address_with_many_bad_credentials_waits_and_then_is_told_so(
    directory: Directory, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        with pytest.raises(WireError):
            await authenticator.identify("bad", "2001:db8::1")
    monkeypatch.setattr(auth, "MAX_WAITING_PER_ADDRESS", 1)
    waiting = asyncio.create_task(authenticator.identify("good", "2001:db8::2"))
    await asyncio.sleep(0)
    with pytest.raises(WireError, match="in a minute") as caught:
        await authenticator.identify("good", "2001:db8::3")  # of the same household
    assert caught.value.code is Code.RATE_LIMITED
    assert await authenticator.identify("good", "elsewhere") == NODE
    assert await waiting == NODE


async def test_a_directory_that_fails_is_not_an_answer(authenticator: Authenticator, directory: Directory) -> None:
    directory.is_broken = True
    with pytest.raises(RuntimeError):
        await authenticator.identify("good", "addr")
    directory.is_broken = False
    assert await authenticator.identify("good", "addr") == NODE


def test_the_bearer_is_read_from_the_handshake() -> None:
    assert bearer([(b"host", b"x"), (b"authorization", b"bearer  k1.secret ")]) == "k1.secret"
    for value in (b"", b"Bearer", b"Bearer ", b"Basic abc"):
        with pytest.raises(WireError, match="Authorization: Bearer") as caught:
            bearer([(b"authorization", value)])
        assert caught.value.code is Code.UNAUTHORIZED
    with pytest.raises(WireError):
        bearer([])
