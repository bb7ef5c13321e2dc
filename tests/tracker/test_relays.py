"""Models spread over relays, each model at one."""

from __future__ import annotations

from collections import Counter

from tracker.relays import relay_of

URLS = [f"wss://{name}.example.org" for name in "abcd"]
MODELS = [f"model-{number}" for number in range(1000)]


def test_one_relay_has_everything() -> None:
    assert relay_of("m", URLS[:1]) == URLS[0]


def test_the_order_in_which_relays_are_named_changes_nothing() -> None:
    assert [relay_of(it, URLS) for it in MODELS] == [relay_of(it, URLS[::-1]) for it in MODELS]


def test_models_are_spread() -> None:
    counts = Counter(relay_of(it, URLS) for it in MODELS)
    assert set(counts) == set(URLS)
    assert min(counts.values()) > 200


def test_a_relay_that_goes_moves_only_its_own_models() -> None:
    moved = [it for it in MODELS if relay_of(it, URLS) != relay_of(it, URLS[:3])]
    assert {relay_of(it, URLS) for it in moved} == {URLS[3]}
