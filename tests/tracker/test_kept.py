"""Of what a client sent nothing is kept when it is refused; where the fault is can be found all the same."""

from __future__ import annotations

import pytest

from tracker.errors import ApiError
from tracker.kept import in_a_line, place_of, words_of


@pytest.mark.parametrize(
    ("param", "place"),
    [
        (None, ""),
        ("temperature", "temperature"),
        ("messages[3].content[0].text", "messages[3].content[0].text"),
        ("response_format.json_schema.schema.properties.secret", "response_format.json_schema.schema"),
        ("tools[2].function.parameters.anyOf[1]", "tools[2].function.parameters"),
        ("secret", ""),
        ("messages[secret].role", ""),
        ("meshnet.secret", "meshnet"),
    ],
)
def test_a_place_is_told_as_far_as_its_names_are_the_apis_own(param: str | None, place: str) -> None:
    assert place_of(param) == place


def test_a_refused_request_leaves_its_code_and_place() -> None:
    error = ApiError(400, "stop: 'secret' is wrong", code="bad_request", param="stop")
    assert words_of(error) == "the parameter can't have this value: stop"
    assert words_of(ApiError(404, "no model 'secret'", code="model_not_found")) == (
        "there is no such model, or the key may not ask it"
    )
    assert in_a_line(ApiError(400, "secret", code="invalid_value", param="stop")) == "400 invalid_value, stop"
    assert in_a_line(ApiError(400, "secret", code="invalid_json")) == "400 invalid_json"


def test_what_nodes_and_the_site_have_done_is_kept_in_words() -> None:
    assert words_of(ApiError(502, "node beta is lost", code="peer_gone")) == "node beta is lost"
