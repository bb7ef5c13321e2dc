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

from tracker.middleware import NamesRequest, Timings, answers_named_and_timed, request_id_of, timings_of

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
    answer = Client().get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


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
