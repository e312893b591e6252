"""Which language a window is in, asked of the decoder after <|startoftranscript|> alone.

That is the one place where Whisper was trained to predict the language token. Source: openai-whisper
20250625 `detect_language`; the allow-list keeps the whole distribution and says what it left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.errors import OptionError
from sottovoce.text.languages import find_language
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True)
class LanguageDetection:
    """The language of one window or recording.

    language: the likeliest of those allowed. probability: its share among those allowed.
    probabilities: of every language of the model, before anything was left out; they sum to 1.
    allowed_mass: the part of them that was allowed. no_speech_prob: of <|nospeech|> against all languages.
    """

    language: str
    probability: float
    probabilities: Mapping[str, float]
    allowed_mass: float
    no_speech_prob: float


@torch.inference_mode()
def detect_language(
    backend: Backend, tokenizer: Tokenizer, encoded: EncoderOutput, *, allowed: Sequence[str] = ()
) -> list[LanguageDetection]:
    """Detect the language of every window.

    allowed: codes or names to choose among; all languages of the model when empty.
    Raises: OptionError for an English-only model, or a language that the model does not have.
    """
    if not tokenizer.is_multilingual:
        raise OptionError(f"{backend.name}: an English-only model has no languages to tell apart")
    rows = torch.tensor([*tokenizer.language_tokens, tokenizer.no_speech], device=backend.device)
    start = torch.full((encoded.batch_size, 1), tokenizer.sot, device=backend.device)
    logits = backend.step(start, backend.start(encoded), vocabulary=rows).logits[:, 0].float()
    probabilities = logits[:, :-1].softmax(dim=1).cpu()
    no_speech = logits.softmax(dim=1)[:, -1].tolist()
    return [
        _choose(probabilities[row], no_speech[row], tokenizer, allowed) for row in range(encoded.batch_size)
    ]


def combine_detections(
    detections: Sequence[LanguageDetection], tokenizer: Tokenizer, *, allowed: Sequence[str] = ()
) -> LanguageDetection:
    """One detection of several windows: their probabilities averaged, then chosen among `allowed`."""
    table = torch.tensor([list(one.probabilities.values()) for one in detections], dtype=torch.float64)
    no_speech = sum(one.no_speech_prob for one in detections) / len(detections)
    return _choose(table.mean(dim=0), no_speech, tokenizer, allowed)


def _choose(
    probabilities: Tensor, no_speech_prob: float, tokenizer: Tokenizer, allowed: Sequence[str]
) -> LanguageDetection:
    codes = tokenizer.language_codes
    table = dict(zip(codes, probabilities.tolist(), strict=True))
    choice = [find_language(language, codes) for language in allowed] or list(codes)
    mass = sum(table[code] for code in set(choice))
    best = max(choice, key=lambda code: table[code])
    share = table[best] / mass if mass > 0.0 else 1.0 / len(set(choice))
    return LanguageDetection(best, share, table, mass, no_speech_prob)
