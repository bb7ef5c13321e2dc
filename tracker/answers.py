"""What users of the OpenAI API get: chunks of a stream or the whole answer, put together from the head's stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracker import calls, callshapes, logprobs
from tracker.calls import CallReader, Markup
from tracker.errors import ApiError, told
from tracker.events import Delta
from tracker.hopreports import Report
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
    progress: Report | None = None  # the newest that its head has told
    ids: list[int] = field(default_factory=list)
    prompt_ids: tuple[int, ...] = ()
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    node_names: dict[str, str] = field(default_factory=dict)  # by peer_id: addresses are nobody's business
    markup: Markup | None = None  # of the tool calls in the text, where there may be any
    _chunked: CallReader | None = None  # what chunks have told of the calls
    _has_role: bool = False

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.ids += delta.ids
        self.prompt_ids = delta.prompt_ids or self.prompt_ids
        self.logprobs += delta.logprobs
        self.markup = self.markup or delta.calls
        self.progress = delta.progress or self.progress
        if delta.finish_reason:
            self.finish_reason = self._finish_reason(delta.finish_reason)

    @property
    def prompt_tokens(self) -> int:
        told = self.report.prompt_tokens if self.report else None
        return len(self.prompt_ids) if told is None else told

    @property
    def completion_tokens(self) -> int:
        told = self.report.completion_tokens if self.report else None
        return len(self.ids) if told is None else told

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def chunk(self, delta: Delta) -> bytes:
        """The event of an added piece of text. Several where it holds calls, a comment where all is in doubt."""
        if self.markup:
            return self._call_chunks(delta, self.markup)
        said = (
            {"delta": self._role() | {"content": delta.text}} if self.completion.form.is_chat else {"text": delta.text}
        )
        return self._chunk(delta, said)

    def whole_choice(self) -> dict[str, Any]:
        told = self._shaped(self.logprobs) if self.completion.has_logprobs else None
        choice: dict[str, Any] = {"index": self.index, "logprobs": told, "finish_reason": self.finish_reason}
        if not self.completion.form.is_chat:
            return choice | {"text": self.text}
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.markup:
            message |= callshapes.message(calls.read(self.text, self.markup), self.completion.completion_id, self.index)
        return choice | {"message": message}

    def trace(self) -> dict[str, Any]:
        return {"prompt_ids": self.prompt_ids, "ids": self.ids} | self.hop_table()

    def hop_table(self) -> dict[str, Any]:
        return {"hops": self.hops()}

    @property
    def last_told(self) -> Report | None:
        """Of its route: the head's last word, or what it told before."""
        return self.report or self.progress

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

    def _chunk(self, delta: Delta, said: dict[str, Any], *, is_first: bool = True, is_last: bool = True) -> bytes:
        """An event for a part of what a head's event says."""
        completion = self.completion
        told = self._shaped(delta.logprobs) if completion.has_logprobs and delta.logprobs and is_first else None
        reason = self.finish_reason if delta.finish_reason and is_last else None
        choice: dict[str, Any] = {"index": self.index, "logprobs": told, "finish_reason": reason} | said
        fields = completion.chunk_frame() | {"choices": [choice]}
        if completion.includes_usage:
            fields["usage"] = None
        if completion.has_trace and is_first:
            fields["meshnet"] = {"ids": delta.ids, "position": delta.position}
            fields["meshnet"] |= {"prompt_ids": delta.prompt_ids} if delta.prompt_ids is not None else {}
        return event(fields)

    def _call_chunks(self, delta: Delta, markup: Markup) -> bytes:
        """One event for each piece of content, each call's beginning and each piece of its arguments."""
        completion = self.completion
        reader = self._chunked = self._chunked or CallReader(markup)
        pieces = [*reader.feed(delta.text), *(reader.finish() if delta.finish_reason else ())]
        said = [callshapes.delta(piece, completion.completion_id, self.index) for piece in pieces]
        if not said:
            if self._has_role and not (delta.finish_reason or completion.has_trace or completion.has_logprobs):
                return KEEPALIVE
            said = [{}]
        if not self._has_role:
            said[0] = self._role() | {"content": None} | said[0]
        last = len(said) - 1
        chunks = [
            self._chunk(delta, {"delta": one}, is_first=number == 0, is_last=number == last)
            for number, one in enumerate(said)
        ]
        return b"".join(chunks)

    def _role(self) -> dict[str, Any]:
        """In the first chunk and no other, whatever the head says."""
        role = {} if self._has_role else {"role": "assistant"}
        self._has_role = True
        return role

    def _finish_reason(self, told: str) -> str:
        """What a head calls a stop ends calls, where they are whole."""
        if self.markup and told == "stop" and calls.read(self.text, self.markup).is_complete:
            return "tool_calls"
        return told


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
    failure: ApiError | None = None  # of the first choice that failed: the others end with it

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
        if self.has_trace and any(answer.report for answer in self.answers):
            yield event(self.chunk_frame() | {"choices": [], "meshnet": self._trace(Answer.hop_table)})
        if self.includes_usage:
            yield event(self.chunk_frame() | {"choices": [], "usage": self.usage()})

    def whole(self) -> dict[str, Any]:
        """The unstreamed answer."""
        choices = [answer.whole_choice() for answer in self.answers]
        fields = self._frame(self.form.object) | {"choices": choices, "usage": self.usage()}
        return fields | ({"meshnet": self._trace(Answer.trace)} if self.has_trace else {})

    def _trace(self, told: Callable[[Answer], dict[str, Any]]) -> dict[str, Any]:
        """Of several choices, one by one."""
        traces = [told(answer) for answer in self.answers]
        return traces[0] if len(traces) == 1 else {"choices": [{"index": i} | one for i, one in enumerate(traces)]}

    def chunk_frame(self) -> dict[str, Any]:
        return self._frame(self.form.chunk_object)

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model}


def event(fields: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def error_event(error: ApiError) -> bytes:
    return event(told(error).as_openai())
