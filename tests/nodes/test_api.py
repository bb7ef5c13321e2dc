from __future__ import annotations

import hashlib
import hmac
import json
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from nodes import activations
from nodes.api import _deadline, prove
from nodes.deadline import Deadline
from nodes.engine import EngineError
from nodes.events import Answer, StreamAnswer
from nodes.grammar import digest_of
from nodes.sampling import GREEDY
from relay import headers as names
from relay import wire
from relay.headers import Hop, encode_route
from relay.wire import Code, Request, Response
from tests.nodes.engines import WIDTH, _embed
from tests.nodes.meshes import Mesh, TestNode, tell

PLAIN = "/v1/completions"


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """Three nodes without doors: what they are asked goes into NodeApi as a bridge would give it."""
    with Mesh([(0, 2), (2, 4), (4, 6)], relayed=False) as made:
        yield made


def step_request(mesh: Mesh, number: int, ids: list[int], **changes: Any) -> Request:
    """A step to node `number`, as the head sends it through the relay."""
    node = mesh.nodes[number]
    hops = [(other.peer_id, *other.layers) for other in mesh.nodes]
    ticket, text = mesh.signer.sign(hops, **changes.pop("ticket", {}))
    hidden = _embed(tuple(ids))
    headers = {
        names.SESSION: ticket.session,
        names.EPOCH: "0",
        names.STEP: "1",
        names.POSITION: "0",
        names.SHAPE: f"1,{len(ids)},{WIDTH}",
        names.DTYPE: "bfloat16",
        names.START_LAYER: str(node.layers[0]),
        names.END_LAYER: str(node.layers[1]),
        names.TICKET: text,
    }
    if node.layers[1] == 6:
        headers |= {names.TOKENS: ",".join(map(str, ids)), names.SAMPLING: GREEDY.to_json()}
    headers |= {name: value for name, value in changes.pop("headers", {}).items() if value is not None}
    body = activations.encode(hidden, "bfloat16")
    return replace(Request("7", "POST", "/forward", headers, body, sender=mesh.head.peer_id), **changes)


def ask(node: TestNode, request: Request, door: Any = "relay") -> Response:
    answer = node.api.begin(request, door).result(10)
    assert isinstance(answer, Response)
    assert answer.request_id == request.request_id
    return answer


def code_of(answer: Response) -> str:
    return wire.error_of(answer.status, answer.body)[0]


def test_a_middle_hop_answers_activations(mesh: Mesh) -> None:
    request = step_request(mesh, 1, [3, 5, 8])
    answer = ask(mesh.nodes[1], request)

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers[names.SHAPE] == f"1,3,{WIDTH}"
    assert answer.headers[names.COMPUTE_MS] == "2.000"
    assert answer.headers[names.QUEUE_MS] == "0.500"
    assert answer.body == request.body


def test_the_tail_answers_token_ids(mesh: Mesh) -> None:
    answer = ask(mesh.nodes[2], step_request(mesh, 2, [3, 5, 8]))

    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body) == {"token_ids": [9]}


def test_the_same_step_again_gets_the_same_answer_and_nothing_is_computed(mesh: Mesh) -> None:
    request = step_request(mesh, 2, [3, 5, 8])
    first, second = ask(mesh.nodes[2], request), ask(mesh.nodes[2], request)

    assert first.body == second.body
    assert len(mesh.nodes[2].engine.steps) == 1


def test_both_doors_give_the_same_answers(mesh: Mesh) -> None:
    for number in (1, 2):
        request = step_request(mesh, number, [3, 5, 8])
        by_http = replace(request, sender="")
        assert ask(mesh.nodes[number], request, "relay") == ask(mesh.nodes[number], by_http, "http")
    for bad in (replace(request, headers={}), replace(request, body=b""), replace(request, path="/nothing")):
        assert ask(mesh.nodes[2], bad, "relay") == ask(mesh.nodes[2], bad, "http")


@pytest.mark.parametrize(
    "name",
    [names.SESSION, names.EPOCH, names.STEP, names.POSITION, names.SHAPE, names.DTYPE, names.TICKET, names.TOKENS],
)
def test_a_step_without_a_header_is_refused_naming_it(mesh: Mesh, name: str) -> None:
    request = step_request(mesh, 2, [3])
    without = {key: value for key, value in request.headers.items() if key != name}
    answer = ask(mesh.nodes[2], replace(request, headers=without))

    assert answer.status == 400
    assert name.encode() in answer.body


