"""The tokens that a live session may decode: text and <|endoftext|>, without special tokens and non-speech
signs.

Rows that a small model never learnt are left out too; where few remain, a step computes only these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from sottovoce.decoding.filters import FORBIDDEN, suppressed_tokens
from sottovoce.options.decoding import NON_SPEECH
from sottovoce.text.tokenizer import Tokenizer

FEW = 0.25
"""Up to this fraction of the vocabulary, selecting its rows costs less than computing all."""


@dataclass(frozen=True, eq=False)
class LiveVocabulary:
    """Token ids of live decoding.

    ids: (n,) int64 ascending, allowed tokens. blank: (m,) positions in `ids` of those that may not begin a
    text. others: (k,) int64, predicted at <|startoftranscript|> only: <|nospeech|>, and languages where the
    model has them. n_vocab: rows of the model.
    """

    ids: Tensor
    blank: Tensor
    others: Tensor
    n_vocab: int

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> LiveVocabulary:
        """Return the vocabulary of a model with n_vocab rows, the same object for all its sessions.

        A text begins with no space. <|endoftext|> may come first: to forbid it, as offline decoding does,
        invites hallucination.
        """
        allowed = torch.full((tokenizer.eot + 1,), tokenizer.pieces is None)
        if tokenizer.pieces is not None:
            allowed[list(tokenizer.pieces.ids.values())] = True
        allowed[tokenizer.eot] = True
        allowed[[token for token in suppressed_tokens((NON_SPEECH,), tokenizer) if token < len(allowed)]] = (
            False
        )
        ids = allowed.nonzero()[:, 0]
        blank = torch.isin(ids, torch.tensor(tokenizer.encode(" "))).nonzero()[:, 0]
        languages = tokenizer.language_tokens if tokenizer.is_multilingual else ()
        others = torch.tensor((tokenizer.no_speech, *languages), dtype=torch.int64)
        return cls(ids.to(device), blank.to(device), others.to(device), n_vocab)

    @cached_property
    def rows(self) -> Tensor | None:
        """Rows (n + k,) to compute in a step, `ids` and `others`; None: all of the model."""
        few = len(self.ids) + len(self.others) <= FEW * self.n_vocab
        return torch.cat((self.ids, self.others)) if few else None

    def no_speech_probs(self, logits: Tensor) -> list[float]:
        """Return P(<|nospeech|>) of each row from the logits (R, n_rows) of `rows` at <|startoftranscript|>.

        Rows that a small model did not learn have next to no probability.
        """
        if not len(self.others):
            return [0.0] * len(logits)
        column = int(self.others[0]) if self.rows is None else len(self.ids)
        found: list[float] = logits.float().softmax(dim=-1)[:, column].tolist()
        return found

    def log_probs(self, logits: Tensor, *, first: Sequence[int] = ()) -> Tensor:
        """Return the log-probabilities (R, n) of `ids`.

        logits: (R, n_rows) of `rows`. first: indices of rows whose next token begins a text.
        """
        whole = self.rows is None
        chosen = logits.index_select(1, self.ids) if whole else logits[:, : len(self.ids)].clone()
        if first and len(self.blank):
            rows = torch.tensor(first, device=chosen.device)
            chosen[rows[:, None], self.blank] = FORBIDDEN
        return chosen.log_softmax(dim=-1)
