"""Programs written from the decision record alone take part in a real mesh: as the caller of a hop, and as a hop.

What they are given is a credential and a ticket, as opaque strings.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.lab.ends import Envelope
from tests.lab.record import Caller, Peer
from tests.lab.site import Site

SIGN = """
import json, sys, time
from tracker.models import LanguageModel
from tracker.tickets import sign, signing_keys
asked = json.loads({asked!r})
model = LanguageModel.objects.get(name=asked.pop("model"))
fields = dict(epoch=0, dtype="bfloat16", max_tokens=100, seed=1, expires=int(time.time()) + 600) | asked
fields["fingerprint"] = fields.get("fingerprint", model.fingerprint)
print("TICKET", sign(signing_keys()[0], **fields))
"""


def ticket(site: Site, model: str, session: str, hops: list[tuple[str, int, int]], **changes: Any) -> str:
    """A ticket as the tracker signs it, with `changes`."""
    asked = json.dumps({"model": model, "session": session, "hops": hops, **changes})
    return site.manage("shell", "--no-imports", "-c", SIGN.format(asked=asked)).split("TICKET ")[1].strip()


def step_headers(session: str, text: str, shape: str, layers: tuple[int, int], **more: str) -> dict[str, str]:
    named = {
        "X-Meshnet-Session": session,
        "X-Meshnet-Epoch": "0",
        "X-Meshnet-Step": "0",
        "X-Meshnet-Position": "0",
        "X-Meshnet-Shape": shape,
        "X-Meshnet-Dtype": "bfloat16",
        "X-Meshnet-Start-Layer": str(layers[0]),
        "X-Meshnet-End-Layer": str(layers[1]),
        "X-Meshnet-Ticket": text,
        "X-Meshnet-Reserve": "16",
    }
    return named | {f"X-Meshnet-{name.title()}": value for name, value in more.items()}


def bfloat16_zeros(tokens: int, width: int) -> bytes:
    return bytes(2 * tokens * width)


@pytest.fixture(scope="module")
def trio(site: Site, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A head, a middle and a tail of a tiny model: (site, model, [peer ids])."""
    folder = tmp_path_factory.mktemp("record") / "tiny-record"
    folder.symlink_to(tiny, target_is_directory=True)
    width = json.loads((tiny / "config.json").read_text())["hidden_size"]
    with site.mesh(folder, ["0:2", "2:5", "5:7"]):
        yield site, folder.name, [site.peer_id(f"{folder.name}-{number}") for number in range(3)], width


def test_a_foreign_caller_gets_activations_from_a_middle_hop_and_ids_from_the_tail(trio: Any) -> None:
    site, model, (head, middle, tail), width = trio
    session = "ab" * 16
    route = [(head, 0, 2), (middle, 2, 5), (tail, 5, 7)]
    text = ticket(site, model, session, route)
    key = site.node_key(f"{model}-0")  # the head's, so that the relay's stamp is the ticket's head
    with Caller(f"ws://127.0.0.1:{site.port}/rpc/{middle}", key) as caller:
        headers = step_headers(session, text, f"1,3,{width}", (2, 5))
        answer, hidden = caller.call("POST", "/forward", headers, bfloat16_zeros(3, width))
    assert answer["status"] == 200, hidden
    assert answer["headers"]["x-meshnet-shape"] == f"1,3,{width}"
    assert "body_base64" in answer
    assert len(hidden) == 2 * 3 * width

    with Caller(f"ws://127.0.0.1:{site.port}/rpc/{tail}", key) as caller:
        sampling = json.dumps({"temperature": 0, "top_p": 1, "seed": 1})
        headers = step_headers(session, text, f"1,3,{width}", (5, 7), tokens="1,2,3", sampling=sampling)
        answer, body = caller.call("POST", "/forward", headers, hidden)
        assert answer["status"] == 200, body
        assert "body" in answer
        assert len(json.loads(answer["body"])["token_ids"]) == 1
        closing = {"X-Meshnet-Session": session, "X-Meshnet-Epoch": "0", "X-Meshnet-Ticket": text}
        assert caller.call("DELETE", f"/sessions/{session}", closing)[0]["status"] == 200
        assert caller.call("POST", "/forward", headers, hidden)[0]["status"] == 403, "a closed session takes no step"


def test_a_step_without_the_completed_headers_is_refused_by_name(trio: Any) -> None:
    site, model, (head, middle, tail), width = trio
    session = "cd" * 16
    text = ticket(site, model, session, [(head, 0, 2), (middle, 2, 5), (tail, 5, 7)])
    whole = step_headers(session, text, f"1,1,{width}", (2, 5))
    with Caller(f"ws://127.0.0.1:{site.port}/rpc/{middle}", site.node_key(f"{model}-0")) as caller:
        for name in whole:
            if name == "X-Meshnet-Reserve":
                continue
            without = {key: value for key, value in whole.items() if key != name}
            answer, body = caller.call("POST", "/forward", without, bfloat16_zeros(1, width))
            assert answer["status"] == 400, (name, body)
            assert name.lower() in json.loads(body)["error"]["message"].lower()


