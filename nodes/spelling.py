"""What single tokens stand for, in bytes: for log probabilities, which are told token by token.

A token may be half a character, so text isn't enough. Vocabularies write bytes in two ways: byte-level ones as one
printable character each (GPT-2's table), those with byte fallback as `<0xE2>` where no other token fits.
"""

from __future__ import annotations

import re
from typing import Any

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_START = "\u2581"


def _byte_level_table() -> dict[str, int]:
    """Character to byte, as GPT-2's vocabulary writes them: printable ones as they are, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _byte_level_table()


class Speller:
    """The bytes of a tokenizer's tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
        self._special = frozenset(tokenizer.get_added_vocab().values())

    def is_byte(self, token_id: int) -> bool:
        """Whether it is one of the `<0xE2>` that stand for what no other token fits."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        return bool(token and _FALLBACK.fullmatch(token)) and not self._is_byte_level

    def bytes_of(self, token_id: int) -> bytes:
        """Empty for an id that is no token, as padded vocabularies have."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        if token_id in self._special:
            return str(token).encode()
        if self._is_byte_level and all(character in _BYTES for character in token):
            return bytes(_BYTES[character] for character in token)
        fallback = _FALLBACK.fullmatch(token)
        return bytes([int(fallback[1], 16)]) if fallback else str(token).replace(_WORD_START, " ").encode()

    def spell(self, token_id: int) -> tuple[str, list[int]]:
        """(text, bytes); bytes that are no text are written as OpenAI does, `\\xf0\\x9f`."""
        data = self.bytes_of(token_id)
        try:
            return data.decode(), list(data)
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in data), list(data)
