from __future__ import annotations

import pytest

from relay import throttle
from relay.throttle import Throttle


def test_a_few_bad_credentials_cost_nothing() -> None:
    slow = Throttle(lambda: 0.0)
    for _ in range(4):
        slow.failed("a")
    assert slow.wait_s("a") == 0


def test_waits_double_up_to_a_bound_and_are_of_one_address() -> None:
    slow, waits = Throttle(lambda: 0.0), []
    for _ in range(10):
        slow.failed("a")
        waits.append(slow.wait_s("a"))
    assert waits == [0, 0, 0, 0, 0.25, 0.5, 1, 2, 3, 3]
    assert slow.wait_s("b") == 0


def test_failures_are_forgotten_with_time() -> None:
    now = [0.0]
    slow = Throttle(lambda: now[0])
    for _ in range(5):
        slow.failed("a")
    now[0] = 10.0
    assert slow.wait_s("a") == 0
    now[0] = 1000.0
    slow.failed("a")
    assert slow.wait_s("a") == 0


def test_it_remembers_a_bounded_number_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_ADDRESSES", 2)
    slow = Throttle(lambda: 0.0)
    for _ in range(5):
        slow.failed("first")
    for address in ("second", "third"):
        slow.failed(address)
    assert slow.wait_s("first") == 0


def test_a_wait_may_be_counted_from_the_last_failure() -> None:
    now = [0.0]
    slow = Throttle(lambda: now[0])
    for _ in range(7):
        slow.failed("a")
    assert slow.left_s("a") == 1.0
    now[0] = 0.75
    assert slow.left_s("a") == 0.25
    now[0] = 2.0
    assert slow.left_s("a") == 0
    assert slow.left_s("b") == 0


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "10.0.0.2", False),
        ("junk:", "junk:", True),
    ],
)
def test_an_ipv6_network_is_one_address(first: str, second: str, is_one: bool) -> None:
    assert (throttle.owner(first) == throttle.owner(second)) is is_one
