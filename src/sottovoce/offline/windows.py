"""Windows of a recording, the pieces of speech in them, and their segments, in log-mel frames of 10 ms.

Source of the cuts into segments: openai-whisper 20250625, transcribe.py, which keeps text after the end.
"""

from __future__ import annotations

import math
import statistics
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from sottovoce.audio.mel import (
    MEL_FRAMES_PER_SECOND,
    MELS_PER_FRAME,
    RecordingFeatures,
    quiet_frames,
    quietest_frame,
    smoothed,
)
from sottovoce.audio.vad import SpeechFinder, SpeechSegment
from sottovoce.offline.regroup import segment_retimed
from sottovoce.options.decoding import VadOptions
from sottovoce.text.tokenizer import SECONDS_PER_TIMESTAMP, Tokenizer
from sottovoce.types import HOP_SAMPLES, Segment


def mel_frames(seconds: float) -> int:
    return round(seconds * MEL_FRAMES_PER_SECOND)


def seconds_of(mel_frame: int) -> float:
    return mel_frame / MEL_FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class SpeechSpan:
    start: int
    end: int

    @property
    def n_frames(self) -> int:
        return self.end - self.start

    @property
    def duration_s(self) -> float:
        return self.n_frames / MEL_FRAMES_PER_SECOND


def clipped(pieces: Iterable[SpeechSpan], start: int, end: int) -> list[SpeechSpan]:
    parts = [SpeechSpan(max(start, piece.start), min(end, piece.end)) for piece in pieces]
    return [piece for piece in parts if piece.n_frames > 0]


@dataclass(frozen=True, slots=True)
class Window:
    """Pieces of a recording that the model reads as one window.

    probability: of the language among those allowed. is_cut: ended by a change of language. is_packed:
    without the pauses between its pieces; its text is timed in seconds of the window. is_suspicious: part of
    a longer window with too little or repeated text. may_be_silent: that window was silent by its text.
    """

    pieces: tuple[SpeechSpan, ...]
    language: str | None = None
    probability: float = 1.0
    is_cut: bool = False
    is_packed: bool = False
    is_suspicious: bool = False
    may_be_silent: bool = False

    @classmethod
    def of(cls, start: int, end: int) -> Window:
        return cls((SpeechSpan(start, end),))

    @property
    def n_frames(self) -> int:
        return sum(piece.n_frames for piece in self.pieces)

    @property
    def start(self) -> int:
        return self.pieces[0].start

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    @property
    def origin(self) -> int:
        """The frame of the recording from which its text is timed."""
        return 0 if self.is_packed else self.start

    @property
    def origin_s(self) -> float:
        return seconds_of(self.origin)

    def split(self, frame: int) -> tuple[Window, Window]:
        heads: list[SpeechSpan] = []
        tails: list[SpeechSpan] = []
        for piece in self.pieces:
            cut = min(max(piece.start + frame, piece.start), piece.end)
            heads += [SpeechSpan(piece.start, cut)] if cut > piece.start else []
            tails += [SpeechSpan(cut, piece.end)] if cut < piece.end else []
            frame -= piece.n_frames
        return replace(self, pieces=tuple(heads)), replace(self, pieces=tuple(tails))

    def halves(self, *, may_be_silent: bool = False) -> tuple[Window, Window]:
        lengths = list(accumulate(piece.n_frames for piece in self.pieces))[:-1]
        middle = min(range(len(lengths)), key=lambda at: abs(2 * lengths[at] - self.n_frames))
        is_silent = self.may_be_silent or may_be_silent
        half = replace(self, is_suspicious=True, may_be_silent=is_silent)
        first, second = self.pieces[: middle + 1], self.pieces[middle + 1 :]
        return replace(half, pieces=first), replace(half, pieces=second)

    def window_frame(self, frame: int) -> int:
        """Convert a frame of the recording to one of the window; in a pause, of the next piece."""
        return sum(min(max(frame - piece.start, 0), piece.n_frames) for piece in self.pieces)

    def recording_s(self, window_s: float, *, is_end: bool = False) -> float:
        """Convert seconds in the window to seconds in the recording; between pieces, an end is in the earlier
        one.
        """
        offsets = [0]
        for piece in self.pieces[:-1]:
            offsets.append(offsets[-1] + piece.n_frames)
        frame = round(window_s * MEL_FRAMES_PER_SECOND, 3)
        place = (bisect_left if is_end else bisect_right)(offsets, frame) - 1
        index = min(max(place, 0), len(self.pieces) - 1)
        inside = min(frame - offsets[index], self.pieces[index].n_frames)
        return round((self.pieces[index].start + inside) / MEL_FRAMES_PER_SECOND, 3)

    def in_recording(self, segment: Segment) -> Segment:
        if not self.is_packed:
            return segment
        return segment_retimed(segment, self.recording_s, partial(self.recording_s, is_end=True))


