"""Every answer has an id and says what took how long, and every error under /v1 has OpenAI's shape."""

from __future__ import annotations

import logging
import re
from contextvars import Context
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.test import Client, RequestFactory

from tracker.errors import ApiError
from tracker.middleware import NamesRequest, Timings, answers_named_and_timed, request_id_of, timings_of
from tracker.views.responses import openai_error

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")
TIMING = re.compile(r"([a-z_]+;dur=\d+\.\d, )*total;dur=\d+\.\d")


@async_to_sync
async def answered(answer: HttpResponseBase, path: str = "/v1/models", seen: list[HttpRequest] | None = None) -> Any:
    async def view(request: HttpRequest) -> HttpResponseBase:
        if seen is not None:
            seen.append(request)
        timings_of(request).end("view")
        return answer

    return await answers_named_and_timed(view)(RequestFactory().get(path))


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1", "/v1/", "/nothing", "/admin/login/", "/static/nothing.css"])
@pytest.mark.django_db
def test_every_answer_has_an_id_and_its_time(path: str) -> None:
    first, second = Client().get(path), Client().post(path)
    assert REQUEST_ID.fullmatch(first["x-request-id"])
    assert first["x-request-id"] != second["x-request-id"]
    for answer in (first, second):
        assert TIMING.fullmatch(answer["Server-Timing"])


def test_the_view_knows_the_id_and_adds_parts_to_the_time() -> None:
    seen: list[HttpRequest] = []
    answer = answered(HttpResponse(), seen=seen)
    assert request_id_of(seen[0]) == answer["x-request-id"]
    assert answer["Server-Timing"].startswith("view;dur=")


def test_a_request_that_no_middleware_has_seen_has_neither() -> None:
    request = RequestFactory().get("/")
    assert request_id_of(request) == ""
    timings_of(request).end("view")


def test_parts_follow_one_another_and_the_total_counts_from_the_first() -> None:
    ticks = iter([10.0, 10.002, 10.05, 10.0505])
    timings = Timings(lambda: next(ticks))
    timings.end("begin")
    timings.end("head")
    assert timings.header() == "begin;dur=2.0, head;dur=48.0, total;dur=50.5"


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid_value"), (403, "invalid_value"), (404, "unknown_url"), (500, "internal_error")],
)
def test_djangos_own_errors_under_v1_get_openais_shape(status: int, code: str) -> None:
    answer = answered(HttpResponse("<h1>at /home/site/views.py: KeyError</h1>", status=status))
    assert answer["Content-Type"] == "application/json"
    assert f'"code": "{code}"'.encode() in answer.content
    assert b"KeyError" not in answer.content


def test_other_answers_stay_as_they_are() -> None:
    async def parts() -> Any:
        yield b"data: [DONE]\n\n"

    for answer in (
        StreamingHttpResponse(parts(), content_type="text/event-stream"),
        JsonResponse({"error": {}}, status=404),
        HttpResponse("text"),
    ):
        assert answered(answer) is answer
    page = HttpResponse("<h1>", status=404)
    assert answered(page, "/nothing") is page


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/nothing"])
def test_a_host_that_is_not_ours_and_a_path_of_no_view_are_errors_of_the_api(path: str) -> None:
    strange = Client(headers={"host": "evil.example.org"}).get("/v1/models")
    assert (strange.status_code, strange.json()["error"]["code"]) == (400, "invalid_value")
    assert strange.json()["error"]["message"] == (
        "The host 'evil.example.org' isn't served here; this site is http://127.0.0.1:8000."
    )
    answer = Client().get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


def test_a_host_that_is_not_ours_is_refused_in_one_line_whatever_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    for path in ("/", "/api/nodes/register", "/v1"):
        caplog.clear()
        answer = Client(headers={"host": "evil.example.org"}).get(path)
        assert (answer.status_code, b"isn't served here" in answer.content) == (400, True)
        assert {record.levelname for record in caplog.records} == {"INFO"}
        assert "host 'evil.example.org' is neither PUBLIC_URL's nor one of EXTRA_HOSTS" in caplog.text


def test_what_is_refused_is_one_line_of_the_log_without_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    error = ApiError(400, "stop: 'secret' is wrong", code="invalid_value", param="stop")
    answered(openai_error(error), "/v1/completions")
    assert [record.getMessage() for record in caplog.records] == ["GET /v1/completions: 400 invalid_value, stop"]


@pytest.mark.django_db
def test_djangos_own_line_is_not_said_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Client().get("/v1/nothing")
    assert [record.getMessage() for record in caplog.records] == ["GET /v1/nothing: 404 unknown_url"]


def test_what_is_logged_for_a_request_has_its_id() -> None:
    records: list[logging.LogRecord] = []

    async def view(request: HttpRequest) -> HttpResponseBase:
        records.append(logging.LogRecord("tracker", logging.INFO, "", 1, "here", (), None))
        NamesRequest().filter(records[0])
        return HttpResponse()

    answer = async_to_sync(answers_named_and_timed(view))(RequestFactory().get("/"))
    assert records[0].request_id == answer["x-request-id"]  # type: ignore[attr-defined]


def test_what_is_logged_for_none_has_none() -> None:
    record = logging.LogRecord("tracker", logging.INFO, "", 1, "here", (), None)
    assert Context().run(NamesRequest().filter, record)
    assert not hasattr(record, "request_id")
