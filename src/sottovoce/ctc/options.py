"""Weights of the language models of a `CtcDecoder`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sottovoce.errors import OptionError

Level = Literal["auto", "token", "word"]
Case = Literal["keep", "lower", "upper"]


@dataclass(frozen=True, slots=True)
class CtcFusionOptions:
    """Weights of the parts of a `CtcDecoder`; scores are natural logs.

    lm_weight: times the n-gram model's log-probability. label_lm_weight: that of the model over labels beside
    it. word_score: added for every word.
    unknown_score: added for every word that the lexicon does not have.
    neural_weight: times the neural model's log-probability, which replaces the n-gram's over words.
    lm_kept: the share of lm_weight that stays beside the neural model.
    hotword_weight: what each label of a hotword adds where its list gives no weight.
    look_ahead: use the n-gram's unigrams inside words.
    level: whether the n-gram model is over labels or over words; "auto" looks at its vocabulary.
    token_offset: the words of the n-gram model over labels are `chr(label + token_offset)`, as NeMo writes
    them with 100.
    case: how words of the n-gram model and of word lists are changed before they are spelled in labels.
    Raises: OptionError for an lm_kept that is no share, and a token_offset that is negative or of a model
        over words.
    """

    lm_weight: float = 0.5
    label_lm_weight: float = 0.3
    word_score: float = 0.0
    unknown_score: float = -10.0
    neural_weight: float = 0.5
    lm_kept: float = 0.0
    hotword_weight: float = 2.0
    look_ahead: bool = True
    level: Level = "auto"
    token_offset: int | None = None
    case: Case = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.lm_kept <= 1:
            raise OptionError(f"lm_kept: expected a share from 0 to 1, got {self.lm_kept}")
        if self.token_offset is not None and self.level == "word":
            raise OptionError("token_offset: expected an n-gram model over labels, got level 'word'")
        if self.token_offset is not None and self.token_offset < 0:
            raise OptionError(f"token_offset: expected at least 0, got {self.token_offset}")
