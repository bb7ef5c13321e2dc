"""Sampled tokens to the OpenAI-shaped events of a chat's stream.

Every event carries, in a field `meshnet` that the tracker strips, the token ids it stands for and the position of the
first of them; the first event also the prompt's ids. Text goes out with the step that completes it: half a character
or the possible beginning of a stop string is held, and its ids go with the event that ends the doubt.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nodes.completion import CompletionRequest
from nodes.text import Detokenizer, StopMatcher


class Writer:
    """Turns sampled tokens into events. `finish_reason` is set with the last of them."""

    def __init__(
        self,
        request: CompletionRequest,
        prompt_ids: list[int],
        detokenizer: Detokenizer,
        eos_ids: Collection[int],
        max_tokens: int,
    ) -> None:
        self._request, self._prompt_ids, self._max_tokens = request, prompt_ids, max_tokens
        self._detokenizer, self._matcher, self._eos_ids = detokenizer, StopMatcher(request.stops), eos_ids
        self._ids: list[int] = []
        self._num_told = 0  # ids that went out with an event
        self.finish_reason: str | None = None

    def push(self, token_id: int) -> dict[str, Any] | None:
        """The event that this token completes, if it completes one."""
        self._ids.append(token_id)
        if token_id in self._eos_ids:
            return self._last("stop", "")
        text, is_stopped = self._matcher.push(self._detokenizer.push([token_id]))
        if is_stopped:
            self.finish_reason = "stop"
            return self._event(text)
        if len(self._ids) == self._max_tokens:
            return self._last("length", text)
        return self._event(text) if text else None

    def usage(self) -> dict[str, int]:
        prompt, completion = len(self._prompt_ids), len(self._ids)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _last(self, reason: str, text: str) -> dict[str, Any]:
        """With what was held back, since nothing follows that could end the doubt."""
        held, is_stopped = self._matcher.push(self._detokenizer.finish())
        self.finish_reason = "stop" if is_stopped else reason
        return self._event(text + held + ("" if is_stopped else self._matcher.finish()))

    def _event(self, text: str) -> dict[str, Any]:
        is_first = self._num_told == 0
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish_reason}
        if self._request.is_chat:
            choice["delta"] = ({"role": "assistant"} if is_first else {}) | {"content": text}
        else:
            choice["text"] = text
        trace: dict[str, Any] = {"ids": self._ids[self._num_told :], "position": len(self._prompt_ids) + self._num_told}
        if is_first:
            trace["prompt_ids"] = self._prompt_ids
        self._num_told = len(self._ids)
        return {"choices": [choice], "meshnet": trace}