@pytest.mark.parametrize("body", [b"", bytes(7), bytes(2 * WIDTH * 3 + 1), pickle.dumps(["hidden"])])
def test_a_body_that_isnt_the_shapes_is_refused_and_the_node_goes_on(mesh: Mesh, body: bytes) -> None:
    request = step_request(mesh, 2, [3, 5, 8])

    assert ask(mesh.nodes[2], replace(request, body=body)).status == 400
    assert ask(mesh.nodes[2], request).status == 200


def test_another_dtype_than_the_tickets_is_refused(mesh: Mesh) -> None:
    request = step_request(mesh, 1, [3], headers={names.DTYPE: "float32"})
    answer = ask(mesh.nodes[1], replace(request, body=request.body * 2))

    assert answer.status == 400
    assert b"bfloat16, as the ticket says" in answer.body


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/../admin"),
        ("POST", "//evil"),
        ("POST", "/%2e%2e/x"),
        ("POST", "http://169.254.169.254/"),
        ("POST", "/forward?x=1#@h"),
        ("POST", "/forward/"),
        ("GET", "/forward"),
        ("CONNECT", "/forward"),
        ("TRACE", "/health"),
        ("DELETE", "/sessions/" + "A" * 32),
        ("DELETE", "/sessions/" + "a" * 32 + "/"),
    ],
)
def test_only_exact_methods_and_paths_are_served(mesh: Mesh, method: str, path: str) -> None:
    for door in ("http", "relay"):
        assert ask(mesh.head, Request("7", method, path, {}), door).status == 403


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "a\x00b", "\x7f"])
def test_a_control_character_in_a_header_is_refused(mesh: Mesh, value: str) -> None:
    assert ask(mesh.head, Request("7", "GET", "/health", {"x-a": value})).status == 400
    assert ask(mesh.head, Request("7", "GET", "/health", {value: "a"})).status == 400


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"sender": ""}, 403),
        ({"sender": "f" * 32}, 403),
        ({"sender": wire.TRACKER}, 403),
        ({"headers": {names.START_LAYER: "5"}}, 403),
        ({"headers": {names.END_LAYER: "5"}}, 403),
        ({"headers": {names.EPOCH: "1"}}, 403),
        ({"headers": {names.SESSION: "0" * 32}}, 403),
        ({"ticket": {"expires": 1}}, 403),
        ({"ticket": {"fingerprint": "0" * 64}}, 403),
        ({"headers": {names.TICKET: "nonsense"}}, 403),
    ],
)
def test_what_the_ticket_doesnt_allow_is_refused(mesh: Mesh, changes: dict[str, Any], status: int) -> None:
    answer = ask(mesh.nodes[2], step_request(mesh, 2, [3], **changes))

    assert answer.status == status
    assert not mesh.nodes[2].engine.steps


def test_a_ticket_for_another_hop_is_refused(mesh: Mesh) -> None:
    request = step_request(mesh, 2, [3])

    assert ask(mesh.nodes[1], request).status == 403


def delete_request(request: Request, session: str, **changes: Any) -> Request:
    kept = {name: request.headers[name] for name in (names.EPOCH, names.TICKET)}
    return replace(Request("8", "DELETE", f"/sessions/{session}", kept, sender=request.sender), **changes)


def test_closing_frees_the_session_and_after_it_every_step_is_refused(mesh: Mesh) -> None:
    tail = mesh.nodes[2]
    request = step_request(mesh, 2, [3, 5])
    ask(tail, request)
    closing = delete_request(request, request.headers[names.SESSION])

    assert tail.engine.cached_tokens == 2
    assert ask(tail, closing).status == 200
    assert (tail.engine.cached_tokens, tail.engine.num_sessions) == (0, 0)
    assert ask(tail, replace(request, headers={**request.headers, names.STEP: "2"})).status == 403
    assert ask(tail, closing).status == 403


def test_closing_goes_on_when_the_head_doesnt_wait_for_its_end(mesh: Mesh) -> None:
    tail = mesh.nodes[2]
    request = step_request(mesh, 2, [3, 5])
    session = request.headers[names.SESSION]
    ask(tail, request)
    tail.engine.may_work.clear()
    slow = tail.api.begin(step_request(mesh, 2, [4]), "relay")
    closing = tail.api.begin(delete_request(request, session), "relay")
    assert closing.cancel()
    tail.engine.may_work.set()
    assert isinstance(slow.result(5), Response)

    assert b"closed" in ask(tail, delete_request(request, session)).body
    assert tail.engine.num_sessions == 1  # the slow one


