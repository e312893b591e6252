"""Tokens in, text out, piece by piece: never half a character, and knowing which word is unfinished.

A token is a piece of UTF-8 that may end inside a character; one Chinese character can take three
tokens. Cutting a stream of tokens anywhere gives the same text as decoding it whole.

Special tokens and timestamps are left out. Whether a word is right is not known here, only whether it
can still grow.
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
        """Completed text of these tokens and of what was held back; may be empty."""
        eot = self._tokenizer.eot
        pieces = (self._tokenizer.token_bytes(token) for token in tokens if token < eot)
        return "".join([self._decoder.decode(piece) for piece in pieces])

    @property
    def pending(self) -> bytes:
        """The bytes of an incomplete character, at most three."""
        return self._decoder.getstate()[0]

    def flush(self) -> str:
        """What remains: U+FFFD for an incomplete character, else "". Ready for a new text after it."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text


@dataclass(frozen=True, slots=True)
class TokenWord:
    """A word as written (leading space included) and its text tokens."""

    text: str
    tokens: tuple[int, ...]


class WordDetokenizer:
    """Words of tokens as they come, as `Tokenizer.split_to_word_tokens` cuts the whole.

    A word is complete when the next one has begun (languages with spaces) or its character is whole
    (languages without).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tail: list[int] = []

    def push(self, tokens: Iterable[int]) -> list[TokenWord]:
        """Words completed by these tokens, in order."""
        eot = self._tokenizer.eot
        self._tail.extend(token for token in tokens if token < eot)
        words = self._split()
        n_open = int(bool(words) and self._can_grow(words[-1]))
        complete = words[: len(words) - n_open]
        self._tail = [token for word in words[len(complete) :] for token in word.tokens]
        return complete

    @property
    def unfinished(self) -> TokenWord | None:
        """The last word, which later tokens may still lengthen; broken UTF-8 shows as U+FFFD."""
        words = self._split()
        return words[-1] if words else None

    def drop_unfinished(self) -> tuple[int, ...]:
        """Forget the unfinished word; its tokens, so that the caller can forget them too."""
        dropped, self._tail = tuple(self._tail), []
        return dropped

    def flush(self) -> list[TokenWord]:
        """The unfinished word, taken as finished. Ready for a new text after it."""
        words, self._tail = self._split(), []
        return words

    def _split(self) -> list[TokenWord]:
        words, tokens = self._tokenizer.split_to_word_tokens(self._tail)
        return [TokenWord(word, tuple(ids)) for word, ids in zip(words, tokens, strict=True)]

    def _can_grow(self, word: TokenWord) -> bool:
        if self._tokenizer.splits_on_spaces:
            return True
        detokenizer = Detokenizer(self._tokenizer)
        detokenizer.push(word.tokens)
        return bool(detokenizer.pending)