def test_a_ticket_opens_only_what_it_says(trio: Any) -> None:
    site, model, (head, middle, tail), width = trio
    session = "ef" * 16
    route = [(head, 0, 2), (middle, 2, 5), (tail, 5, 7)]
    good = ticket(site, model, session, route)

    def status(text: str, layers: tuple[int, int] = (2, 5), key_of: int = 0, epoch: str = "0") -> int:
        headers = step_headers(session, text, f"1,1,{width}", layers) | {"X-Meshnet-Epoch": epoch}
        with Caller(f"ws://127.0.0.1:{site.port}/rpc/{middle}", site.node_key(f"{model}-{key_of}")) as caller:
            return int(caller.call("POST", "/forward", headers, bfloat16_zeros(1, width))[0]["status"])

    now = int(time.time())
    assert status(good, key_of=2) == 403, "another node than the head asks"
    assert status(good, layers=(2, 4)) == 403, "other layers"
    assert status(ticket(site, model, session, [(head, 0, 2), (tail, 2, 7)])) == 403, "another hop"
    assert status(ticket(site, model, session, route, expires=now - 1)) == 403, "expired by the tracker's clock"
    assert status(ticket(site, model, session, route, fingerprint="0" * 64)) == 403, "another model"
    assert status(ticket(site, model, "11" * 16, route)) == 403, "another session"
    assert status(good[:-4] + "AAAA") == 403, "another signature"
    assert status(good, epoch="1") == 403, "another epoch"
    assert status(good) == 200


def test_a_foreign_peer_serves_the_tail_of_a_real_head(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    """It answers ids that it thought up; the head streams their text."""
    folder = alias(tiny, "tiny-foreign")
    head = site.start_node("foreign-head", folder, "0:5")
    head.wait_for("Ready: layers")
    peer_id, key, relay_url = enrol(site, folder, "foreign-tail")
    seen: list[tuple[Envelope, int]] = []

    def serve(envelope: Envelope, body: bytes) -> tuple[int, dict[str, str], bytes | str]:
        headers = {name.lower(): value for name, value in envelope["headers"].items()}
        seen.append((envelope, len(body)))
        if envelope["method"] == "DELETE":
            return 200, {"content-type": "application/json"}, "{}"
        ids = [40 + len(seen)] if "x-meshnet-sampling" in headers else []
        return 200, {"content-type": "application/json"}, json.dumps({"token_ids": ids})

    with Peer(relay_url, peer_id, key, serve) as peer:
        assert peer.welcome["type"] == "registered"
        site.wait_for_model(folder.name)
        answer = site.chat(folder.name, "Hello there", max_tokens=4)
    steps = [envelope for envelope, _ in seen if envelope["path"] == "/forward"]
    assert answer.ids == [41, 42, 43, 44]
    assert answer.paths == ["local", "relay"]
    assert all(envelope["from"] == site.peer_id("foreign-head") for envelope, _ in seen)
    shape = {name.lower(): value for name, value in steps[0]["headers"].items()}["x-meshnet-shape"]
    batch, tokens, width = (int(part) for part in shape.split(","))
    assert seen[0][1] == struct.calcsize("<H") * batch * tokens * width
    assert any(envelope["method"] == "DELETE" for envelope, _ in seen)
    head.stop()


def enrol(site: Site, folder: Path, name: str) -> tuple[str, str, str]:
    """(peer_id, node key, relay url) of a node registered by hand for layers 5 and 6."""
    first = site.manage("shell", "--no-imports", "-c", FACTS.format(name=folder.name)).split("FACTS ")[1]
    body = {
        "name": name,
        "model": json.loads(first),
        "start_layer": 5,
        "end_layer": 7,
        "protocol_version": 1,
        "wire_versions": [1],
        "relay": True,
        "endpoint": None,
        "memory_bytes": 1 << 30,
        "ms_per_layer": None,
        "threads": 1,
        "dtype": "bfloat16",
        "device": "cpu",
    }
    headers = {"Authorization": f"Bearer {site.join_token}"}
    answer = requests.post(f"{site.url}/api/nodes/register", json=body, headers=headers, timeout=20)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    return made["peer_id"], made["node_key"], made["relay_url"]


FACTS = """
import json
from tracker.models import LanguageModel
model = LanguageModel.objects.get(name={name!r})
names = ("name", "fingerprint", "num_layers", "hidden_size", "context_length")
print("FACTS", json.dumps(dict((name, getattr(model, name)) for name in names)))
"""


def test_a_route_in_a_clients_header_is_ignored(trio: Any) -> None:
    site, model, _, _ = trio
    plain = site.chat(model, "Hello", max_tokens=5)
    forged = json.dumps([{"endpoint": "http://127.0.0.1:9", "start_layer": 2, "end_layer": 7, "peer_id": "0" * 32}])
    headers = site.headers | {"X-Meshnet-Route": forged, "X-Meshnet-Ticket": "x", "X-Meshnet-Session": "0" * 32}
    asked = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 5}
    answer = requests.post(f"{site.url}/v1/chat/completions", json=asked, headers=headers, timeout=30)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == plain.text
