"""Incremental detokenizing: text of tokens as they come, never half a character.

A token is a run of UTF-8 bytes that may end inside a character; one Chinese character can take three tokens.
However a stream of tokens is cut, the text is that of decoding it whole. Special tokens and timestamps are
left out.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass

from sottovoce.text.tokenizer import Tokenizer


class Detokenizer:
    """Text of tokens as they come, held back while a character is incomplete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Iterable[int]) -> str:
        """Add text tokens; return the text that they complete, which may be empty."""
        eot = self._tokenizer.eot
        pieces = (self._tokenizer.token_bytes(token) for token in tokens if token < eot)
        return "".join([self._decoder.decode(piece) for piece in pieces])

    @property
    def pending(self) -> bytes:
        """The bytes of an incomplete character, at most three."""
        return self._decoder.getstate()[0]

    def flush(self) -> str:
        """Return U+FFFD for an incomplete character, else "", and begin a new text."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text


@dataclass(frozen=True, slots=True)
class TokenWord:
    """A word as written (leading space included) and its text tokens."""

    text: str
    tokens: tuple[int, ...]
