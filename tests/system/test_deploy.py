"""A site as docs/deploy.md has it: TLS, PostgreSQL, Redis, one process for clients and one for the nodes' sockets."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import websocket

from tests.lab import rawhttp
from tests.lab.deployment import Deployment
from tests.lab.fakehead import FIRST, FakeHead
from tests.lab.postgres import Postgres
from tests.lab.redis import Redis
from tests.lab.site import Answer, assemble, events
from tests.lab.websockets import connect

PASSWORD = "only-for-tests-8"
HI = {"role": "user", "content": "Hi"}
FRONTS = ("daphne", "uvicorn", "nginx to daphne", "nginx to uvicorn")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    with Postgres() as postgres, Redis(folder / "redis") as redis:
        started = Deployment(folder / "mesh", postgres, redis)
        started.env["FAILOVER_WAIT_S"] = "2"
        with started:
            yield started


@pytest.fixture(scope="module")
def model(deployment: Deployment, tiny: Path) -> Iterator[str]:
    """Two nodes that reach the site by its public address only."""
    with deployment.mesh(tiny, ["0:3", "3:7"], "--relay-only", "--ca-file", str(deployment.ca_file)) as nodes:
        assert all("/relay-one/" in node.output for node in nodes)
        yield tiny.name


def ask(site: Deployment, model: str, num_tokens: int) -> requests.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "stream": True}
    body |= {"max_tokens": num_tokens, "meshnet": {"trace": True}}
    return site.over_tls("POST", "/v1/chat/completions", json=body, headers=site.headers, stream=True)


def answer(site: Deployment, model: str) -> Answer:
    with ask(site, model, 8) as response:
        assert response.status_code == 200, response.text
        return assemble(events(response))


def test_a_chat_goes_to_nodes_whose_sockets_another_process_holds(deployment: Deployment, model: str) -> None:
    answered = answer(deployment, model)
    assert len(answered.ids) == 8
    assert len(answered.paths) == 2
    assert answered.paths[1] in ("relay", "tunnel")


@pytest.fixture(scope="module")
def operator(deployment: Deployment) -> requests.Response:
    """What somebody sees who has just logged in; the cookies are in its history."""
    deployment.env["DJANGO_SUPERUSER_PASSWORD"] = PASSWORD
    deployment.manage("createsuperuser", "--noinput", "--username", "operator", "--email", "")
    page = deployment.over_tls("GET", "/login")
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
    assert token
    form = {"username": "operator", "password": PASSWORD, "csrfmiddlewaretoken": token[1], "next": "/"}
    referer = {"Referer": f"{deployment.url}/login"}
    entered = deployment.over_tls("POST", "/login", data=form, cookies=page.cookies, headers=referer)
    entered.cookies.update(entered.history[0].cookies)
    return entered


def test_people_log_in_over_tls_and_get_the_styles(deployment: Deployment, operator: requests.Response) -> None:
    assert operator.status_code == 200
    assert "Log out" in operator.text
    for style in ("/static/admin/css/base.css", "/static/tracker/site.css"):
        assert deployment.over_tls("GET", style).headers["content-type"].startswith("text/css")


def test_figures_stay_inside(deployment: Deployment) -> None:
    assert deployment.over_tls("GET", "/metrics").status_code == 404
    assert deployment.over_tls("GET", "/readyz").status_code == 404


def test_the_process_says_what_it_has_to_whoever_watches_it(deployment: Deployment) -> None:
    assert deployment.over_tls("GET", "/healthz").json() == {"status": "alive"}
    told = requests.get(f"{deployment.local_url}/readyz", headers={"Host": "10.0.0.9"}, timeout=20)
    assert (told.status_code, told.json()["status"]) == (200, "ready"), told.text
    assert set(told.json()["checks"]) == {"process", "database", "migrations", "tick", "redis"}


def test_browsers_are_kept_on_https(deployment: Deployment) -> None:
    """By nginx, by the process behind it where something else lets them in, and by the browser itself."""
    login = deployment.over_tls("GET", "/login")
    assert login.headers["strict-transport-security"] == "max-age=31536000"
    assert "Secure" in login.headers["set-cookie"]
    for url, forwarded in (
        (f"http://127.0.0.1:{deployment.http_port}/login", {}),
        (f"{deployment.local_url}/login", {"X-Forwarded-Proto": "http"}),
    ):
        sent_on = requests.get(url, headers=forwarded, allow_redirects=False, timeout=20)
        assert sent_on.status_code == 301, url
        assert sent_on.headers["location"].startswith("https://127.0.0.1")


def test_a_program_that_comes_without_tls_is_not_sent_on_in_silence(deployment: Deployment) -> None:
    answered = requests.get(f"{deployment.local_url}/v1/models", headers=deployment.headers, allow_redirects=False)
    assert answered.status_code == 200


@pytest.fixture(scope="module")
def fronts(deployment: Deployment) -> dict[str, str]:
    """Where clients may ask, by what stands there."""
    urls = (deployment.local_url, deployment.url, *deployment.on_uvicorn())
    return dict(zip(("daphne", "nginx to daphne", "uvicorn", "nginx to uvicorn"), urls, strict=True))


@pytest.fixture(scope="module", params=[False, True], ids=["relayed", "listening"])
def head(deployment: Deployment, request: pytest.FixtureRequest) -> Iterator[FakeHead]:
    tls = ssl.create_default_context(cafile=str(deployment.ca_file))
    name = "listening" if request.param else "relayed"
    with FakeHead(deployment, name, listens=request.param, tls=tls) as started:
        yield started


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_token_reaches_the_client_when_it_is_made(
    deployment: Deployment, fronts: dict[str, str], head: FakeHead, front: str, encoding: str, path: str
) -> None:
    """The head says a word once the client has the one before: what is kept back on the way stays there."""
    head.register()
    prompt: dict[str, Any] = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": [HI]}
    body = {"model": head.model, "stream": True} | prompt
    sent = deployment.headers | {"Accept-Encoding": encoding}
    ca_file = deployment.ca_file if front.startswith("nginx") else None
    with rawhttp.ask(fronts[front], path, body, sent, ca_file=ca_file) as answer:
        assert answer.status == 200, answer.body()
        words = spoken(answer)
        assert next(words) == FIRST
        for word in (" second", " third", " fourth"):
            head.say(word)
            assert next(words) == word
        head.end()
        assert list(words) == [""]
    zipped = front.startswith("nginx") and encoding == "gzip"
    assert answer.headers.get("content-encoding", "identity") == ("gzip" if zipped else "identity")


def spoken(answer: rawhttp.Answer) -> Iterator[str]:
    blocks = answer.blocks()
    for block in blocks:
        if block == "data: [DONE]":
            assert list(blocks) == []
            return
        if not block.startswith(":"):
            choice = json.loads(block.removeprefix("data: "))["choices"][0]
            yield choice["text"] if "text" in choice else choice["delta"].get("content", "")
    raise AssertionError("the stream ended without [DONE]")


def test_a_killed_relay_process_takes_only_its_own_along(deployment: Deployment, model: str) -> None:
    before = answer(deployment, model)
    with ask(deployment, model, 4000) as response:
        stream = response.iter_lines(decode_unicode=True)
        assert any(line.startswith("data: ") for line in stream)
        assert deployment.relay
        deployment.relay.kill()
        killed = time.monotonic()
        rest = [line for line in stream if line.startswith("data: ")]
    assert time.monotonic() - killed < 30
    assert '"error"' in rest[-2]
    refused = ask(deployment, model, 8)
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert deployment.over_tls("GET", "/admin/login/").status_code == 200
    deployment.start_relay()
    deployment.wait_for_model(model)
    assert answer(deployment, model).ids == before.ids


def test_open_pages_follow_the_mesh_and_end_at_logout_whichever_process_has_them(
    deployment: Deployment, fronts: dict[str, str], operator: requests.Response
) -> None:
    cookies = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())
    tls = {"ca_certs": str(deployment.ca_file)}
    sockets = []
    for url in fronts.values():
        address = url.replace("http", "ws", 1) + "/live"
        socket = connect(address, timeout=30, origin=url, cookie=cookies, sslopt=tls)
        socket.send(json.dumps({"watch": "/"}))
        sockets.append(socket)
    model = {"name": "newcomer", "fingerprint": "f" * 64, "num_layers": 2, "hidden_size": 8, "context_length": 64}
    deployment.register(deployment.join_token, name="newcomer", model=model, relay=True, endpoint=None)
    for socket in sockets:
        while "newcomer" not in json.loads(socket.recv()).get("html", ""):
            pass
    token = re.search(r"X-CSRFToken&quot;: &quot;(\w+)|X-CSRFToken\": \"(\w+)", operator.text)
    assert token
    sent = {"Referer": f"{deployment.url}/", "X-CSRFToken": token[1] or token[2]}
    assert deployment.over_tls("POST", "/logout", cookies=operator.cookies, headers=sent).status_code == 200
    for socket in sockets:
        while "error" not in (told := json.loads(socket.recv())):
            pass
        assert told == {"error": "you are logged out"}
        assert socket.recv_data()[0] == websocket.ABNF.OPCODE_CLOSE
        socket.close()
