"""A node behind a forwarded port is dialled where its owner says, once it has proved that it is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.lab.faultproxy import FaultProxy
from tests.lab.processes import free_port
from tests.lab.site import Site

MODEL = "tiny-forwarded"
PROMPT = "What is the quick brown fox?"


def test_a_forwarded_port_is_used_once_the_node_behind_it_has_proved_its_key(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    folder, port = alias(tiny, MODEL), free_port()
    with FaultProxy(("127.0.0.1", port)) as forwarding:
        public_url = f"http://127.0.0.1:{forwarding.port}"
        reach = ("--listen", f"127.0.0.1:{port}", "--no-relay", "--public-url", public_url)
        head = site.start_node(f"{MODEL}-head", folder, "0:4")
        tail = site.start_node(f"{MODEL}-tail", folder, "4:7", *reach)
        with site.serving(MODEL, [head, tail]):
            answer = site.chat(MODEL, PROMPT, max_tokens=6)

    assert answer.paths == ["local", "direct"]
    assert f"Others reach it at {public_url}" in tail.output


def test_an_address_at_which_another_node_answers_is_refused_and_both_are_told(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    folder, port = alias(tiny, f"{MODEL}-other"), free_port()
    other = site.start_node(f"{MODEL}-other", folder, "0:7", "--listen", f"127.0.0.1:{port}")
    other.wait_for("Ready: layers")
    reach = ("--listen", "auto", "--public-url", f"http://127.0.0.1:{port}")
    node = site.start_node(f"{MODEL}-wrong", folder, "0:7", *reach)
    warning = node.wait_for(r"can't use this node's endpoint: .*")[0]
    node.wait_for("Ready: layers")  # through the relay
    for process in (other, node):
        process.stop()
        site.nodes.remove(process)

    assert f"127.0.0.1:{port} answers, but doesn't hold this node's key" in warning
    assert "its endpoint isn't used" in site.log()