def test_closing_needs_the_ticket_of_that_session_and_its_head(mesh: Mesh) -> None:
    tail = mesh.nodes[2]
    request = step_request(mesh, 2, [3, 5])
    session = request.headers[names.SESSION]
    ask(tail, request)

    assert ask(tail, delete_request(request, session, headers={names.EPOCH: "0"})).status == 400
    assert ask(tail, delete_request(request, "0" * 32)).status == 403
    assert ask(tail, delete_request(request, session, sender="f" * 32)).status == 403
    assert tail.engine.num_sessions == 1


def test_errors_of_the_engine_have_their_status(mesh: Mesh) -> None:
    tail = mesh.nodes[2]
    request = step_request(mesh, 2, [3])
    missing = ask(tail, replace(request, headers={**request.headers, names.POSITION: "9"}))
    assert (missing.status, code_of(missing), missing.headers[names.CACHED]) == (409, Code.MISSING, "0")

    ask(tail, replace(request, headers={**request.headers, names.STEP: "4"}))
    stale = ask(tail, replace(request, headers={**request.headers, names.STEP: "3"}))
    assert (stale.status, code_of(stale)) == (409, Code.STALE)

    busy = ask(tail, replace(request, headers={**request.headers, names.STEP: "5", names.RESERVE: "999999"}))
    assert (busy.status, code_of(busy)) == (503, Code.BUSY)

    tail.engine.fail_with = EngineError("layers 4–5 failed")
    failed = ask(tail, replace(request, headers={**request.headers, names.STEP: "6"}))
    assert (failed.status, code_of(failed)) == (500, Code.INTERNAL)
    tail.engine.fail_with = RuntimeError("ours")
    assert ask(tail, replace(request, headers={**request.headers, names.STEP: "7"})).status == 500


def test_a_tail_asks_for_a_grammar_that_it_does_not_know_and_nothing_is_touched(mesh: Mesh) -> None:
    tail, form = mesh.nodes[2], 'start: "the quick"'
    sampling = replace(GREEDY, grammar=digest_of(form), prompt_tokens=1).to_json()
    request = step_request(mesh, 2, [3], headers={names.SAMPLING: sampling})
    asked = ask(tail, request)
    assert (asked.status, code_of(asked)) == (409, Code.NO_GRAMMAR)
    assert tail.engine.steps == []

    told = {**request.headers, names.GRAMMAR_BYTES: str(len(form))}
    answered = ask(tail, replace(request, headers=told, body=request.body + form.encode()))
    assert (answered.status, tail.engine.steps[0].grammar) == (200, tail.grammars.get(digest_of(form)))

    again = ask(tail, replace(request, headers={**request.headers, names.STEP: "2", names.POSITION: "1"}))
    assert again.status == 200  # from now on it is known, to other sessions too


def test_a_grammar_is_of_the_sampling_that_comes_with_it(mesh: Mesh) -> None:
    request = step_request(mesh, 2, [3], headers={names.GRAMMAR_BYTES: "3"})
    answer = ask(mesh.nodes[2], replace(request, body=request.body + b"abc"))
    assert (answer.status, code_of(answer)) == (400, Code.BAD_REQUEST)
    assert mesh.nodes[2].engine.steps == []


def test_no_more_tokens_are_sampled_than_the_ticket_allows(mesh: Mesh) -> None:
    request = step_request(mesh, 2, [3], ticket={"max_tokens": 2})
    statuses = [
        ask(
            mesh.nodes[2],
            replace(request, headers={**request.headers, names.STEP: str(step), names.POSITION: str(step)}),
        ).status
        for step in range(4)
    ]

    assert statuses == [200, 200, 403, 403]


def test_a_cancelled_step_loses_its_place_in_the_queue(mesh: Mesh) -> None:
    tail = mesh.nodes[2]
    tail.engine.may_work.clear()
    first = tail.api.begin(step_request(mesh, 2, [3]), "relay")
    second = tail.api.begin(step_request(mesh, 2, [4]), "relay")
    assert second.cancel()
    tail.engine.may_work.set()
    assert isinstance(first.result(5), Response)

    assert ask(tail, step_request(mesh, 2, [5])).status == 200
    assert [step.token_ids for step in tail.engine.steps] == [(3,), (5,)]


# Chats


def test_a_node_that_isnt_the_head_heads_no_chat(mesh: Mesh) -> None:
    answer = ask(mesh.nodes[1], mesh.request({"prompt": "a"}, PLAIN))

    assert answer.status == 403
    assert b"first layer" in answer.body


@pytest.mark.parametrize("sender", ["", "f" * 32])
def test_through_the_relay_only_the_tracker_asks_for_chats(mesh: Mesh, sender: str) -> None:
    assert ask(mesh.head, replace(mesh.request({"prompt": "a"}, PLAIN), sender=sender)).status == 403