def pack_speech(
    speech: Sequence[SpeechSegment], window_frames: int, breaks: Sequence[int] = ()
) -> Iterator[Window]:
    """Pack ascending speech into windows of at most window_frames; longer speech is cut.

    breaks: ascending frames; no window reaches across a pause that holds one.
    """
    pieces: list[SpeechSpan] = []
    n_frames = 0
    for piece in _pieces(speech, window_frames):
        if pieces and (
            n_frames + piece.n_frames > window_frames
            or bisect_left(breaks, piece.start) > bisect_left(breaks, pieces[-1].end)
        ):
            yield Window(tuple(pieces), is_packed=True)
            pieces, n_frames = [], 0
        pieces.append(piece)
        n_frames += piece.n_frames
    if pieces:
        yield Window(tuple(pieces), is_packed=True)


def _pieces(speech: Sequence[SpeechSegment], longest: int) -> Iterator[SpeechSpan]:
    done = 0
    for segment in speech:
        start = max(done, segment.start_sample // HOP_SAMPLES)
        done = max(start, -(-segment.end_sample // HOP_SAMPLES))
        for first in range(start, done, longest):
            yield SpeechSpan(first, min(first + longest, done))


PIECE_VAD = VadOptions(
    min_silence_ms=100.0, speech_pad_ms=50.0, max_speech_s=8.0, min_silence_at_max_speech_ms=60.0
)
"""Ends pieces at short pauses, so that each is in one language."""
LONGEST_S, LEAST_S = 3.0, 1.2
"""A longer piece may hold two languages; it is cut at its quietest moments into pieces from LEAST_S on, from
which the language can still be detected.
"""
AROUND_S, BESIDE_S, MOST_MOMENTS = 1.5, 0.5, 6
"""The MOST_MOMENTS quietest moments within AROUND_S of a cut without a pause may be the change of language;
BESIDE_S of both pieces remain.
"""
SMOOTH_FRAMES = 5
"""Frames over which loudness is averaged, to find pauses instead of single frames."""


def speech_pieces(
    features: RecordingFeatures, speech: SpeechFinder, start: int, end: int
) -> list[SpeechSpan]:
    """Return the pieces of speech in frames [start, end); long ones are cut without a pause."""
    return [part for piece in pieces_between(speech, start, end) for part in _in_parts(features, piece)]


def pieces_between(speech: SpeechFinder, start: int, end: int) -> list[SpeechSpan]:
    """Return the speech between pauses in frames [start, end), clipped to them, without overlaps."""
    segments = speech.segments(start * HOP_SAMPLES, end * HOP_SAMPLES)
    return clipped(_pieces(segments, sys.maxsize), 0, end)


def energy_minimum(features: RecordingFeatures, before: SpeechSpan, after: SpeechSpan) -> int:
    loudness = _loudness(features, before.end, after.start)
    return before.end + quietest_frame(loudness, (len(loudness) - 1) / 2)


def energy_minima(features: RecordingFeatures, before: SpeechSpan, after: SpeechSpan) -> list[int]:
    """Return frames where the language may change between two pieces: their border, then quiet frames."""
    start, end = before.start + mel_frames(BESIDE_S), after.end - mel_frames(BESIDE_S)
    start, end = max(start, after.start - mel_frames(AROUND_S)), min(end, after.start + mel_frames(AROUND_S))
    if end - start < SMOOTH_FRAMES:
        return [after.start]
    loudness = _loudness(features, start, end)
    dips = [start + dip for dip in quiet_frames(loudness, after.start - start)]
    far = [dip for dip in dips if abs(dip - after.start) >= SMOOTH_FRAMES]
    return [after.start, *far[: MOST_MOMENTS - 1]]


def _in_parts(features: RecordingFeatures, piece: SpeechSpan) -> Iterator[SpeechSpan]:
    longest, least = mel_frames(LONGEST_S), mel_frames(LEAST_S)
    if piece.n_frames <= longest:
        yield piece
        return
    loudness = _loudness(features, piece.start, piece.end)
    at = 0
    while len(loudness) - at > longest:
        last = min(at + longest, len(loudness) - least)
        cut = at + least + quietest_frame(loudness[at + least : last], 0)
        yield SpeechSpan(piece.start + at, piece.start + cut)
        at = cut
    yield SpeechSpan(piece.start + at, piece.end)


def _loudness(features: RecordingFeatures, start: int, end: int) -> npt.NDArray[np.float64]:
    loudness = features.log_mel(start, end).mean(axis=0)  # over mel bands
    return smoothed(loudness.astype(np.float64), SMOOTH_FRAMES)


@dataclass(frozen=True, slots=True)
class WindowCut:
    """The segments of a window, and the log-mel frame of the recording where the next one begins.

    ends_closed: by a single timestamp, so that no speech follows. restarts: the window begins too early.
    """

    segments: tuple[Segment, ...]
    seek: int
    ends_closed: bool = False
    restarts: bool = False

    @property
    def end_of_speech(self) -> float | None:
        """End of the last word, or of the last segment without words, or None."""
        for segment in reversed(self.segments):
            if segment.words:
                return segment.words[-1].end
        return self.segments[-1].end if self.segments else None

    @property
    def aligned_mean(self) -> float:
        """Mean natural log-probability of the tokens of aligned words, which have no prompt."""
        words = [word for segment in self.segments for word in segment.words or ()]
        logprobs = [
            math.log(token.probability or sys.float_info.min) for word in words for token in word.tokens
        ]
        return statistics.fmean(logprobs) if logprobs else -math.inf

    def text_tokens(self, eot: int) -> tuple[int, ...]:
        return tuple(token for segment in self.segments for token in segment.tokens if token < eot)


def with_english(cut: WindowCut, english: Sequence[Segment]) -> WindowCut:
    """Add English segments to the nearest segments; those after the cut come with the next window."""
    texts: dict[int, str] = {}
    for each in english:
        middle = (each.start + each.end) / 2
        if cut.segments and middle <= seconds_of(cut.seek):
            spans = [(segment.start, segment.end) for segment in cut.segments]
            nearest = min(range(len(spans)), key=lambda at: max(spans[at][0] - middle, middle - spans[at][1]))
            texts[nearest] = texts.get(nearest, "") + each.text
    segments = (
        replace(segment, translation=texts.get(at, "").strip() or None)
        for at, segment in enumerate(cut.segments)
    )
    return replace(cut, segments=tuple(segments))


def cut_window(
    tokens: Sequence[int], tokenizer: Tokenizer, seek: int, n_frames: int, *, keep_open: bool = False
) -> WindowCut:
    """Cut at pairs of timestamps; without a pair the window is one segment.

    seek: log-mel frame of the recording where the window begins. n_frames: of audio; segments are clipped to
    it. keep_open: also keep text after the last pair.
    """
    start_s, length_s = seconds_of(seek), seconds_of(n_frames)

    def time(token: int) -> float:
        return max(0, token - tokenizer.timestamp_begin) * SECONDS_PER_TIMESTAMP  # 0 for a prefix

    def segment(ids: Sequence[int], start: float, end: float) -> Segment:
        end = min(max(start, end), length_s)
        text, language = tokenizer.decode(ids), tokenizer.language or "en"
        return Segment(0, round(start_s + start, 3), round(start_s + end, 3), text, language, tuple(ids))

    is_time = [tokenizer.is_timestamp(token) for token in tokens]
    ends_closed = is_time[-2:] == [False, True]
    cuts = [at for at in range(1, len(tokens)) if is_time[at - 1] and is_time[at]]
    done = n_frames
    if not cuts:
        times = [time(token) for token in tokens if tokenizer.is_timestamp(token)]
        parts = [(tokens, 0.0, times[-1] if any(times[-1:]) else length_s)]
    else:
        bounds = [0, *cuts, len(tokens)] if ends_closed else [0, *cuts]
        parts = [(tokens[at:end], time(tokens[at]), time(tokens[end - 1])) for at, end in pairwise(bounds)]
        rest = tokens[bounds[-1] :]
        if keep_open and not all(is_time[bounds[-1] :]):
            parts.append((rest, time(rest[0]), length_s))
        elif not ends_closed:
            done = min(n_frames, (tokens[bounds[-1] - 1] - tokenizer.timestamp_begin) * MELS_PER_FRAME)
    inside = tuple(segment(*part) for part in parts if part[1] < length_s)
    return WindowCut(inside, seek + done, ends_closed)
