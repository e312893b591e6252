"""Which language is spoken in each stretch of a window: one decoder step over states that are there.

The decoder is asked what follows <|startoftranscript|> alone, at position 0, where it was trained to
name the language. Its cross-attention sees only the frames of a stretch; all stretches are rows of one
batch over the keys and values that the transcription needs anyway, and only the language rows of the
output are computed. The probe has its own state and never touches the transcription's.

Not known here: time, smoothing, and what follows from a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sottovoce.backends.base import Backend
from sottovoce.errors import OptionError
from sottovoce.language.smoothing import Posterior
from sottovoce.language.switching import allowed_indices
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Which stretches are probed: `width_s` long, ending every `hop_s`; at the start of an utterance
    shorter ones, from `min_width_s`, count for less."""

    width_s: float = 1.5
    hop_s: float = 0.25
    min_width_s: float = 0.5

    def __post_init__(self) -> None:
        if not 0.02 <= self.min_width_s <= self.width_s <= 30.0:
            raise OptionError(
                f"min_width_s, width_s: expected 0.02 <= min_width_s <= width_s <= 30, "
                f"got {self.min_width_s} and {self.width_s}"
            )
        if not 0.02 <= self.hop_s <= 30.0:
            raise OptionError(f"hop_s: expected 0.02 to 30 seconds, got {self.hop_s}")


@dataclass(frozen=True, slots=True, eq=False)
class ProbedLanguage:
    """What the probe says of one stretch.

    probabilities: (L,) over the allowed languages, summing to 1. allowed_mass: what they had among all
    languages of the model. no_speech: probability of <|nospeech|> against all languages.
    """

    probabilities: Posterior
    allowed_mass: float
    no_speech: float


class LanguageProbe:
    """Probes stretches of encoder states for an allow-list of languages.

    Raises: OptionError for an English-only model, or languages that the model does not know.
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, languages: Sequence[str]) -> None:
        if not tokenizer.is_multilingual:
            raise OptionError(f"{backend.name}: an English-only model cannot tell languages apart")
        self._languages = tuple(languages)
        self._allowed = list(allowed_indices(languages, tokenizer.language_codes))
        self._backend = backend
        self._token = tokenizer.sot
        rows = (*tokenizer.language_tokens, tokenizer.no_speech)
        self._rows = torch.tensor(rows, device=backend.device)  # (L + 1,)

    @property
    def languages(self) -> tuple[str, ...]:
        """The allow-list, in the order of `probabilities`."""
        return self._languages

    def probe(self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> list[ProbedLanguage]:
        """Probe frames [start, end) of a window (batch of 1), all spans in one step.

        Raises: OptionError for a span that is empty or outside of the window.
        """
        if not spans:
            return []
        asked = self._backend.first_step(encoded, spans, token=self._token, vocabulary=self._rows)
        logits: Posterior = asked.cpu().double().numpy()  # (n_spans, L + 1)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        totals = weights.sum(axis=1)
        named = totals - weights[:, -1]
        masses = (weights[:, self._allowed].sum(axis=1) / named).tolist()
        no_speech = (weights[:, -1] / totals).tolist()
        chosen = logits[:, self._allowed]  # what underflowed above still tells the allowed ones apart
        allowed = np.exp(chosen - chosen.max(axis=1, keepdims=True))
        allowed /= allowed.sum(axis=1, keepdims=True)
        return [ProbedLanguage(*each) for each in zip(allowed, masses, no_speech, strict=True)]
