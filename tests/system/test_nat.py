"""A chat over private networks behind real NAT, whose nodes nobody can reach, and which goes on when that NAT fails.

Three homes on a small internet (tests/lab/internet.py). One has the head, one the two other nodes behind the same
address; the third a second head. What goes wrong goes wrong in the middle of a generation, on a mesh that all tests
share, and the text must be what it is without.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.internet import Home, Internet, reaches
from tests.lab.namespaces import refusal
from tests.lab.publicsite import PublicSite
from tests.lab.site import Answer, assemble, events

PORT = 7002
PROMPT = "Tell me about the sea."
NUM_TOKENS = 300
NEVER_ENDS = {"2": -100}  # its end token
FAULT_AT = 20  # tokens that the client has seen by then
PING_S = 1.0  # the shipped one is ten times that


@dataclass
class Mesh:
    site: PublicSite
    model: str
    homes: dict[str, Home]  # by the node that lives there

    def arrivals(self) -> list[str]:
        """The address of each connection that a node made to the relay, so far."""
        return re.findall(r"is here from ([0-9.]+)", self.site.log())

    def cut_line(self, whose: str, seconds: float) -> None:
        self.homes[whose].unplug()
        time.sleep(seconds)
        self.homes[whose].plug()

    def chat(self, disturb: Callable[[], None] | None = None) -> Answer:
        """`disturb` is called when some tokens have come, and the answer isn't complete when it returns."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0,
        }
        body |= {"max_tokens": NUM_TOKENS, "logit_bias": NEVER_ENDS, "meshnet": {"trace": True}}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        with self.site.post("/v1/chat/completions", body, stream=True) as response:
            assert response.status_code == 200, response.text
            return assemble(disturbed(events(response), disturb))


def disturbed(stream: Iterator[dict[str, Any]], disturb: Callable[[], None] | None) -> Iterator[dict[str, Any]]:
    num_tokens = 0
    for event in stream:
        yield event
        num_tokens += len(event.get("meshnet", {}).get("ids", []))
        if disturb and num_tokens >= FAULT_AT:
            assert num_tokens < NUM_TOKENS / 2
            disturb()
            disturb = None


@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    if reason := refusal():
        pytest.skip(reason)
    with Internet() as made:
        yield made


@contextmanager
def mesh(internet: Internet, folder: Path, model: Path, *, tls: bool = False) -> Iterator[Mesh]:
    site = PublicSite(folder, internet, tls=tls, RELAY_PING_S=str(PING_S), TRUSTED_PROXIES="127.0.0.1")
    family = internet.home()
    homes = {"head": internet.home(), "middle": family, "tail": family}
    with site:
        site.model(model.name, wire_dtype="float32")
        nodes = []
        for name, layers in (("head", "0:3"), ("middle", "3:5"), ("tail", "5:7")):
            site.places[name] = homes[name].machine()
            reach = ("--relay-only",) if name == "head" else ("--listen", f"0.0.0.0:{PORT}")
            options = (*reach, "--dtype", "float32", "--drafts", "off", *site.trust)
            nodes.append(site.start_node(name, model, layers, *options, MESHNET_RELAY_PING_S=str(PING_S)))
        with site.serving(model.name, nodes):
            yield Mesh(site, model.name, homes)


@pytest.fixture(scope="module")
def private(internet: Internet, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with mesh(internet, tmp_path_factory.mktemp("private"), tiny) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(private: Mesh) -> Answer:
    return private.chat()


def test_no_node_is_reached_by_another_home_or_by_the_site_but_by_its_neighbour(
    internet: Internet, private: Mesh
) -> None:
    """They listen, so that it is the network that refuses."""
    family, places = private.homes["tail"], private.site.places
    assert reaches(places["middle"], family.address(places["tail"]), PORT)
    for outside in (places["head"], internet.public):
        for address in (family.address(places["tail"]), family.address(places["middle"]), family.public_address):
            assert not reaches(outside, address, PORT)


def test_a_chat_goes_through_all_of_them_and_the_two_of_one_home_come_from_one_address(
    private: Mesh, undisturbed: Answer
) -> None:
    assert undisturbed.paths == ["local", "tunnel", "tunnel"]
    assert len(undisturbed.ids) == NUM_TOKENS
    assert private.arrivals()[-3:].count(private.homes["tail"].public_address) == 2


@pytest.mark.parametrize("whose", ["tail", "head"])
def test_a_router_that_forgets_its_connections(private: Mesh, undisturbed: Answer, whose: str) -> None:
    """Neither end of a connection hears of it: what is sent is dropped."""
    home, before = private.homes[whose], private.arrivals()
    answer = private.chat(home.forget)
    assert_same(answer, undisturbed)
    assert home.public_address in private.arrivals()[len(before) :], "nothing was lost"


def test_a_router_that_forgets_its_connections_and_picks_them_up_again(private: Mesh, undisturbed: Answer) -> None:
    home, before = private.homes["tail"], private.arrivals()
    home.picks_up(True)
    answer = private.chat(home.forget)
    home.picks_up(False)
    assert_same(answer, undisturbed)
    assert private.arrivals() == before, "a connection was lost"


def test_a_line_that_is_down_for_a_moment(private: Mesh, undisturbed: Answer) -> None:
    before = private.arrivals()
    assert_same(private.chat(lambda: private.cut_line("tail", 0.5)), undisturbed)
    assert private.arrivals() == before, "a connection was lost"


def test_a_line_that_is_down_until_its_connections_are_lost(private: Mesh, undisturbed: Answer) -> None:
    before = private.arrivals()
    answer = private.chat(lambda: private.cut_line("tail", 3.5 * PING_S))
    assert_same(answer, undisturbed)
    assert len(private.arrivals()) >= len(before) + 2, "a connection outlived it"


@pytest.mark.parametrize("whose", ["tail", "head"])
def test_a_public_address_that_changes(private: Mesh, undisturbed: Answer, whose: str) -> None:
    home = private.homes[whose]
    assert_same(private.chat(home.change_address), undisturbed)
    assert home.public_address in private.arrivals(), "nobody came from the new address"


def assert_same(answer: Answer, undisturbed: Answer) -> None:
    assert answer.ids == undisturbed.ids
    assert answer.text == undisturbed.text
    assert answer.finish_reason == undisturbed.finish_reason
    assert answer.usage == undisturbed.usage
