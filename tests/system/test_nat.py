"""A chat over private networks behind real NAT, whose nodes nobody can reach, and which goes on when that NAT fails.

Two homes on a small internet (tests/lab/internet.py): one has the head, the other the two nodes after it, behind one
address; the site has TLS in front. What goes wrong goes wrong in the middle of a generation, no other node could take
over, and the text must be what it is without.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.internet import PUBLIC_ADDRESS, Home, Internet, reaches
from tests.lab.publicsite import PublicSite
from tests.lab.site import Answer, assemble, events

LAYERS = {"head": "0:3", "middle": "3:5", "tail": "5:7"}
PORT = 7002
NUM_TOKENS = 300
FAULT_AT = 20  # tokens that the client has seen by then
NEVER_ENDS = {"2": -100}  # its end token
PING_S = 1.0  # the shipped one is ten times that
LONG_S = 3.5 * PING_S  # until both ends of a connection have given it up


@dataclass
class Mesh:
    site: PublicSite
    model: str
    homes: dict[str, Home]  # by the node that lives there

    def chat(self, disturb: Callable[[], None] | None = None) -> Answer:
        """`disturb` is called when some tokens have come and many are to come."""
        self.site.forgive()
        self.site.wait_for_model(self.model, 60)
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": "Tell me of the sea."}]}
        body |= {"temperature": 0, "max_tokens": NUM_TOKENS, "logit_bias": NEVER_ENDS, "meshnet": {"trace": True}}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        with self.site.post("/v1/chat/completions", body, stream=True) as response:
            assert response.status_code == 200, response.text
            return assemble(disturbed(events(response), disturb))

    def cut_line(self, whose: str, seconds: float) -> None:
        self.homes[whose].unplug()
        time.sleep(seconds)
        self.homes[whose].plug()

    def arrivals(self) -> list[str]:
        """The address of each connection that a node has made to the relay."""
        return re.findall(r"is here from ([0-9.]+)", self.site.log())


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
def private(internet: Internet, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    family = internet.home()
    homes = {"head": internet.home(), "middle": family, "tail": family}
    with PublicSite(tmp_path_factory.mktemp("private"), internet, RELAY_PING_S=str(PING_S)) as site:
        site.model(tiny.name, wire_dtype="float32")
        nodes = []
        for name, layers in LAYERS.items():
            site.places[name] = homes[name].machine()
            reach = ("--relay-only",) if name == "head" else ("--listen", f"0.0.0.0:{PORT}")
            options = (*reach, "--ca-file", str(site.ca_file), "--dtype", "float32", "--drafts", "off")
            nodes.append(site.start_node(name, tiny, layers, *options, MESHNET_RELAY_PING_S=str(PING_S)))
        with site.serving(tiny.name, nodes):
            yield Mesh(site, tiny.name, homes)
            for node in nodes:
                node.kill()  # leaving would wait for a heartbeat on a connection that is dead by now


@pytest.fixture(scope="module")
def undisturbed(private: Mesh) -> Answer:
    return private.chat()


def test_no_node_is_reached_from_another_home_or_from_the_site_but_by_its_neighbour(
    internet: Internet, private: Mesh
) -> None:
    """They listen: it is the network that refuses."""
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
    assert all(f"wss://{PUBLIC_ADDRESS}/ws" in node.output for node in private.site.nodes)
    head, family = private.homes["head"], private.homes["tail"]
    assert sorted(private.arrivals()[:3]) == sorted([head.public_address, family.public_address, family.public_address])


@pytest.mark.parametrize("whose", ["tail", "head"])
def test_a_router_that_forgets_its_connections(private: Mesh, undisturbed: Answer, whose: str) -> None:
    """Neither end of a connection hears of it: what is sent is dropped."""
    home, num_before = private.homes[whose], len(private.arrivals())
    assert_same(private.chat(home.forget), undisturbed)
    assert home.public_address in private.arrivals()[num_before:], "no connection was lost"


def test_a_router_that_forgets_its_connections_and_takes_them_up_again(private: Mesh, undisturbed: Answer) -> None:
    home = private.homes["tail"]
    home.picks_up(True)
    assert_same(private.chat(home.forget), undisturbed)
    home.picks_up(False)


@pytest.mark.parametrize("seconds", [0.5, LONG_S])
def test_a_line_that_is_down_for_a_while(private: Mesh, undisturbed: Answer, seconds: float) -> None:
    """For a moment, which connections outlive; and until they are lost."""
    num_before = len(private.arrivals())
    assert_same(private.chat(lambda: private.cut_line("tail", seconds)), undisturbed)
    assert seconds < LONG_S or len(private.arrivals()) >= num_before + 2, "no connection was lost"


@pytest.mark.parametrize("whose", ["tail", "head"])
def test_a_public_address_that_changes(private: Mesh, undisturbed: Answer, whose: str) -> None:
    home = private.homes[whose]
    assert_same(private.chat(home.change_address), undisturbed)
    assert home.public_address in private.arrivals(), "nobody has come from the new address"


def assert_same(answer: Answer, undisturbed: Answer) -> None:
    assert answer.ids == undisturbed.ids
    assert answer.text == undisturbed.text
    assert answer.finish_reason == undisturbed.finish_reason
    assert answer.usage == undisturbed.usage
