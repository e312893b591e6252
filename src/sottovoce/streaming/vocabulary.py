"""The tokens that a live stream can say: text and the end of text.

Special tokens and non-speech signs are left out, and so are rows that a small model never learnt; a step
computes the remaining rows alone where they are few. Not known here: models, and how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from sottovoce.decoding.filters import FORBIDDEN, suppressed_tokens
from sottovoce.decoding.options import NON_SPEECH
from sottovoce.text.tokenizer import Tokenizer

FEW = 0.25
"""Up to this part of the vocabulary, picking its rows costs less than computing all."""


@dataclass(frozen=True, eq=False)
class LiveVocabulary:
    """ids: (n,) int64 ascending, what may be said. blank: (m,) places in `ids` of what may not begin a text.

    others: (k,) int64, what a model may say at <|startoftranscript|>: no speech, where it knows that, and
    languages. n_vocab: rows of the model.
    """

    ids: Tensor
    blank: Tensor
    others: Tensor
    n_vocab: int

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> LiveVocabulary:
        """Of a model with n_vocab rows; the same one for all sessions of a model.

        No space where a text begins. The end of text may come at once: forbidding it, as offline decoding
        does, invites hallucination.
        """
        can_say = torch.full((tokenizer.eot + 1,), tokenizer.pieces is None)
        if tokenizer.pieces is not None:
            can_say[list(tokenizer.pieces.ids.values())] = True
        can_say[tokenizer.eot] = True
        can_say[[token for token in suppressed_tokens((NON_SPEECH,), tokenizer) if token < len(can_say)]] = (
            False
        )
        ids = can_say.nonzero()[:, 0]
        blank = torch.isin(ids, torch.tensor(tokenizer.encode(" "))).nonzero()[:, 0]
        languages = tokenizer.language_tokens if tokenizer.is_multilingual else ()
        others = torch.tensor((tokenizer.no_speech, *languages), dtype=torch.int64)
        return cls(ids.to(device), blank.to(device), others.to(device), n_vocab)

    @cached_property
    def rows(self) -> Tensor | None:
        """The rows to compute in a step, `ids` and `others`; None: all."""
        few = len(self.ids) + len(self.others) <= FEW * self.n_vocab
        return torch.cat((self.ids, self.others)) if few else None

    def no_speech_probs(self, logits: Tensor) -> list[float]:
        """Probabilities of no speech (R,) from the logits at <|startoftranscript|>, of `rows` (R, n_rows).

        Of a model that learnt few rows the others have next to none.
        """
        if not len(self.others):
            return [0.0] * len(logits)
        column = int(self.others[0]) if self.rows is None else len(self.ids)
        found: list[float] = logits.float().softmax(dim=-1)[:, column].tolist()
        return found

    def log_probs(self, logits: Tensor, *, first: Sequence[int] = ()) -> Tensor:
        """Log-probabilities (R, n) of what may be said.

        logits: (R, n_rows) of `rows`. first: rows that say the first token of a text.
        """
        whole = self.rows is None
        chosen = logits.index_select(1, self.ids) if whole else logits[:, : len(self.ids)].clone()
        if first and len(self.blank):
            rows = torch.tensor(first, device=chosen.device)
            chosen[rows[:, None], self.blank] = FORBIDDEN
        return chosen.log_softmax(dim=-1)

    def tokens(self, places: Tensor) -> list[list[int]]:
        """Ids of places (R, k) in `ids`."""
        found: list[list[int]] = self.ids[places].tolist()
        return found
