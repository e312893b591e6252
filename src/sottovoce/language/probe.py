"""Language identification of stretches of speech by one decoder step after <|startoftranscript|>.

`LanguageProbe.detect` encodes each stretch separately. `detect_spans` masks the cross-attention of an encoded
window, whose states after a change still contain much of the language before (docs/streaming.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.audio.mel import MEL_FRAMES_PER_SECOND, SILENCE_LOG_MEL, window_features
from sottovoce.decoding.filters import log_softmax, log_sum_exp
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, EncoderOutput, IncrementalWindow, RunningRows
from sottovoce.models.dims import EncoderMode, Span
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Floats

Posterior: TypeAlias = npt.NDArray[np.float64]
SILENCE_CORRECTION = 0.3
"""Factor on the log-probabilities of silence, subtracted from those of speech: over all languages, 72.0 %
instead of 69.5 of development stretches are correct (docs/research/log.md).
"""
TAIL_S = 1.0
"""Seconds of padding behind a separately encoded stretch. The full window, used where sparse padding makes it
cheap, is better: of one second of read speech, over all languages, 90 instead of 68 % are correct.
"""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Every `hop_s`, the newest `width_s` are probed; until a change, all of an utterance up to `opening_s`.

    Raises:
        OptionError: a length is out of range.
    """

    width_s: float = 3.0
    hop_s: float = 0.5
    min_width_s: float = 0.5
    opening_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0.02 <= self.min_width_s <= self.width_s <= 30.0:
            raise OptionError(
                f"min_width_s, width_s: expected 0.02 <= min_width_s <= width_s <= 30, "
                f"got {self.min_width_s} and {self.width_s}"
            )
        if not 0.02 <= self.hop_s <= 30.0:
            raise OptionError(f"hop_s: expected 0.02 to 30 seconds, got {self.hop_s}")
        if not 0.0 <= self.opening_s <= 30.0:
            raise OptionError(f"opening_s: expected 0 to 30 seconds, got {self.opening_s}")

    def start(self, earliest: int, end: int, *, opening: bool) -> int:
        """Return the first sample of the stretch that ends at `end`; opening: before a change."""
        whole_s = max(self.width_s, self.opening_s) if opening else self.width_s
        if end - earliest <= round(whole_s * SAMPLE_RATE):
            return earliest
        return end - round(self.width_s * SAMPLE_RATE)


@dataclass(frozen=True, slots=True, eq=False)
class ProbedLanguage:
    """The language posterior of one stretch.

    probabilities: (L,) over the allowed languages. allowed_mass: their sum among all. no_speech: the
    probability of <|nospeech|>.
    """

    probabilities: Posterior
    allowed_mass: float
    no_speech: float


