"""The tokens of live decoding."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from sottovoce.decoding.filters import FORBIDDEN, log_softmax, suppressed_tokens
from sottovoce.models.backend import Floats, Ints
from sottovoce.options.decoding import NON_SPEECH
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.text.tokenizer import Tokenizer

FEW = 0.25
"""Up to this fraction of the vocabulary, selecting rows is cheaper than computing all."""
_VOCABULARIES = threading.Lock()


@dataclass(frozen=True, eq=False)
class LiveVocabulary:
    """Token ids of live decoding.

    ids: (n,) int64 ascending, allowed tokens, <|endoftext|> last. blank: (n,) bool, those that may not begin
    a text. marks: (2, n) bool, marks that end sentences, and others. others: (k,) int64, <|nospeech|> and
    languages. n_vocab: rows of the model.
    """

    ids: Ints
    blank: npt.NDArray[np.bool_]
    marks: npt.NDArray[np.bool_]
    others: Ints
    n_vocab: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, n_vocab: int) -> LiveVocabulary:
        """Return the vocabulary of a model, one object for all sessions.

        Unlike offline, <|endoftext|> may come first: forbidding it invites hallucination.
        """
        with _VOCABULARIES:
            return cls._made(tokenizer, n_vocab)

    @classmethod
    @lru_cache(maxsize=8)
    def _made(cls, tokenizer: Tokenizer, n_vocab: int) -> LiveVocabulary:
        allowed = np.full(tokenizer.eot + 1, tokenizer.pieces is None)
        if tokenizer.pieces is not None:
            allowed[list(tokenizer.pieces.ids.values())] = True
        allowed[tokenizer.eot] = True
        allowed[[token for token in suppressed_tokens((NON_SPEECH,), tokenizer) if token < len(allowed)]] = (
            False
        )
        ids = np.flatnonzero(allowed)
        languages = tokenizer.language_tokens if tokenizer.is_multilingual else ()
        texts = [tokenizer.token_bytes(token).decode(errors="replace").strip() for token in ids[:-1].tolist()]
        kinds = np.array([*map(mark_kind, texts), 0])
        return cls(
            ids,
            blank=np.isin(ids, tokenizer.encode(" ")),
            marks=np.stack((kinds == 1, kinds == 2)),
            others=np.array((tokenizer.no_speech, *languages)),
            n_vocab=n_vocab,
        )

    @cached_property
    def rows(self) -> Ints | None:
        """Rows (n + k,) to compute in a step; None: all."""
        few = len(self.ids) + len(self.others) <= FEW * self.n_vocab
        return np.concatenate((self.ids, self.others)) if few else None

    @property
    def no_speech_row(self) -> int:
        """Where <|nospeech|> is among the computed rows."""
        return int(self.others[0]) if self.rows is None else len(self.ids)

    def no_speech_probs(self, logits: Floats) -> Floats:
        """Return P(<|nospeech|>) (R,) from the logits (R, n_rows) at <|startoftranscript|>."""
        probs: Floats = np.exp(log_softmax(logits)[:, self.no_speech_row])
        return probs

    def text_ends(self, logits: Floats) -> Floats:
        """Return the probabilities (R, 3) of a sentence's end, another mark and the end of the text, given
        the logits (R, n_rows) after the last word.
        """
        log_probs = self.log_probs(logits)
        marks = [np.exp(log_probs[:, kind]).sum(axis=1) for kind in self.marks]
        return np.column_stack([*marks, np.exp(log_probs[:, -1])])

    def log_probs(self, logits: Floats, *, begins: bool = False) -> Floats:
        """Return the log-probabilities (R, n) of `ids` from logits (R, n_rows).

        begins: the next tokens begin a text.
        """
        chosen = np.take(logits, self.ids, axis=1) if self.rows is None else logits[:, : len(self.ids)]
        if begins:
            chosen = np.where(self.blank, np.float32(FORBIDDEN), chosen)
        return log_softmax(chosen)


def mark_kind(text: str) -> int:
    """Return 1 for punctuation that ends a sentence, 2 for any other, else 0."""
    if not text or "\ufffd" in text or any(map(str.isalnum, text)):
        return 0
    return 1 if text.rstrip("\"'»”’)")[-1:] in SENTENCE_ENDS and not text.startswith(("..", "…")) else 2
