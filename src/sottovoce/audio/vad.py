"""Where speech is in a recording.

Silero's probability of 32 ms windows is held against two thresholds: speech begins at `threshold` and ends
below the lower `neg_threshold`. `vad_stream` does the same for live audio.
This module knows no features and no text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sottovoce.audio.samples import as_samples
from sottovoce.audio.silero import WINDOW_SAMPLES, SpeechModel, load_silero
from sottovoce.audio.speech_windows import (
    SpeechWindows,
    exit_threshold,
    ms_to_samples,
    require_non_negative,
    require_thresholds,
)
from sottovoce.errors import OptionError
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """Samples [start_sample, end_sample) of a recording that hold speech."""

    start_sample: int
    end_sample: int

    @property
    def start_s(self) -> float:
        return self.start_sample / SAMPLE_RATE

    @property
    def end_s(self) -> float:
        return self.end_sample / SAMPLE_RATE

    @property
    def duration_s(self) -> float:
        return (self.end_sample - self.start_sample) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class VadOptions:
    """How probabilities become segments of a recording; the defaults are faster-whisper's.

    threshold: speech from this probability on. neg_threshold: no speech below it (threshold - 0.15, at
    least 0.01). min_speech_ms: shorter segments are dropped. min_silence_ms: shorter pauses do not end a
    segment. max_speech_s: longer speech is cut, at its longest pause of min_silence_at_max_speech_ms or
    more, else where it stands. speech_pad_ms: added at both sides, at most up to the middle of a pause.
    overlap_s: added at each end after that, into what follows (whisper.cpp: 0.1).

    Raises: OptionError for values out of range.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_ms: float = 0.0
    min_silence_ms: float = 2000.0
    max_speech_s: float = math.inf
    min_silence_at_max_speech_ms: float = 98.0
    speech_pad_ms: float = 400.0
    overlap_s: float = 0.0

    def __post_init__(self) -> None:
        require_thresholds(self.threshold, self.neg_threshold)
        for name in ("min_speech_ms", "min_silence_ms", "min_silence_at_max_speech_ms", "speech_pad_ms"):
            require_non_negative(name, getattr(self, name))
        require_non_negative("overlap_s", self.overlap_s)
        if not self.max_samples >= WINDOW_SAMPLES:
            raise OptionError(
                f"max_speech_s: expected more than the padding and two windows "
                f"({2 * self.speech_pad_ms / 1000 + 0.064:.3f} s), got {self.max_speech_s}"
            )

    @property
    def exit_threshold(self) -> float:
        return exit_threshold(self.threshold, self.neg_threshold)

    @property
    def max_samples(self) -> float:
        """Longest unpadded segment, so that the padded one keeps to max_speech_s."""
        return SAMPLE_RATE * self.max_speech_s - WINDOW_SAMPLES - 2 * ms_to_samples(self.speech_pad_ms)


def speech_segments(
    audio: Samples | Iterable[AudioChunk],
    options: VadOptions | None = None,
    *,
    model: SpeechModel | None = None,
) -> list[SpeechSegment]:
    """Find the speech of a recording: segments in order that do not overlap (but for overlap_s).

    audio: samples (n,) float32 at 16 kHz, or chunks as an AudioReader yields them (bounded memory).
    model: Silero, loaded when None.

    Raises: AudioError for samples that are not finite or of another shape.
    Source: the rules of Silero's `get_speech_timestamps`. Two differ: after a cut at max_speech_s the later
        pauses still count, and a cut within speech loses no window.
    """
    options = options or VadOptions()
    segmenter = _Segmenter(options)
    windows = SpeechWindows(model or load_silero())
    for samples in _sample_blocks(audio):
        for probability in windows.push(samples):
            segmenter.push(probability)
    for probability in windows.finish():
        segmenter.push(probability)
    return _padded(segmenter.finish(windows.n_samples), windows.n_samples, options)


class _Segmenter:
    """Probabilities, window by window, to unpadded segments."""

    def __init__(self, options: VadOptions) -> None:
        self._options = options
        self._position = 0
        self._segments: list[SpeechSegment] = []
        self._start: int | None = None
        self._silence: int | None = None
        self._pauses: list[SpeechSegment] = []

    def push(self, probability: float) -> None:
        now, self._position = self._position, self._position + WINDOW_SAMPLES
        if probability >= self._options.threshold:
            self._hear_speech(now)
        if self._start is not None and now - self._start > self._options.max_samples:
            self._cut(self._start, now)
        if self._start is not None and probability < self._options.exit_threshold:
            self._hear_silence(self._start, now)

    def finish(self, n_samples: int) -> list[SpeechSegment]:
        if self._start is not None:
            self._close(self._start, n_samples)
        return self._segments

    def _hear_speech(self, now: int) -> None:
        if self._start is None:
            self._start = now
        elif self._silence is not None and self._is_pause(now - self._silence):
            self._pauses.append(SpeechSegment(self._silence, now))
        self._silence = None

    def _is_pause(self, n_samples: int) -> bool:
        return n_samples > ms_to_samples(self._options.min_silence_at_max_speech_ms)

    def _hear_silence(self, start: int, now: int) -> None:
        if self._silence is None:
            self._silence = now
        if now - self._silence >= ms_to_samples(self._options.min_silence_ms):
            self._close(start, self._silence)

    def _cut(self, start: int, now: int) -> None:
        """End a segment that grew too long: at its longest pause, else where silence began, else here."""
        if self._pauses:
            pause = max(self._pauses, key=lambda pause: pause.duration_s)
            self._segments.append(SpeechSegment(start, pause.start_sample))
            self._start = pause.end_sample
            self._pauses = [other for other in self._pauses if other.start_sample > pause.start_sample]
        else:
            self._segments.append(SpeechSegment(start, now if self._silence is None else self._silence))
            self._start, self._silence = (now if self._silence is None else None), None

    def _close(self, start: int, end: int) -> None:
        if end - start > ms_to_samples(self._options.min_speech_ms):
            self._segments.append(SpeechSegment(start, end))
        self._start, self._silence, self._pauses = None, None, []


def _padded(segments: list[SpeechSegment], n_samples: int, options: VadOptions) -> list[SpeechSegment]:
    """Widen segments at both sides; neighbours that are too close share the pause between them."""
    if not segments:
        return []
    pad = int(ms_to_samples(options.speech_pad_ms))
    overlap = int(options.overlap_s * SAMPLE_RATE)
    starts = [segment.start_sample for segment in segments]
    ends = [segment.end_sample for segment in segments]
    gaps = [start - end for start, end in zip(starts[1:], ends[:-1], strict=True)]
    before = [min(pad, starts[0]), *(min(pad, gap // 2) for gap in gaps)]
    after = [*(min(pad, gap // 2) for gap in gaps), pad]
    return [
        SpeechSegment(start - left, min(n_samples, end + right + overlap))
        for start, end, left, right in zip(starts, ends, before, after, strict=True)
    ]


def _sample_blocks(audio: Samples | Iterable[AudioChunk]) -> Iterator[Samples]:
    if isinstance(audio, np.ndarray):
        yield as_samples(audio, "audio")
    else:
        yield from (chunk.samples for chunk in audio)
