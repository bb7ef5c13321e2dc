"""What a chat comes to on this model: its tokens, how many more there may be, how each is chosen.

Whatever is wrong with it is its user's to mend, and is found here, before any node has worked for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nodes.completion import DEFAULT_MAX_TOKENS, CompletionError, CompletionRequest
from nodes.forms import Form
from nodes.grammar import Grammar, GrammarError, Grammars
from nodes.resume import PARAM as RESUME
from nodes.resume import ResumeError
from nodes.sampling import Sampling
from nodes.text import ChatTemplateMissing, PromptError, Tokenizer
from nodes.tools import FormError
from relay.headers import Ticket
from relay.wire import Code


@dataclass(frozen=True)
class Brief:
    request: CompletionRequest
    prompt_ids: list[int]
    max_tokens: int  # of the whole answer
    sampling: Sampling
    grammar: Grammar | None = None  # what the answer is held to; the sampling names it, and where the prompt ends

    @property
    def known_ids(self) -> list[int]:
        """The prompt, and what another head has told of the answer."""
        return [*self.prompt_ids, *(self.request.resume.ids if self.request.resume else ())]

    @classmethod
    def read(
        cls,
        path: str,
        body: bytes,
        ticket: Ticket,
        tokenizer: Tokenizer,
        vocab_size: int,
        context_length: int,
        grammars: Grammars | None,
    ) -> Brief:
        """Raises CompletionError 400 naming the parameter."""
        request = CompletionRequest.read(path, body, ticket.seed)
        grammar = _grammar(request.form, tokenizer, grammars)
        prompt_ids = _prompt_ids(request, tokenizer, vocab_size)
        max_tokens = _max_tokens(request, len(prompt_ids), ticket.max_tokens, context_length)
        sampling = _placed(request.sampling, len(prompt_ids), vocab_size, grammar)
        return cls(request, prompt_ids, max_tokens, sampling, grammar)


def _prompt_ids(request: CompletionRequest, tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    try:
        if request.resume:
            request.resume.check_vocabulary(vocab_size)
            return list(request.resume.prompt_ids)
        if request.messages is None:
            return tokenizer.plain_prompt(request.prompt or "")
        return tokenizer.chat_prompt(request.messages, request.form.tools.given if request.form.tools else ())
    except ChatTemplateMissing as error:
        raise CompletionError(400, "chat_template_missing", str(error), request.prompt_param) from None
    except PromptError as error:
        raise CompletionError(400, Code.BAD_REQUEST, str(error), request.prompt_param) from None
    except ResumeError as error:
        raise CompletionError(400, Code.BAD_REQUEST, str(error), RESUME) from None


def _max_tokens(request: CompletionRequest, num_prompt: int, allowed: int, context_length: int) -> int:
    room = context_length - num_prompt
    if room < 1:
        message = f"the prompt has {num_prompt} tokens; with its answer it must fit in {context_length}"
        raise CompletionError(400, "context_length_exceeded", message, request.prompt_param)
    if not num_prompt:
        raise CompletionError(400, Code.BAD_REQUEST, "the prompt is empty", request.prompt_param)
    return min(request.max_tokens or DEFAULT_MAX_TOKENS, allowed, room)


def _grammar(form: Form, tokenizer: Tokenizer, grammars: Grammars | None) -> Grammar | None:
    """Of the form that the answer must have, compiled."""
    try:
        text = form.grammar(tokenizer.markup, tokenizer.split)
        return None if text is None else _compiled(text, form, grammars)
    except FormError as error:
        raise CompletionError(400, Code.BAD_REQUEST, str(error), error.param) from None


def _compiled(text: str, form: Form, grammars: Grammars | None) -> Grammar:
    """Raises FormError, which names the schema that is to blame if one is."""
    param = "tools" if form.tools else "response_format"
    if grammars is None:
        raise FormError("can't be had: the model's tokenizer can't be used to hold answers to a form", param)
    try:
        return grammars.check(text)
    except GrammarError as error:
        whole = FormError(f"can't be kept to: {error}", param)
    for param, part in form.parts():
        try:
            grammars.check(part)
        except GrammarError as error:
            raise FormError(f"can't be kept to: {error}", param) from None
    raise whole


def _placed(sampling: Sampling, num_prompt: int, vocab_size: int, grammar: Grammar | None) -> Sampling:
    """With the prompt's length, where that matters, and the grammar's digest."""
    strange = [token_id for token_id, _ in sampling.logit_bias if token_id >= vocab_size]
    if strange:
        message = f"logit_bias names token {strange[0]}; the model's are 0 to {vocab_size - 1}"
        raise CompletionError(400, Code.BAD_REQUEST, message, "logit_bias")
    if grammar is not None:
        return replace(sampling, prompt_tokens=num_prompt, grammar=grammar.digest)
    counts_answer = sampling.frequency_penalty or sampling.presence_penalty
    return replace(sampling, prompt_tokens=num_prompt) if counts_answer else sampling
