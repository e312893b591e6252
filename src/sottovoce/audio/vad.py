"""Where speech is in a recording.

Silero's probability of 32 ms windows is held against two thresholds: speech begins at `threshold` and ends
below the lower `neg_threshold`. `vad_stream` does the same for live audio.
This module knows no features and no text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np

from sottovoce.audio.samples import as_samples
from sottovoce.audio.silero import SpeechModel, SpeechWindows, load_silero
from sottovoce.options.vad import WINDOW_SAMPLES, VadOptions, ms_to_samples
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


def speech_segments(
    audio: Samples | Iterable[AudioChunk],
    options: VadOptions | None = None,
    *,
    model: SpeechModel | None = None,
) -> list[SpeechSegment]:
    """Find the speech of a recording: segments in order that do not overlap (except for overlap_s).

    audio: samples (n,) float32 at 16 kHz, or chunks as an AudioReader yields them (bounded memory). model:
    Silero, loaded when None.

    Raises: AudioError for samples that are not finite or of another shape.
    Source: the rules of Silero's `get_speech_timestamps`. Two differ: after a cut at max_speech_s the later
        pauses still count, and a cut within speech loses no window.
    """
    finder = SpeechFinder(options, model=model)
    for samples in _sample_blocks(audio):
        finder.push(samples)
    return finder.finish()


class SpeechFinder:
    """Finds the speech of a recording while its samples are read, by the rules of `speech_segments`.

    With `beside` the same probabilities are segmented by other options too.
    """

    def __init__(self, options: VadOptions | None = None, *, model: SpeechModel | None = None) -> None:
        self._options = options or VadOptions()
        self._segmenter = _Segmenter(self._options)
        self._windows = SpeechWindows(model or load_silero())
        self._others: list[_Segmenter] = []
        self._is_finished = False

    def beside(self, options: VadOptions) -> SpeechFinder:
        """Return a finder with other options that shares this one's probabilities and is fed through it. To
        be called before the first samples.
        """
        other = copy(self)
        other._options, other._segmenter = options, _Segmenter(options)
        self._others.append(other._segmenter)
        return other

    def push(self, samples: Samples) -> None:
        """Take the next samples (n,) float32."""
        self._take(self._windows.push(samples))

    def finish(self) -> list[SpeechSegment]:
        """End the recording; return all of its speech. Harmless when it has ended."""
        if not self._is_finished:
            self._is_finished = True
            self._take(self._windows.finish())
            for segmenter in (self._segmenter, *self._others):
                segmenter.finish(self._windows.n_samples)
        return self.segments()

    def _take(self, probabilities: Sequence[float]) -> None:
        for segmenter in (self._segmenter, *self._others):
            for probability in probabilities:
                segmenter.push(probability)

    def segments(self, start_sample: int = 0, end_sample: int | None = None) -> list[SpeechSegment]:
        """Return the speech between two samples as far as it was read, cut to them; None: up to what was
        read.

        Speech that goes on ends where the reading has come to.
        """
        last = self._windows.n_samples if end_sample is None else end_sample
        found = self._segmenter.segments(start_sample - SAMPLE_RATE, last + SAMPLE_RATE)
        padded = _padded(found, self._windows.n_samples, self._options)
        cut = [
            SpeechSegment(max(start_sample, one.start_sample), min(last, one.end_sample)) for one in padded
        ]
        return [one for one in cut if one.start_sample < one.end_sample]


class _Segmenter:
    """Turns probabilities, window by window, into unpadded segments."""

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
            self._add_speech(now)
        if self._start is not None and now - self._start > self._options.max_samples:
            self._cut(self._start, now)
        if self._start is not None and probability < self._options.exit_threshold:
            self._add_silence(self._start, now)

    def finish(self, n_samples: int) -> list[SpeechSegment]:
        if self._start is not None:
            self._close(self._start, n_samples)
        return self._segments

    def segments(self, start: int, end: int) -> list[SpeechSegment]:
        """Return the segments that reach into samples [start, end), in order, the unfinished one included."""
        going_on = () if self._start is None else (SpeechSegment(self._start, self._position),)
        first = bisect_left(self._segments, start, key=lambda one: one.end_sample)
        found = takewhile(lambda one: one.start_sample < end, islice(self._segments, first, None))
        return [*found, *(one for one in going_on if one.start_sample < end and one.end_sample > start)]

    def _add_speech(self, now: int) -> None:
        if self._start is None:
            self._start = now
        elif self._silence is not None and self._is_pause(now - self._silence):
            self._pauses.append(SpeechSegment(self._silence, now))
        self._silence = None

    def _is_pause(self, n_samples: int) -> bool:
        return n_samples > ms_to_samples(self._options.min_silence_at_max_speech_ms)

    def _add_silence(self, start: int, now: int) -> None:
        if self._silence is None:
            self._silence = now
        if now - self._silence >= ms_to_samples(self._options.min_silence_ms):
            self._close(start, self._silence)

    def _cut(self, start: int, now: int) -> None:
        """End a segment that is too long: at its longest pause, else where silence began, else here."""
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
