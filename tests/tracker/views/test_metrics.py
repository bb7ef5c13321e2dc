from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection
from django.db.utils import OperationalError
from django.test import Client
from pytest_django import Settings

from relay.auth import authenticator
from tests.tracker.conftest import MakeNode
from tests.tracker.sessions import begin_session
from tracker.models import Node

pytestmark = pytest.mark.django_db

TOKEN = "a-token-of-the-operator"


def get(settings: Settings, public_url: str, token: str, sent: str | None) -> tuple[int, str]:
    settings.PUBLIC_URL, settings.METRICS_TOKEN = public_url, token
    headers = {} if sent is None else {"Authorization": f"Bearer {sent}"}
    answer = Client(headers=headers).get("/metrics")
    return answer.status_code, answer.content.decode()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]"])
def test_on_ones_own_machine_it_is_open(settings: Settings, url: str) -> None:
    status, text = get(settings, url, "", None)
    assert status == 200
    assert "meshnet_relay_peers" in text
    assert "meshnet_breaker_openings_total" in text


def test_elsewhere_it_says_what_to_set(settings: Settings) -> None:
    status, text = get(settings, "https://mesh.example.org", "", None)
    assert status == 403
    assert "set METRICS_TOKEN" in text


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://mesh.example.org"])
def test_with_a_token_set_it_is_the_tokens(settings: Settings, url: str) -> None:
    assert get(settings, url, TOKEN, TOKEN)[0] == 200
    for sent in (None, "", "wrong", TOKEN + "x", "tökén"):
        status, text = get(settings, url, TOKEN, sent)
        assert (status, "METRICS_TOKEN" in text, TOKEN in text) == (401, True, False)


def test_guessing_is_slowed(settings: Settings) -> None:
    for _ in range(12):
        authenticator.throttle.failed("127.0.0.1")
    assert get(settings, "https://mesh.example.org", TOKEN, "guess")[0] == 429
    assert get(settings, "https://mesh.example.org", TOKEN, TOKEN)[0] == 200


def test_it_is_only_read(settings: Settings) -> None:
    settings.PUBLIC_URL = "http://127.0.0.1:8000"
    assert Client().post("/metrics").status_code == 405


def shown(settings: Settings) -> str:
    status, text = get(settings, "http://127.0.0.1:8000", "", None)
    assert status == 200
    return text


def test_it_counts_the_sites_nodes_and_sessions_and_says_which_models_answer(
    settings: Settings, make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    connect(make_node("node-a"))
    make_node("node-b")
    make_node("node-c", status=Node.Status.PENDING)
    begin_session()
    for line in (
        'meshnet_nodes{standing="online"} 1.0',
        'meshnet_nodes{standing="offline"} 1.0',
        'meshnet_nodes{standing="pending"} 1.0',
        'meshnet_sessions_running{model="tiny"} 1.0',
        'meshnet_model_answers{model="tiny"} 1.0',
    ):
        assert line in shown(settings)


def test_a_model_without_a_route_is_told_as_such(settings: Settings, make_node: MakeNode) -> None:
    make_node("node-a")
    assert 'meshnet_model_answers{model="tiny"} 0.0' in shown(settings)


def test_while_the_database_is_away_the_process_still_tells_of_itself(settings: Settings) -> None:
    def refuse(*args: object) -> None:
        raise OperationalError("it is away")

    with connection.execute_wrapper(refuse):
        text = shown(settings)
    assert "meshnet_relay_peers" in text
    assert "meshnet_nodes" not in text


def refused(settings: Settings, of: str, code: str) -> float:
    label = f'meshnet_refusals_total{{code="{code}",of="{of}"}} '
    found = [line for line in shown(settings).splitlines() if line.startswith(label)]
    return float(found[0].removeprefix(label)) if found else 0.0


def test_what_is_refused_is_counted_by_its_code(settings: Settings) -> None:
    wrong_key, wrong_token = refused(settings, "api", "invalid_api_key"), refused(settings, "node", "unauthorized")
    headers = {"Authorization": "Bearer x"}
    assert Client(headers=headers).get("/v1/models").status_code == 401
    assert Client(headers=headers).post("/api/nodes/heartbeat", {}, "application/json").status_code == 401
    assert refused(settings, "api", "invalid_api_key") == wrong_key + 1
    assert refused(settings, "node", "unauthorized") >= wrong_token + 1
