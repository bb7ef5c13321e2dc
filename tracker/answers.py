"""What users of the OpenAI API get: chunks of a stream or the whole answer, put together from the head's stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracker import logprobs
from tracker.errors import ApiError
from tracker.events import Delta, Report
from tracker.logprobs import TokenLogprobs

KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Form:
    """What an endpoint calls things."""

    path: str  # of the same request at the head
    id_prefix: str
    object: str
    chunk_object: str
    is_chat: bool


CHAT = Form("/v1/chat/completions", "chatcmpl-", "chat.completion", "chat.completion.chunk", True)
COMPLETION = Form("/v1/completions", "cmpl-", "text_completion", "text_completion", False)


@dataclass(slots=True)
class Answer:
    """One choice of a completion as it grows: what one session's heads have said."""

    completion: Completion
    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    report: Report | None = None
    ids: list[int] = field(default_factory=list)
    prompt_ids: tuple[int, ...] = ()
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    node_names: dict[str, str] = field(default_factory=dict)  # by peer_id: addresses are nobody's business
    _has_role: bool = False

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.ids += delta.ids
        self.prompt_ids = delta.prompt_ids or self.prompt_ids
        self.logprobs += delta.logprobs

    @property
    def prompt_tokens(self) -> int:
        told = self.report.prompt_tokens if self.report else None
        return len(self.prompt_ids) if told is None else told

    @property
    def completion_tokens(self) -> int:
        told = self.report.completion_tokens if self.report else None
        return len(self.ids) if told is None else told

    def chunk(self, delta: Delta) -> bytes:
        """The event of a piece of text."""
        completion = self.completion
        fields = completion.chunk_frame() | {"choices": [self._chunk_choice(delta)]}
        if completion.includes_usage:
            fields["usage"] = None
        if completion.has_trace:
            fields["meshnet"] = {"ids": delta.ids, "position": delta.position}
            fields["meshnet"] |= {"prompt_ids": delta.prompt_ids} if delta.prompt_ids is not None else {}
        return event(fields)

    def whole_choice(self) -> dict[str, Any]:
        told = self._shaped(self.logprobs) if self.completion.has_logprobs else None
        choice: dict[str, Any] = {"index": self.index, "logprobs": told, "finish_reason": self.finish_reason}
        if self.completion.form.is_chat:
            return choice | {"message": {"role": "assistant", "content": self.text, "refusal": None}}
        return choice | {"text": self.text}

    def trace(self) -> dict[str, Any]:
        return {"prompt_ids": self.prompt_ids, "ids": self.ids, "hops": self.hops()}

    @property
    def unnamed_peers(self) -> set[str]:
        return {hop.peer_id for hop in (self.report.hops if self.report else ())} - set(self.node_names)

    def hops(self) -> list[dict[str, Any]]:
        return [
            {
                "node": self.node_names.get(hop.peer_id, ""),
                "start_layer": hop.start_layer,
                "end_layer": hop.end_layer,
                "path": hop.path,
                "steps": hop.steps,
                "ms_total": hop.ms_total,
                "compute_ms": hop.compute_ms,
                "queue_ms": hop.queue_ms,
                "drafted": hop.drafted,
                "accepted": hop.accepted,
            }
            for hop in (self.report.hops if self.report else ())
        ]

    def _shaped(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return logprobs.chat_shape(tokens) if self.completion.form.is_chat else logprobs.completion_shape(tokens)

    def _chunk_choice(self, delta: Delta) -> dict[str, Any]:
        told = self._shaped(delta.logprobs) if self.completion.has_logprobs and delta.logprobs else None
        choice: dict[str, Any] = {"index": self.index, "logprobs": told, "finish_reason": delta.finish_reason}
        if not self.completion.form.is_chat:
            return choice | {"text": delta.text}
        role = (
            {} if self._has_role else {"role": "assistant"}
        )  # in the first chunk and no other, whatever the head says
        self._has_role = True
        return choice | {"delta": role | {"content": delta.text}}


@dataclass(slots=True)
class Completion:
    """What a client asked for and gets: as many choices as it wants, each the answer of a session of its own."""

    form: Form
    completion_id: str
    created: int  # Unix seconds
    model: str
    includes_usage: bool = False
    has_trace: bool = False
    has_logprobs: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)  # of the response: what is left of the key's limits
    answers: list[Answer] = field(default_factory=list)

    def new_answer(self, node_names: Mapping[str, str]) -> Answer:
        """The next choice."""
        answer = Answer(self, len(self.answers), node_names=dict(node_names))
        self.answers.append(answer)
        return answer

    def usage(self) -> dict[str, int]:
        """The prompt counts once."""
        prompt = max(answer.prompt_tokens for answer in self.answers)
        completion = sum(answer.completion_tokens for answer in self.answers)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def last_chunks(self) -> Iterator[bytes]:
        """What follows the text: the trace, the usage, whichever was asked for."""
        reported = [answer for answer in self.answers if answer.report]
        if self.has_trace and reported:
            yield event(self.chunk_frame() | {"choices": [], "meshnet": {"hops": reported[0].hops()}})
        if self.includes_usage:
            yield event(self.chunk_frame() | {"choices": [], "usage": self.usage()})

    def whole(self) -> dict[str, Any]:
        """The unstreamed answer."""
        choices = [answer.whole_choice() for answer in self.answers]
        fields = self._frame(self.form.object) | {"choices": choices, "usage": self.usage()}
        return fields | ({"meshnet": self.answers[0].trace()} if self.has_trace else {})

    def chunk_frame(self) -> dict[str, Any]:
        return self._frame(self.form.chunk_object)

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model}


def event(fields: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def error_event(error: ApiError) -> bytes:
    return event(error.as_openai())