class LanguageProbe:
    """Language identification among allowed languages.

    Raises:
        OptionError: an English-only model, or unknown languages.
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, languages: Sequence[str]) -> None:
        if not tokenizer.is_multilingual:
            raise OptionError(f"{backend.name}: an English-only model cannot tell languages apart")
        self._languages = tuple(languages)
        self._allowed = _allowed_indices(languages, tokenizer.language_codes)
        self._backend = backend
        self._token = tokenizer.sot
        rows = (*tokenizer.language_tokens, tokenizer.no_speech)
        self._rows = np.array(rows)  # (L + 1,)
        self._silence_logits: Floats | None = None

    @property
    def languages(self) -> tuple[str, ...]:
        return self._languages

    @property
    def window_mode(self) -> EncoderMode | None:
        """How a stretch is encoded in a full window; None if that has no sparse padding."""
        mode = self._backend.encoder_mode.whole()
        return mode if mode.has_sparse_padding else None

    def detect_spans(self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> list[ProbedLanguage]:
        """Detect the language of frames [start, end) of a window (batch of 1), all spans in one step.

        Raises:
            OptionError: a span is empty or outside the window.
        """
        if not spans:
            return []
        rows = self._backend.rows()
        rows.admit(encoded)
        rows.select([0] * len(spans))
        return self._probed(self._first_logits(rows, spans))

    def detect(self, log_mels: Sequence[Floats]) -> list[ProbedLanguage]:
        """Detect the language of stretches, encoded separately in one batch.

        log_mels: un-normalised (n_mels, n_i), n_i at least 2.
        """
        return self._probed(self.logits(log_mels)) if log_mels else []

    def logits(self, log_mels: Sequence[Floats]) -> Floats:
        """Return the logits (n, L + 1) of all languages and <|nospeech|> of n >= 1 stretches."""
        if self.window_mode is not None:
            return self._raw_logits(log_mels)
        if self._silence_logits is None:
            # 2 s of digital silence
            silence = np.full((self._backend.dims.n_mels, 200), SILENCE_LOG_MEL, np.float32)
            raw = self._raw_logits([silence])
            self._silence_logits = np.float32(SILENCE_CORRECTION) * log_softmax(raw[:, :-1])
        raw = self._raw_logits(log_mels)
        languages = raw[:, :-1]
        corrected = log_softmax(languages - self._silence_logits) + log_sum_exp(languages)
        return np.concatenate((corrected, raw[:, -1:]), axis=1)

    def _raw_logits(self, log_mels: Sequence[Floats]) -> Floats:
        mode = self.window_mode
        rows = self._backend.rows()
        if mode is None:
            rows.admit(self._backend.encode(window_features(log_mels, self._n_columns(log_mels))))
        else:
            windows = [IncrementalWindow(log_mel, mode) for log_mel in log_mels]
            for result in self._backend.encode_incremental(windows):
                rows.admit(result.encoded)
        return self._first_logits(rows)

    def _first_logits(self, rows: RunningRows, spans: Sequence[Span] | None = None) -> Floats:
        tokens, wanted = [[self._token]] * rows.n_rows, [[0]] * rows.n_rows
        return rows.step(tokens, wanted, vocabulary=self._rows, spans=spans).logits

    def _n_columns(self, log_mels: Sequence[Floats]) -> int:
        tail_s = min(TAIL_S, self._backend.tail_s)
        longest = max(log_mel.shape[1] for log_mel in log_mels) + round(tail_s * MEL_FRAMES_PER_SECOND)
        return min(longest + longest % 2, 2 * self._backend.dims.n_audio_ctx)

    def batch_of(self, log_mels: Sequence[Floats]) -> tuple[int, ...]:
        """Return the key of stretches that may share a batch."""
        n_columns = self._n_columns(log_mels) if log_mels and self.window_mode is None else 0
        return id(self._backend), self._token, len(self._rows), n_columns

    def _probed(self, logits: Floats) -> list[ProbedLanguage]:
        return probed_languages(logits.astype(np.float64), self._allowed)


def _allowed_indices(languages: Sequence[str], codes: Sequence[str]) -> list[int]:
    if not languages:
        raise OptionError("languages: expected at least one code, got none")
    for language in languages:
        if language not in codes:
            raise OptionError(f"language '{language}': the model knows {', '.join(codes) or 'English only'}")
    if len(set(languages)) != len(languages):
        raise OptionError(f"languages: expected each code once, got {', '.join(languages)}")
    return [codes.index(language) for language in languages]


def detect_together(requests: Sequence[tuple[LanguageProbe, Sequence[Floats]]]) -> list[list[ProbedLanguage]]:
    """Detect the stretches of several probes with equal `LanguageProbe.batch_of` in one batch."""
    log_mels = [log_mel for _, parts_of in requests for log_mel in parts_of]
    if not log_mels:
        return [[] for _ in requests]
    logits = requests[0][0].logits(log_mels)
    parts = np.split(logits, np.cumsum([len(parts_of) for _, parts_of in requests])[:-1])
    return [probe._probed(part) for (probe, _), part in zip(requests, parts, strict=True)]


def probed_languages(logits: Posterior, allowed: Sequence[int]) -> list[ProbedLanguage]:
    """Return posteriors over the allowed languages (indices) from logits (n, L + 1)."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    totals = weights.sum(axis=1)
    languages = totals - weights[:, -1]
    masses = (weights[:, allowed].sum(axis=1) / languages).tolist()
    no_speech = (weights[:, -1] / totals).tolist()
    chosen = logits[:, allowed]  # distinguishes allowed languages whose probabilities underflowed
    shares = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return [ProbedLanguage(*each) for each in zip(shares, masses, no_speech, strict=True)]


FLOOR = 1e-3
"""Least probability of a language, so that one side cannot decide alone."""
BORDER_NATS = 0.5
"""Advantage of the first, quietest moment."""


def sides_of(moments: Sequence[int], first: int, end: int, length: int) -> list[tuple[int, int]]:
    """Return the stretches [start, end) before all moments, and those after them, within [first, end).

    length: of each, at most.
    """
    before = [(max(first, moment - length), moment) for moment in moments]
    return before + [(moment, min(end, moment + length)) for moment in moments]


def change_boundary(moments: Sequence[int], sides: Sequence[ProbedLanguage], languages: Sequence[int]) -> int:
    """Return the moment that best separates two languages, given what was detected in its `sides_of`."""
    before, after = (
        np.log([max(float(side.probabilities[place]), FLOOR) for side in probed])
        for probed, place in zip((sides[: len(moments)], sides[len(moments) :]), languages, strict=True)
    )
    nats = before + after
    nats[0] += BORDER_NATS
    return moments[int(nats.argmax())]
