"""The OpenAPI document: it says what the code does, and the page that shows it works from its own files."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator

from tests.tracker import test_api_page as page
from tracker import limits, openapi
from tracker.errors import CODES
from tracker.limits import REQUESTS_PER_MINUTE, TOKENS_PER_DAY, Standing
from tracker.openapi import document

DOCUMENT = document("https://mesh.example.org")
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS: list[Any] = [operation for item in DOCUMENT["paths"].values() for operation in item.values()]


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(DOCUMENT | {"$ref": f"#/components/schemas/{name}"})


def references(node: Any) -> set[str]:
    if isinstance(node, list):
        return {found for one in node for found in references(one)}
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own | {found for one in node.values() for found in references(one)}
    return set()


def test_its_schemas_are_schemas_and_its_references_lead_somewhere() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    assert references(DOCUMENT) <= {f"#/components/schemas/{name}" for name in SCHEMAS}
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT


@pytest.mark.parametrize(("name", "table"), openapi._TABLES.items())
def test_requests_have_every_parameter_of_the_table_and_no_other(name: str, table: Any) -> None:
    assert list(SCHEMAS[name]["properties"]) == list(table)
    assert SCHEMAS[name]["additionalProperties"] is False
    for row in table.values():
        assert row.words in SCHEMAS[name]["properties"][row.name]["description"]


@pytest.mark.parametrize("row", page.ROWS, ids=str)
def test_it_accepts_what_is_accepted_and_refuses_what_is_not_honoured(row: page.Row) -> None:
    schema = validator("CompletionRequest" if row.place == "completion" else "ChatRequest")
    for value in row.accepted:
        schema.validate(row.request(value)[0])
    for value in row.refused:
        assert not schema.is_valid(row.request(value)[0])


def test_nothing_of_the_code_is_in_it() -> None:
    text = json.dumps(DOCUMENT)
    assert '"title"' not in text.replace('"title": "Meshnet"', "")
    assert not re.search(r"pydantic|tracker\.|__|Annotated", text)


def test_every_operation_names_its_errors_and_headers() -> None:
    told = " ".join(response["description"] for operation in OPERATIONS for response in operation["responses"].values())
    assert {code for code in CODES if f"`{code}`" not in told} == {"unknown_url"}
    for operation in OPERATIONS:
        for response in operation["responses"].values():
            assert {"x-request-id", "Server-Timing"} <= set(response["headers"])


def test_what_a_key_with_limits_is_told_stands_where_it_is_told() -> None:
    standings = [Standing(limit, 10, 1, 5.0) for limit in (REQUESTS_PER_MINUTE, TOKENS_PER_DAY)]
    told = set(limits.headers(standings))
    assert len(told) == 6
    for operation in OPERATIONS:
        of_status = {status: set(response["headers"]) for status, response in operation["responses"].items()}
        asks = "requestBody" in operation
        assert (told <= of_status["200"], told <= of_status["429"]) == (asks, asks)
        assert "Retry-After" in of_status["429"]
        assert "Allow" in of_status["405"]


@pytest.mark.parametrize("name", ["ChatCompletionChunk", "CompletionChunk"])
def test_a_chunk_may_tell_the_usage(name: str) -> None:
    frame = {"id": "a", "created": 1, "model": "tiny", "choices": []}
    frame["object"] = SCHEMAS[name]["properties"]["object"]["enum"][0]
    for usage in (None, {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}):
        validator(name).validate(frame | {"usage": usage})
    assert not validator(name).is_valid(frame | {"usage": 7})


def test_it_is_served_to_everybody() -> None:
    answer = Client().get("/v1/openapi.json")
    assert answer.status_code == 200
    assert answer.json()["openapi"] == "3.1.0"
    assert answer.json()["paths"] == DOCUMENT["paths"]
    assert Client().post("/v1/openapi.json").json()["error"]["code"] == "method_not_allowed"


@pytest.mark.django_db
def test_the_page_that_shows_it_needs_nothing_from_elsewhere() -> None:
    answer = Client().get("/docs")
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = answer.content.decode()
    assert not re.search(r"<script[^>]*>[^<]|<style|style=|\son\w+=|https?://", text)
    files = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert len(files) == 5
    for file in files:
        assert Client().get(file).status_code == 200, file
