"""The languages of a recording without its text, by the rules by which a transcription follows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechFinder
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.engine.executor import LocalExecutor
from sottovoce.offline.cut import MEL_FRAMES_PER_SECOND
from sottovoce.offline.located import LocatedWindow, WindowLocator
from sottovoce.offline.pieces import PIECE_VAD
from sottovoce.offline.transcriber import Transcriber, TranscriptionState


@dataclass(frozen=True, slots=True)
class LanguageSpan:
    """A stretch of a recording in one language; seconds, and the mean probability of the language."""

    start: float
    end: float
    language: str
    probability: float


def language_spans(transcriber: Transcriber, recording: Recording) -> Iterator[LanguageSpan]:
    """Find the languages of a recording in order, without gaps; neighbours differ.

    Raises: AudioError.
    """
    state, speech = TranscriptionState(language=transcriber.fixed_language), SpeechFinder(PIECE_VAD)
    dims, device = transcriber.backend.dims, transcriber.backend.device
    executor = LocalExecutor(transcriber.backend)
    with RecordingFeatures(recording, dims.n_mels, device, observer=speech) as features:
        locator = WindowLocator(transcriber, features, speech, state)
        if state.language is None and not locator.expects_several:
            executor.run(locator.find_language(0, None))
        last: LanguageSpan | None = None
        seek = 0
        while features.has(seek):
            features.drop_before(seek)
            window = executor.run(locator.locate(seek, None))
            state.language, seek = window.language, window.end
            if last is not None and last.language != window.language:
                yield last
                last = None
            last = _span_of(window) if last is None else _joined(last, window)
        if last is not None:
            yield replace(last, end=features.duration_s or last.end)


def recording_language(transcriber: Transcriber, recording: Recording) -> LanguageDetection | None:
    """Find the language of a recording over its first windows with speech, as of one that is read in one
    language; None where it has no audio.

    Raises: AudioError.
    """
    transcriber = replace(transcriber, options=replace(transcriber.options, follow_languages=False))
    state = TranscriptionState()
    speech = SpeechFinder(PIECE_VAD)  # hears nothing: windows alone are detected
    dims, device = transcriber.backend.dims, transcriber.backend.device
    executor = LocalExecutor(transcriber.backend)
    with RecordingFeatures(recording, dims.n_mels, device) as features:
        executor.run(WindowLocator(transcriber, features, speech, state).find_language(0, None))
    return state.detection


def _span_of(window: LocatedWindow) -> LanguageSpan:
    return LanguageSpan(_s(window.seek), _s(window.end), window.language, window.probability)


def _joined(span: LanguageSpan, window: LocatedWindow) -> LanguageSpan:
    weights = span.end - span.start, _s(window.end - window.seek)
    mean = float(np.average([span.probability, window.probability], weights=weights))
    return LanguageSpan(span.start, _s(window.end), span.language, mean)


def _s(frame: int) -> float:
    return frame / MEL_FRAMES_PER_SECOND
