"""Names a model before its first node comes, or changes how its steps travel."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from relay.headers import DTYPE_BYTES
from tracker.models import LanguageModel


class Command(BaseCommand):
    help = "Makes a model's row, or changes it. What its nodes fix, such as the fingerprint, stays."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="As users ask for it, and nodes name it.")
        parser.add_argument("--wire-dtype", choices=list(DTYPE_BYTES), help="How activations travel between nodes.")
        parser.add_argument("--prefill-chunk", type=int, metavar="N", help="Tokens per step of a prompt.")
        parser.add_argument("--context-length", type=int, metavar="N", help="Tokens of prompt and answer, at most.")

    def handle(
        self,
        *args: Any,
        name: str,
        wire_dtype: str | None,
        prefill_chunk: int | None,
        context_length: int | None,
        **options: Any,
    ) -> str:
        model = LanguageModel.objects.filter(name=name).first() or LanguageModel(name=name)
        model.wire_dtype = wire_dtype or model.wire_dtype
        model.prefill_chunk_tokens = model.prefill_chunk_tokens if prefill_chunk is None else prefill_chunk
        model.context_length = model.context_length if context_length is None else context_length
        try:
            model.full_clean()
        except ValidationError as error:
            raise CommandError(
                "; ".join(f"{field}: {' '.join(said)}" for field, said in error.message_dict.items())
            ) from None
        model.save()
        context = f"context of {model.context_length} tokens" if model.context_length else "context as its nodes say"
        return (
            f"{model.name}: {model.wire_dtype} on the wire, prefill in {model.prefill_chunk_tokens} tokens, {context}"
        )
