"""The one language of a recording: found from its first windows that hold speech, and kept.

Source: openai-whisper 20250625 looks at the first window alone; more windows and what is common guard
against an odd beginning. Changes within a recording are the business of `turns`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import islice
from typing import NamedTuple

from sottovoce.decoding.detect import LanguageDetection
from sottovoce.offline.engine import Engine
from sottovoce.offline.work import Encode
from sottovoce.types import Features

FARTHEST_WINDOWS = 12
"""Speech is looked for in so many windows from the beginning: what is read ahead stays in memory."""


class FoundLanguage(NamedTuple):
    """What was found, and the first window, as it was encoded for that."""

    detection: LanguageDetection
    first: Encode


def find_language(
    engine: Engine, windows: Iterable[Features]
) -> Generator[Encode, None, FoundLanguage | None]:
    """Detect the language over the first windows with speech, each for as long as it is; None for no window.

    windows: in order, each going on in silence where the audio ends; no more are taken than are needed.
        What the model calls no speech is passed over, unless there is nothing else.
    """
    threshold = engine.options.fallback.no_speech_threshold
    heard: list[tuple[LanguageDetection, float]] = []
    silent: list[tuple[LanguageDetection, float]] = []
    first: Encode | None = None
    for features in islice(windows, FARTHEST_WINDOWS):
        work = Encode(features)
        yield work
        first = first or work
        detection = engine.detect(work.encoded)[0]
        is_silent = threshold is not None and detection.no_speech_prob > threshold
        (silent if is_silent else heard).append((detection, float(features.n_content_frames[0])))
        if len(heard) == engine.options.language_windows:
            break
    if first is None:
        return None
    detections, weights = zip(*(heard or silent), strict=True)
    return FoundLanguage(engine.combine(detections, weights), first)
