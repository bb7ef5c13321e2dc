"""Sampled tokens to the OpenAI-shaped events of a chat's stream.

Every event carries, in a field `meshnet` that the tracker strips, the token ids it stands for and the position of the
first of them; the first event also the prompt's ids. Text goes out with the step that completes it: half a character
or the possible beginning of a stop string is held, and its ids go with the event that ends the doubt. So do log
probabilities where they are asked for: one entry for each token that has a part in the text.

Where functions may be called the first event says how the model writes calls; the text is told as it is, with the
marks that are special tokens of the model, and the tracker finds the calls in it.

A chat that another head has begun goes on without a seam: the first event carries what follows the last one there.
"""

from __future__ import annotations

from typing import Any

from nodes.completion import CompletionRequest
from nodes.resume import Resume, Seam
from nodes.sampling import Sampled, TokenLogprobs
from nodes.text import StopMatcher, Tokenizer


class Writer:
    """Turns sampled tokens into events. `finish_reason` is set with the last of them."""

    def __init__(
        self, request: CompletionRequest, prompt_ids: list[int], tokenizer: Tokenizer, max_tokens: int
    ) -> None:
        self._request, self._prompt_ids, self._max_tokens = request, prompt_ids, max_tokens
        self._tokenizer = tokenizer
        self._markup = tokenizer.markup if request.form.tools else None
        self._detokenizer = tokenizer.detokenizer(tokenizer.special_marks if self._markup else ())
        self._matcher = StopMatcher(request.stops)
        self._ids: list[int] = []
        self._num_told = 0  # ids that went out with an event
        self._num_characters = 0  # that the tokens so far stand for, before stop strings are looked for
        self._num_out = 0  # characters that went out
        self._logprobs: list[dict[str, Any]] = []  # that go out with the next event
        self._seam: Seam | None = None  # where another head has told the beginning
        self.finish_reason: str | None = None

    def resume(self, told: Resume) -> dict[str, Any] | None:
        """Takes the ids that another head has told; an event when they are more than the text that was sent with them.

        Raises ResumeMismatch."""
        self._seam = Seam(told.sent_chars, told.sent_sha256)
        text = ""
        for token_id in told.ids:
            if not self.finish_reason:
                text += self._take(Sampled(token_id))
        self._num_told = len(self._ids)
        return self._told(text)

    def push(self, token: Sampled) -> dict[str, Any] | None:
        """The event that this token completes, if it completes one. Raises ResumeMismatch."""
        return self._told(self._take(token))

    def usage(self) -> dict[str, int]:
        prompt, completion = len(self._prompt_ids), len(self._ids)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _take(self, token: Sampled) -> str:
        """The text that this token completes. Sets finish_reason with the last."""
        self._ids.append(token.token_id)
        if token.token_id in self._tokenizer.eos_ids:
            return self._rest("stop", "")
        if token.logprobs:
            self._logprobs.append(self._spelled_out(token.token_id, token.logprobs))
        piece = self._detokenizer.push([token.token_id])
        self._num_characters += len(piece)
        text, is_stopped = self._matcher.push(piece)
        if is_stopped:
            self.finish_reason = "stop"
        elif len(self._ids) == self._max_tokens:
            return self._rest("length", text)
        return text

    def _rest(self, reason: str, text: str) -> str:
        """With what was held back, since nothing follows that could end the doubt."""
        held, is_stopped = self._matcher.push(self._detokenizer.finish())
        self.finish_reason = "stop" if is_stopped else reason
        return text + held + ("" if is_stopped else self._matcher.finish())

    def _told(self, text: str) -> dict[str, Any] | None:
        self._num_out += len(text)
        text = self._seam.beyond(text) if self._seam else text
        if self._seam and self.finish_reason:
            self._seam.end()
        return self._event(text) if text or self.finish_reason else None

    def _event(self, text: str) -> dict[str, Any]:
        is_first = not (self._num_told or self._seam)
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish_reason}
        if self._request.is_chat:
            choice["delta"] = ({"role": "assistant"} if is_first else {}) | {"content": text}
        else:
            choice["text"] = text
        trace: dict[str, Any] = {"ids": self._ids[self._num_told :], "position": len(self._prompt_ids) + self._num_told}
        if is_first:
            trace["prompt_ids"] = self._prompt_ids
            trace |= {"calls": self._markup.as_dict()} if self._markup else {}
        self._num_told = len(self._ids)
        return {"choices": [choice], "meshnet": trace | self._take_logprobs()}

    def _take_logprobs(self) -> dict[str, Any]:
        """Of the tokens up to here; of what a stop string cut off there are none."""
        told, self._logprobs = self._logprobs, []
        if self._matcher.is_stopped:
            told = [one for one in told if one["offset"] < self._num_out]
        return {"logprobs": told} if told else {}

    def _spelled_out(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        """`offset`: in the answer's text, of the first character that the token has a part in."""
        top = [self._spelled(one, logprob) for one, logprob in logprobs.top]
        return self._spelled(token_id, logprobs.logprob) | {"offset": self._num_characters, "top": top}

    def _spelled(self, token_id: int, logprob: float) -> dict[str, Any]:
        token, data = self._tokenizer.speller.spell(token_id)
        return {"token": token, "bytes": data, "logprob": round(logprob, 6)}
