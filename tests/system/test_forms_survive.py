"""A node dies in the middle of an answer that has a form, JSON or calls, and the answer is that of the undisturbed run.

The tail's place in the grammar is made anew from the ids at another tail; the head's reading of the text goes on in the
tracker, whichever head the text comes from.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.lab.doubles import at_step, victim_of
from tests.lab.site import Answer, Site
from tests.lab.tap import Tap
from tests.system.survivors import Mesh, assert_lost, assert_same, mesh_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "parts": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    },
    "required": ["colour", "size", "parts"],
    "additionalProperties": False,
}
JSON_FORM: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "fox", "schema": SCHEMA}}
}
CALLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
FORMS = {"json": JSON_FORM, "calls": CALLS}
NUM_TOKENS = 300  # enough for either
STEP = 30  # amid the JSON, and amid the arguments of the call


class Formed:
    """The mesh, and what it answers when nothing happens."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.undisturbed = {form: self.ask(form) for form in FORMS}

    def ask(self, form: str, *, is_streamed: bool = True) -> Answer:
        return self.mesh.ask(is_streamed=is_streamed, is_sampled=True, **FORMS[form], max_tokens=NUM_TOKENS)


@pytest.fixture(scope="module")
def formed(tapped: tuple[Site, Tap], tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Formed]:
    folder = tmp_path_factory.mktemp("names") / "tiny-formed"
    with mesh_of(*tapped, tiny, folder, "tunnel", cuts=("0:5", "5:7")) as mesh:
        yield Formed(mesh)


def test_undisturbed_answers_have_their_form(formed: Formed) -> None:
    text = formed.undisturbed["json"]
    jsonschema.validate(json.loads(text.text), SCHEMA)
    assert (text.finish_reason, text.calls) == ("stop", [])

    answer = formed.undisturbed["calls"]
    [call] = answer.calls
    assert (answer.text, answer.finish_reason, call["name"]) == ("", "tool_calls", "paint")
    jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
    assert all(len(one.ids) > STEP + 10 for one in (text, answer)), "nothing is left to be lost"


@pytest.mark.parametrize(
    ("role", "form", "is_streamed"),
    [("last", "json", False), ("first", "json", True), ("last", "calls", True), ("first", "calls", True)],
)
def test_a_form_survives_the_tail_and_the_head(formed: Formed, role: str, form: str, is_streamed: bool) -> None:
    mesh, expected = formed.mesh, formed.undisturbed[form]
    mesh.mend()
    trigger = mesh.steps.at(at_step("last", STEP), lambda asked: mesh.send(victim_of(role, asked), signal.SIGKILL))
    answer = formed.ask(form, is_streamed=is_streamed)
    lost = trigger.wait()
    assert_lost(lost, mesh.steps.seen(lost.session), role)
    assert_same(answer, expected)
    assert [(call["name"], call["arguments"]) for call in answer.calls] == [
        (call["name"], call["arguments"]) for call in expected.calls
    ]
    [failover] = mesh.site.story(answer.completion_id)["failovers"]
    assert failover["kind"] == ("head" if role == "first" else "hop")
    mesh.wait_until_free()
