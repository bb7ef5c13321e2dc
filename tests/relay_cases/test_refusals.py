"""R8, R9, N12. What is asked wrongly is refused by whoever can tell, and whoever refuses lives on.

N12's rules, field by field: tests/tracker/views/test_nodes.py. NodeApi alone: tests/nodes/test_api.py.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
from typing import Any

import pytest
import requests

from tests.lab import record, tunnel
from tests.lab.ends import End, Envelope
from tests.relay.credentials import credential
from tests.relay_cases.meshes import RealMesh
from tests.relay_cases.served import LANGUAGES, Deployment, Served, World, echo, resident_mib

BAD_TARGETS = [
    ("POST", "/../admin"),
    ("POST", "//evil"),
    ("POST", "/%2e%2e/x"),
    ("POST", "http://169.254.169.254/"),
    ("POST", "/forward?x=1#@h"),
    ("POST", "/forward/"),
    ("POST", "/forward%20"),
    ("CONNECT", "/forward"),
    ("CONNECT", "169.254.169.254:80"),
    ("TRACE", "/health"),
    ("DELETE", "/sessions/../health"),
]
BAD_HEADERS = [{"x-a": "1\r\nx-evil: 1"}, {"x-a": "1\nb"}, {"x-a\r\nx-evil": "1"}, {"x-a": "\x00"}, {"x a": "1"}]


@pytest.mark.parametrize(("method", "path"), BAD_TARGETS)
def test_the_relay_refuses_what_no_node_serves_and_the_peer_never_sees_it(
    near_world: World, method: str, path: str
) -> None:
    """R8."""
    peer, caller = near_world.peer(serve=echo), near_world.caller()
    refused = caller.asked("bad", method=method, path=path)
    assert (refused.request_id, refused.status, refused.code) == ("bad", 403, "forbidden")
    assert caller.asked("good", b"x").body == b"x"
    assert [envelope["path"] for envelope in peer.requests] == ["/forward"]


@pytest.mark.parametrize("headers", BAD_HEADERS, ids=repr)
def test_the_relay_refuses_headers_that_would_be_more_than_one(near_world: World, headers: dict[str, str]) -> None:
    """R8."""
    peer, caller = near_world.peer(serve=echo), near_world.caller()
    refused = caller.asked("bad", headers=headers)
    assert (refused.request_id, refused.status, refused.code) == ("bad", 400, "bad_request")
    assert caller.asked("good", b"x").body == b"x"
    assert len(peer.requests) == 1


def test_a_peers_answer_with_such_headers_does_not_reach_the_caller(near_world: World) -> None:
    """R8."""

    def serve(envelope: Envelope, body: bytes) -> tuple[int, dict[str, str], bytes]:
        return 200, {"x-a": "1\r\nset-cookie: evil"} if body == b"evil" else {}, body

    peer, caller = near_world.peer(serve=serve), near_world.caller()
    refused = caller.asked("bad", b"evil")
    assert (refused.status, refused.code) == (502, "bad_answer")
    assert caller.asked("good", b"x").body == b"x"
    assert not peer.ended.is_set()


@pytest.mark.parametrize(("method", "path"), BAD_TARGETS)
def test_a_node_refuses_what_it_does_not_serve_when_it_is_called_directly(
    mesh: RealMesh, method: str, path: str
) -> None:
    """R8. As bytes on its port: no client library would send them."""
    answer = raw_http(mesh.tail_port, f"{method} {path} HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")
    assert answer.split(b" ", 2)[1][:1] == b"4", answer
    assert mesh.nodes[1].is_running


@pytest.mark.parametrize("line", ["x-a: 1\rx-evil: 1", "x-a: \x00", "\x7f: 1"], ids=repr)
def test_a_node_refuses_such_headers_when_it_is_called_directly(mesh: RealMesh, line: str) -> None:
    """R8."""
    answer = raw_http(mesh.tail_port, f"GET /health HTTP/1.1\r\nHost: here\r\n{line}\r\n\r\n")
    assert answer.split(b" ", 2)[1][:1] == b"4", answer
    assert raw_http(mesh.tail_port, "GET /health HTTP/1.1\r\nHost: here\r\n\r\n").split(b" ", 2)[1] == b"200"


BAD_STEPS: list[tuple[str, dict[str, Any]]] = [
    ("a pickle", {"body": pickle.dumps({"hidden": [0.0] * 192})}),
    ("2^31 tokens", {"shape": f"1,{2**31},64"}),
    ("2^31 - 1 tokens", {"shape": f"1,{2**31 - 1},64"}),
    ("a batch of 2^31", {"shape": f"{2**31},3,64"}),
    ("a width of 2^31", {"shape": f"1,3,{2**31}"}),
    ("2^63 tokens", {"shape": f"1,{2**63},64"}),
    ("a negative shape", {"shape": "1,-3,64"}),
    ("no shape", {"shape": None}),
    ("float64", {"dtype": "float64"}),
    ("float32 in the length of bfloat16", {"dtype": "float32"}),
    ("an unknown dtype", {"dtype": "object"}),
    ("a byte too little", {"body": bytes(2 * 3 * 64 - 1)}),
    ("a byte too much", {"body": bytes(2 * 3 * 64 + 1)}),
    ("no body", {"body": b""}),
    ("twice the body", {"body": bytes(2 * 2 * 3 * 64)}),
    ("a position of 2^31", {"position": str(2**31)}),
    ("fewer ids than tokens", {"tokens": "1,2"}),
    ("an id that is none", {"tokens": f"1,2,{2**31}"}),
]


def step_of(mesh: RealMesh, changes: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    named = {f"x-meshnet-{name}": value for name, value in changes.items() if name != "body"}
    return mesh.step_headers(**named), changes.get("body", mesh.body())


@pytest.mark.parametrize("changes", [pytest.param(changes, id=name) for name, changes in BAD_STEPS])
def test_a_step_that_does_not_fit_is_4xx_at_both_doors_and_the_node_goes_on(
    mesh: RealMesh, changes: dict[str, Any], version: int
) -> None:
    """R9. With a good ticket, from the ticket's head: nothing else stands before the step."""
    tail = mesh.nodes[1]
    before_mib = resident_mib(tail.pid)
    relay_addr = f"{mesh.site.relay_url}/rpc/{mesh.site.peer_id('tail')}"
    with LANGUAGES[version].Caller(relay_addr, mesh.site.node_key("head")) as caller:
        headers, body = step_of(mesh, changes)
        refused = caller.asked("bad", body, headers=headers)
        assert 400 <= refused.status < 500, refused
        assert caller.asked("good", mesh.body(), headers=mesh.step_headers()).status == 200
    headers, body = step_of(mesh, changes)
    direct = requests.post(f"http://127.0.0.1:{mesh.tail_port}/forward", body, headers=headers, timeout=10)
    assert 400 <= direct.status_code < 500, direct.text
    assert tail.is_running
    assert resident_mib(tail.pid) - before_mib < 32


