"""Names a model before its first node comes, or changes how it is asked and how its steps travel."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from relay.headers import DTYPE_BYTES
from tracker import audit
from tracker.models import LanguageModel
from tracker.words import one_line

_COLUMNS = {  # of what is given
    "wire_dtype": "wire_dtype",
    "prefill_chunk": "prefill_chunk_tokens",
    "context_length": "context_length",
    "default_max_tokens": "default_max_tokens",
    "deadline": "deadline_s",
}


class Command(BaseCommand):
    help = "Makes a model's row, or changes it. What its nodes fix, such as the fingerprint, stays."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="As users ask for it, and nodes name it.")
        parser.add_argument("--wire-dtype", choices=list(DTYPE_BYTES), help="How activations travel between nodes.")
        parser.add_argument("--prefill-chunk", type=int, metavar="N", help="Tokens per step of a prompt.")
        parser.add_argument("--context-length", type=int, metavar="N", help="Tokens of prompt and answer, at most.")
        parser.add_argument(
            "--default-max-tokens", type=int, metavar="N", help="Tokens of an answer where its client names no number."
        )
        parser.add_argument("--deadline", type=int, metavar="S", help="Seconds that one chat may take.")
        policy = parser.add_mutually_exclusive_group()
        policy.add_argument("--refuse", metavar="WHY", help="Nobody asks it and no node joins with it any more.")
        policy.add_argument("--allow", action="store_true", help="Takes a refusal back.")

    def handle(self, *args: Any, name: str, refuse: str | None, allow: bool, **options: Any) -> str:
        model = LanguageModel.objects.filter(name=name).first() or LanguageModel(name=name)
        is_new = model.pk is None
        refuse = one_line(refuse) if refuse is not None else None
        given = {column: options[option] for option, column in _COLUMNS.items() if options[option] is not None}
        if refuse is not None or allow:
            given |= {"is_refused": refuse is not None, "refusal_reason": refuse or ""}
        for column, value in given.items():
            setattr(model, column, value)
        try:
            model.full_clean()
        except ValidationError as error:
            raise CommandError(
                "; ".join(f"{field}: {' '.join(said)}" for field, said in error.message_dict.items())
            ) from None
        model.save()
        if is_new or given:
            audit.record(None, "add" if is_new else "change", model, refuse or "", **given)
        return _in_words(model)


def _in_words(model: LanguageModel) -> str:
    told = [f"{model.wire_dtype} on the wire", f"prefill in {model.prefill_chunk_tokens} tokens"]
    told.append(f"context of {model.context_length} tokens" if model.context_length else "context as its nodes say")
    if model.default_max_tokens:
        told.append(f"answers of {model.default_max_tokens} tokens where no number is named")
    if model.deadline_s:
        told.append(f"{model.deadline_s} s for one chat")
    if model.is_refused:
        told.append("refused" + (f": {model.refusal_reason}" if model.refusal_reason else ""))
    return f"{model.name}: {', '.join(told)}"
