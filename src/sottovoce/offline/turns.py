"""Where a window's first language ends: recordings in several languages are decoded turn by turn.

The encoder states of the window are probed in stretches (`language.probe`), the stretches smoothed by
a hidden Markov model, and a change is moved to the quietest moment near it. It knows no text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sottovoce.audio.features import RecordingFeatures
from sottovoce.backends.base import Backend
from sottovoce.language.probe import LanguageProbe
from sottovoce.language.smoothing import SmoothingOptions, viterbi
from sottovoce.offline.engine import Engine
from sottovoce.types import FRAMES_PER_SECOND, EncoderOutput

WIDTH_S = 2.0
HOP_S = 0.25
SMOOTHING = SmoothingOptions(median_frames=1, stay=0.98, evidence=0.7)
SHORTEST_S = 1.0
"""A change this near to the end of a window is left to the next window."""
SEARCH_S = 0.6
"""How far from the change its quietest moment is looked for."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Encoder frames [0, n_frames) of a window in one language; n_frames None: all of the window.

    probability: what the probed stretches of the turn gave the language on average.
    """

    language: str
    probability: float
    n_frames: int | None


def probe_for(engine: Engine) -> LanguageProbe | None:
    """What tells the languages of a recording apart; None where it has one, or one for all windows."""
    if engine.known_language is not None or not engine.options.per_window_language:
        return None
    allowed = engine.options.decoding.allowed_languages or engine.tokenizer.language_codes
    codes = [engine.tokenizer.with_language(language).language or "" for language in allowed]
    return LanguageProbe(engine.backend, engine.tokenizer, codes)


def first_turn(probe: LanguageProbe, encoded: EncoderOutput, mel: Tensor) -> Turn:
    """The language that a window begins with, and where another one begins, if one does.

    encoded: one window. mel: its log-mel (n_mels, 2 * n_frames), for the quietest moment.
    """
    n_frames = encoded.n_content_frames[0]
    spans = stretches(n_frames)
    probed = probe.probe(encoded, spans)
    heard = np.array([one.probabilities ** (1.0 - one.no_speech) for one in probed])
    heard /= heard.sum(axis=1, keepdims=True)
    path = viterbi(heard, SMOOTHING)
    language = int(path[0])
    changes = np.flatnonzero(path != language)
    last = int(changes[0]) if len(changes) else len(path)
    probability = float(heard[:last, language].mean())
    end = _centre(spans, last) if len(changes) else n_frames
    if n_frames - end < SHORTEST_S * FRAMES_PER_SECOND:
        return Turn(probe.languages[language], probability, None)
    return Turn(probe.languages[language], probability, quietest(mel, end))


@dataclass(frozen=True, slots=True)
class LanguageSpan:
    """A stretch of a recording in one language; seconds, and the mean probability of the language."""

    start: float
    end: float
    language: str
    probability: float


def language_spans(
    backend: Backend, features: RecordingFeatures, probe: LanguageProbe
) -> Iterator[LanguageSpan]:
    """The languages of a recording in order, without gaps; neighbours differ.

    features: of the whole recording, at its beginning.
    """
    seek, last = 0, None
    while features.has(seek):
        features.drop_before(seek)
        window = features.window(seek, n_frames=2 * backend.dims.n_audio_ctx)
        turn = first_turn(probe, backend.encode(window), window.mel[0])
        n_frames = window.n_content_frames[0] if turn.n_frames is None else 2 * turn.n_frames
        span = LanguageSpan(_seconds(seek), _seconds(seek + n_frames), turn.language, turn.probability)
        if last is not None and last.language != span.language:
            yield last
            last = None
        last = span if last is None else _joined(last, span)
        seek += n_frames
    if last is not None:
        yield last


def stretches(n_frames: int) -> list[tuple[int, int]]:
    """Spans of WIDTH_S, one every HOP_S; one shorter span where the window is no longer than that."""
    width, hop = round(WIDTH_S * FRAMES_PER_SECOND), round(HOP_S * FRAMES_PER_SECOND)
    starts = range(0, max(1, n_frames - width + 1), hop)
    return [(start, min(start + width, n_frames)) for start in starts]


def quietest(mel: Tensor, frame: int) -> int:
    """The encoder frame with the least energy around it, near `frame`; of equal ones the nearest."""
    loudness: npt.NDArray[np.float64] = mel.float().mean(dim=0).cpu().numpy().astype(np.float64)
    smooth = np.convolve(loudness, np.ones(9) / 9, mode="same")[::2]
    reach = round(SEARCH_S * FRAMES_PER_SECOND)
    low, high = max(1, frame - reach), min(len(smooth), frame + reach)
    near = smooth[low:high] + 1e-6 * np.abs(np.arange(low, high) - frame)
    return low + int(near.argmin())


def _joined(first: LanguageSpan, second: LanguageSpan) -> LanguageSpan:
    weights = first.end - first.start, second.end - second.start
    mean = np.average([first.probability, second.probability], weights=weights)
    return LanguageSpan(first.start, second.end, first.language, float(mean))


def _seconds(mel_frame: int) -> float:
    return mel_frame / (2 * FRAMES_PER_SECOND)


def _centre(spans: list[tuple[int, int]], index: int) -> int:
    """The frame where stretch `index` is half in the old language and half in the new one."""
    start, end = spans[index]
    return (start + end) // 2