def raw_http(port: int, request: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(request.encode("latin-1"))
        data = b""
        with contextlib.suppress(OSError):
            while piece := sock.recv(65536):
                data += piece
                if b"\r\n\r\n" in data:
                    break
        return data


REGISTRATION = {
    "name": "of-another-time",
    "start_layer": 2,
    "end_layer": 4,
    "wire_versions": [1],
    "relay": True,
    "endpoint": None,
    "memory_bytes": 1 << 30,
    "ms_per_layer": None,
    "threads": 1,
    "dtype": "bfloat16",
    "device": "cpu",
}


@pytest.mark.parametrize(
    ("version", "advice"),
    [(2, "upgrade this site"), (0, "upgrade the node"), (None, "upgrade the node"), ("none", "upgrade the node")],
    ids=["+1", "-1", "null", "absent"],
)
def test_a_node_of_another_protocol_is_told_which_side_to_upgrade_and_the_others_go_on(
    mesh: RealMesh, version: Any, advice: str
) -> None:
    """N12."""
    body = REGISTRATION if version == "none" else REGISTRATION | {"protocol_version": version}
    bearer = {"Authorization": f"Bearer {mesh.site.join_token}"}
    answer = requests.post(f"{mesh.site.local_url}/api/nodes/register", json=body, headers=bearer, timeout=10)
    assert (answer.status_code, answer.json()["error"]["code"]) == (426, "upgrade")
    assert advice in answer.json()["error"]["message"]
    assert mesh.model in mesh.site.model_names()


@pytest.mark.parametrize("first", [b"\x03\x08\x00\x02{}", b"\x01\x08\x00\x02{}", b"{}"], ids=["+1", "-1", "none"])
def test_a_frame_of_another_wire_version_is_told_to_upgrade_and_the_others_go_on(served: Served, first: bytes) -> None:
    """N12."""
    with World(Deployment(served, served), 2) as world:
        world.peer(serve=echo)
        caller = world.caller()
        other = Tongue(f"{served.ws_url}/ws", credential("bb22"))
        other.say_raw(first)
        status, code = other.wait_for_end()
        assert (status, code) == (426, 4406)
        assert other.farewell
        assert "upgrade" in other.farewell.body.decode()
        assert caller.asked("1", b"x").body == b"x"
        assert "bb22" not in world.present()


def test_a_client_that_offers_only_versions_to_come_is_told_to_upgrade(served: Served) -> None:
    """N12."""
    other = Tomorrows(f"{served.ws_url}/ws", credential("bb22"))
    assert other.wait_for_end() == (426, 4406)
    assert other.farewell
    assert "upgrade" in other.farewell.body.decode()


class Tomorrow(record.Record):
    subprotocols = ["meshnet.v3"]


class Tomorrows(End):
    language = Tomorrow()


class Tongue(End):
    """An end that says what it likes."""

    language = tunnel.Frames()