def test_the_head_follows_only_the_hops_that_the_ticket_signs(mesh: Mesh) -> None:
    hops = [node.hop for node in mesh.nodes[1:]]
    elsewhere = Hop("f" * 32, 4, 6, "http://evil")
    for route in (
        [],
        hops[:1],
        [*hops, elsewhere],
        [hops[0], elsewhere],
        hops[::-1],
        [replace(hops[0], end_layer=5), hops[1]],
    ):
        answer = ask(mesh.head, mesh.request({"prompt": "a"}, PLAIN, x_meshnet_route=encode_route(route)))
        assert (answer.status, code_of(answer)) == (403, Code.FORBIDDEN)
    assert ask(mesh.head, mesh.request({"prompt": "a"}, PLAIN, x_meshnet_route="[{}]")).status == 400


def test_a_signed_route_that_leaves_a_gap_is_refused(mesh: Mesh) -> None:
    ids = [node.peer_id for node in mesh.nodes]
    hops = ((ids[0], 0, 2), (ids[1], 3, 4), (ids[2], 4, 6))
    route = encode_route([Hop(*hop) for hop in hops[1:]])
    answer = ask(mesh.head, mesh.request({"prompt": "a"}, PLAIN, hops=hops, x_meshnet_route=route))

    assert answer.status == 403
    assert b"every layer once" in answer.body


def single() -> Mesh:
    return Mesh([(0, 4)], relayed=False, max_chats=2)


def test_over_the_bound_chats_are_busy_while_steps_are_still_answered() -> None:
    with single() as made:
        made.head.engine.may_work.clear()
        running = [made.head.api.begin(made.request({"prompt": "a"}, PLAIN), door) for door in ("http", "relay")]
        for door in ("http", "relay"):
            busy = ask(made.head, made.request({"prompt": "a"}, PLAIN), door)
            assert (busy.status, code_of(busy)) == (503, Code.BUSY)
        assert ask(made.head, Request("7", "GET", "/health")).status == 200
        made.head.engine.may_work.set()
        for answer in running:
            result = answer.result(10)
            assert isinstance(result, StreamAnswer)
            assert tell(result).is_done
        made.wait_until_free()
        assert tell(made.begin(made.request({"prompt": "a", "max_tokens": 1}, PLAIN))).is_done


def test_a_running_session_isnt_begun_twice_and_a_closed_one_not_again() -> None:
    with single() as made:
        made.head.engine.may_work.clear()
        request = made.request({"prompt": "a", "max_tokens": 2}, PLAIN)
        first = made.head.api.begin(request, "relay")
        assert b"running" in ask(made.head, request).body
        made.head.engine.may_work.set()
        result = first.result(10)
        assert isinstance(result, StreamAnswer)
        tell(result)
        made.wait_until_free()

        again = ask(made.head, request)
        assert again.status == 403
        assert b"closed" in again.body


def test_draining_ends_chats_after_the_step_in_hand_and_refuses_new_ones() -> None:
    with single() as made:
        answer = made.begin(made.request({"prompt": "a", "max_tokens": 50, "temperature": 0}, PLAIN))
        assert isinstance(answer, StreamAnswer)
        made.head.engine.may_work.clear()
        draining = threading.Thread(target=made.head.api.drain, args=(Deadline.after(10),))
        draining.start()
        until = time.monotonic() + 5
        while ask(made.head, Request("7", "GET", "/health")).body.find(b"draining") < 0:
            assert time.monotonic() < until
        made.head.engine.may_work.set()
        told = tell(answer)
        draining.join(10)

        assert told.is_done
        if told.finish_reason is None:  # it may have been over before
            assert told.error
            assert told.error["code"] == Code.DRAINING
        assert code_of(ask(made.head, made.request({"prompt": "a"}, PLAIN))) == Code.DRAINING


def test_health_says_what_is_held_and_proves_the_key_over_http_only(mesh: Mesh) -> None:
    nonce = "0123456789abcdef" * 2
    request = Request("7", "GET", "/health", {names.NONCE: nonce})
    by_http = ask(mesh.head, request, "http")

    assert json.loads(by_http.body) == {
        "state": "ok",
        "model": "tiny",
        "start_layer": 0,
        "end_layer": 2,
        "cached_tokens": 0,
        "reserved_tokens": 0,
        "max_cached_tokens": 10_000,
        "batch": 0.0,
        "sessions": 0,
        "chats": 0,
        "kept_bytes": 0,
    }
    assert by_http.headers[names.PROOF] == prove(mesh.head.key, nonce)
    assert names.PROOF not in ask(mesh.head, request, "relay").headers
    assert names.PROOF not in ask(mesh.head, replace(request, headers={names.NONCE: "short"}), "http").headers


