"""Language detection from the decoder's prediction after <|startoftranscript|>.

Source: openai-whisper 20250625 `detect_language`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sottovoce.decoding.filters import log_softmax
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, EncoderOutput
from sottovoce.text.languages import find_language
from sottovoce.text.tokenizer import Tokenizer

NO_PRIOR: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LanguageDetection:
    """The language of one window or recording.

    probability: among those allowed, with the prior. probabilities: of every language, without prior.
    allowed_mass: the sum of those allowed. no_speech_prob: of <|nospeech|> against all languages.
    """

    language: str
    probability: float
    probabilities: Mapping[str, float]
    allowed_mass: float
    no_speech_prob: float


def detect_language(
    backend: Backend, tokenizer: Tokenizer, encoded: EncoderOutput, *, allowed: Sequence[str] = ()
) -> list[LanguageDetection]:
    """Detect the language of every window among those allowed; empty: all.

    Raises:
        OptionError: an English-only model, or a language that it does not have.
    """
    if not tokenizer.is_multilingual:
        raise OptionError(f"{backend.name}: an English-only model has no languages to tell apart")
    n_windows = encoded.batch_size
    answers = np.array([*tokenizer.language_tokens, tokenizer.no_speech])
    rows = backend.rows()
    rows.admit(encoded)
    output = rows.step([[tokenizer.sot]] * n_windows, [[0]] * n_windows, vocabulary=answers)
    probabilities = np.exp(log_softmax(output.logits[:, :-1]))
    no_speech = np.exp(log_softmax(output.logits))[:, -1].tolist()
    return [_choose(probabilities[row], no_speech[row], tokenizer, allowed) for row in range(n_windows)]


def combine_detections(
    detections: Sequence[LanguageDetection],
    tokenizer: Tokenizer,
    *,
    allowed: Sequence[str] = (),
    weights: Sequence[float] | None = None,
    log_prior: Mapping[str, float] = NO_PRIOR,
) -> LanguageDetection:
    """Average detections of several windows by weight, then choose among `allowed`.

    log_prior: natural log-probability of each code, up to a constant; 0 for missing codes.
    """
    shares = np.array(weights or [1.0] * len(detections))
    shares = shares / shares.sum()
    table = np.array([list(detection.probabilities.values()) for detection in detections])
    no_speech = np.array([detection.no_speech_prob for detection in detections])
    odds = {code: math.exp(each) for code, each in log_prior.items()}
    return _choose(shares @ table, float(shares @ no_speech), tokenizer, allowed, odds)


def _choose(
    probabilities: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    no_speech_prob: float,
    tokenizer: Tokenizer,
    allowed: Sequence[str],
    odds: Mapping[str, float] = NO_PRIOR,
) -> LanguageDetection:
    codes = tokenizer.language_codes
    table = dict(zip(codes, probabilities.tolist(), strict=True))
    choice = dict.fromkeys([find_language(language, codes) for language in allowed] or codes)
    weighted = {code: table[code] * odds.get(code, 1.0) for code in choice}
    total = sum(weighted.values())
    best = max(weighted, key=lambda code: weighted[code])
    share = weighted[best] / total if total > 0.0 else 1.0 / len(choice)
    return LanguageDetection(best, share, table, sum(table[code] for code in choice), no_speech_prob)