def test_the_proof_is_under_the_hash_that_the_tracker_keeps() -> None:
    expected = hmac.new(hashlib.sha256(b"secret").digest(), b"nonce", hashlib.sha256).hexdigest()

    assert prove("node_id.secret", "nonce") == expected


@pytest.mark.parametrize(
    ("header_ms", "envelope_ms", "expected_s"),
    [("10000", None, 9.5), ("10000", 4000, 3.6), ("1000", None, 0.9), (None, 20_000, 19.5), ("9999999", None, 599.5)],
)
def test_a_chats_time_ends_a_little_before_that_of_whoever_asked(
    header_ms: str | None, envelope_ms: int | None, expected_s: float
) -> None:
    headers = {names.DEADLINE_MS: header_ms} if header_ms else {}
    left_s = _deadline(Request("7", "POST", PLAIN, headers, deadline_ms=envelope_ms)).left_s()

    assert expected_s - 0.1 < left_s <= expected_s


# What the tracker has it do


def test_while_it_is_drained_its_chats_end_and_new_ones_are_refused() -> None:
    with single() as made:
        api, engine = made.head.api, made.head.engine
        engine.may_work.clear()
        answering = api.begin(made.request({"prompt": "a" * 9, "max_tokens": 50}, PLAIN), "relay")
        api.refuse_chats("this node is being drained")
        refused = ask(made.head, made.request({"prompt": "a"}, PLAIN))
        engine.may_work.set()

        assert (code_of(refused), b"being drained" in refused.body) == (Code.DRAINING, True)
        assert ending(answering) == Code.DRAINING
        api.refuse_chats(None)
        assert tell(made.begin(made.request({"prompt": "a", "max_tokens": 1}, PLAIN))).is_done


def test_while_it_is_drained_steps_of_other_heads_chats_are_worked(mesh: Mesh) -> None:
    mesh.nodes[1].api.refuse_chats("this node is being drained")

    assert ask(mesh.nodes[1], step_request(mesh, 1, [3])).status == 200


def test_what_the_tracker_says_is_over_is_freed_and_leaves_a_fence(mesh: Mesh) -> None:
    tail = mesh.nodes[2]
    request = step_request(mesh, 2, [3, 5])
    session = request.headers[names.SESSION]
    ask(tail, request)
    assert tail.api.session_epochs() == {session: 0}
    tail.api.close(session, 0)

    assert ask(tail, replace(request, headers={**request.headers, names.STEP: "2"})).status == 403
    assert ask(tail, step_request(mesh, 2, [4])).status == 200  # behind it in the engine's line
    assert session not in tail.api.session_epochs()
    assert tail.engine.cached_tokens == 1


def test_a_chat_that_the_tracker_says_is_over_ends_and_leaves_the_hops_to_their_next_head() -> None:
    with Mesh([(0, 2), (2, 4)], relayed=False, direct=True) as mesh:
        tail = mesh.nodes[1].engine
        tail.may_work.clear()
        request = mesh.request({"prompt": "a" * 9}, PLAIN)
        answering = mesh.head.api.begin(request, "relay")
        until = time.monotonic() + 5
        while not mesh.head.engine.num_sessions:
            assert time.monotonic() < until
        mesh.head.api.close(request.headers[names.SESSION], 0)
        tail.may_work.set()

        assert ending(answering) == Code.STALE
        while mesh.head.api.num_chats or mesh.head.api._num_releasing:
            assert time.monotonic() < until
        assert (mesh.head.engine.num_sessions, tail.num_sessions) == (0, 1)


def test_a_chat_that_shall_move_is_told_and_others_arent(mesh: Mesh) -> None:
    mesh.head.engine.may_work.clear()
    first, second = (mesh.request({"prompt": "a"}, PLAIN) for _ in range(2))
    answers = [mesh.head.api.begin(request, "relay") for request in (first, second)]
    mesh.head.api.move(first.headers[names.SESSION])
    mesh.head.api.move("0" * 32)
    chats = mesh.head.api._chats

    assert chats[first.headers[names.SESSION], 0].shall_move
    assert not chats[second.headers[names.SESSION], 0].shall_move
    mesh.head.engine.may_work.set()
    assert all(isinstance(answer.result(10), Response) for answer in answers)


def ending(answering: Future[Answer]) -> str:
    """The code of the error with which a chat ends, before or after its stream was opened."""
    answer = answering.result(10)
    if isinstance(answer, Response):
        return code_of(answer)
    error = tell(answer).error
    assert error
    return str(error["code"])
