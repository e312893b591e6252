"""Transcribe speech in batches of windows that voice activity detection packs.

Speech is detected in a first pass; windows of speech are filled and decoded in a second one. Windows are
not conditioned on earlier text, so a batch gives the same text as single windows. A window is cut where
the language changes. Speech that the model skipped becomes a window, and so do both halves of a window
with too little or repeated text: Whisper writes a sentence that is said again and again once over all of
its time, or in a loop that the fallback rejects.

Source of the idea: WhisperX (https://arxiv.org/abs/2303.00747), faster-whisper.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.audio.features import Fill, RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechFinder, SpeechModel, SpeechSegment
from sottovoce.decoding.decode import Attempt, DecodingResult
from sottovoce.offline.follow import follower_of
from sottovoce.offline.languages import find_language
from sottovoce.offline.pieces import PIECE_VAD, PackedWindow, Piece, pack_speech, speech_pieces
from sottovoce.offline.resume import ReadWindow, ResumePoint, SpeechPlace
from sottovoce.offline.seek import past_the_end
from sottovoce.offline.segments import (
    FRAMES_PER_TIMESTAMP,
    MEL_FRAMES_PER_SECOND,
    WindowCut,
    cut_window,
)
from sottovoce.offline.transcriber import (
    Context,
    Request,
    Segments,
    Transcriber,
    TranscriptionState,
    numbered,
)
from sottovoce.offline.unread import DecodedWindow, UncoveredSpeechReader
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.vad import WINDOW_VAD
from sottovoce.types import SAMPLE_RATE, EncoderOutput, Features, Segment

LONG_S, FEWEST_TOKENS_S = 6.0, 1.0
"""Speech of at least LONG_S has more tokens a second (people say three to five; pauses are left out here)."""
LONG_MISSING_S = 2.0
"""No window, and so no segment, reaches across this many seconds of missing sound."""
DOUBTFUL_LONG_S, DOUBTFUL_TOKENS_S = 2.0, 3.0


def may_be_halved(window: PackedWindow) -> bool:
    """Return whether a window is long enough to be decoded in halves, which are cut at a pause."""
    return len(window.pieces) > 1 and window.n_frames >= LONG_S * MEL_FRAMES_PER_SECOND


def is_silent(window: PackedWindow, result: DecodingResult, fallback: FallbackOptions) -> bool:
    limit = fallback.no_speech_threshold
    is_likely = limit is not None and result.no_speech_prob > limit
    return fallback.is_silence(result) or (window.may_be_silent and is_likely)


def halves_to_read(
    window: PackedWindow, result: DecodingResult, cut: WindowCut, fallback: FallbackOptions, eot: int
) -> tuple[PackedWindow, ...]:
    """Return the windows to decode instead of this one; none if its text is kept.

    cut: its segments, in window time. eot: id of the first token that is not text.
    """
    if len(window.pieces) == 1:
        return ()
    if may_be_halved(window) and fallback.repeats(result):
        return window.halves(may_be_silent=fallback.is_silence(result))
    return window.halves() if _leaves_out(window, cut, eot) else ()


def _leaves_out(window: PackedWindow, cut: WindowCut, eot: int) -> bool:
    if not window.is_doubtful:
        return any(is_too_little(segment, eot, LONG_S, FEWEST_TOKENS_S) for segment in cut.segments)
    end_s = window.n_frames / MEL_FRAMES_PER_SECOND
    stops_early = bool(cut.segments) and end_s - cut.segments[-1].end >= DOUBTFUL_LONG_S
    return stops_early or any(
        is_too_little(segment, eot, DOUBTFUL_LONG_S, DOUBTFUL_TOKENS_S) for segment in cut.segments
    )


def is_too_little(segment: Segment, eot: int, long_s: float, fewest_s: float) -> bool:
    """Return whether a segment has some tokens, but fewer than speech of its length.

    long_s: the shortest segment that is judged. fewest_s: tokens a second.
    """
    length_s = segment.end - segment.start
    n_tokens = sum(token < eot for token in segment.tokens)
    return length_s >= long_s and 0 < n_tokens < fewest_s * length_s


LEAST_FRAMES = 100
"""Log-mel frames that must be transcribed, and as many left, before the rest of a window is decoded."""


class _LanguageWindow(NamedTuple):
    window: PackedWindow
    language: str
    encoded: EncoderOutput


def transcribe_speech(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None = None,
    *,
    resume: ResumePoint | None = None,
) -> Segments:
    with recording.open() as reader:
        state.duration = reader.info.duration_s
        n_samples = 0
        finder = SpeechFinder(transcriber.options.vad or WINDOW_VAD, model=speech_model)
        pieces = finder.beside(PIECE_VAD)
        for chunk in reader:
            transcriber.runtime.run_on_host(partial(finder.push, chunk.samples))
            n_samples = chunk.start_sample + len(chunk.samples)
        speech = finder.finish()
        missing = [(start + end) / 2 for start, end in reader.silences() if end - start >= LONG_MISSING_S]
    ((start, end),) = transcriber.options.clips
    if start and start * SAMPLE_RATE >= n_samples:
        raise past_the_end(recording, transcriber.options, n_samples / SAMPLE_RATE)
    breaks = [round(middle * MEL_FRAMES_PER_SECOND) for middle in missing]
    windows = pack_speech(_within(speech, start, end), transcriber.content_frames, breaks)
    with transcriber.features(recording) as features:
        yield from _SpeechLoop(transcriber, features, pieces, state, windows).run(resume)
        state.duration = features.duration_s or state.duration


def _within(speech: Sequence[SpeechSegment], start_s: float, end_s: float | None) -> list[SpeechSegment]:
    first = round(start_s * SAMPLE_RATE)
    last = sys.maxsize if end_s is None else round(end_s * SAMPLE_RATE)
    inside = [SpeechSegment(max(first, one.start_sample), min(last, one.end_sample)) for one in speech]
    return [one for one in inside if one.start_sample < one.end_sample]


class _SpeechLoop:
    def __init__(
        self,
        transcriber: Transcriber,
        features: RecordingFeatures,
        speech: SpeechFinder,
        state: TranscriptionState,
        windows: Iterator[PackedWindow],
    ) -> None:
        self._windows = windows
        self._n_packed = 0
        self._transcriber = transcriber
        self._features = features
        self._speech = speech
        self._state = state
        self._context = Context(
            transcriber.tokenizer, transcriber.options, transcriber.backend.dims.n_text_ctx
        )
        self._follower = follower_of(transcriber, features, state)
        self._again = UncoveredSpeechReader(transcriber, features, self._follower, state)
        self._ahead: deque[PackedWindow] = deque()
        self._read: list[ReadWindow] = []
        self._is_first = True

    def run(self, resume: ResumePoint | None) -> Segments:
        if resume is not None:
            self._restore(resume)
        elif self._state.language is None and not (self._follower and self._follower.is_several):
            found = find_language(self._transcriber, self._windows_in_silence())
            if found is not None:
                self._state.language, self._state.detection = found.detection.language, found.detection
        while batch := self._next_batch():
            yield from self._transcribe(batch)
            self._note_resume_point(batch[-1].end)

    def _restore(self, point: ResumePoint) -> None:
        place = point.place
        assert isinstance(place, SpeechPlace), "the mode was checked"
        self._context.restore(point.context)
        self._is_first = point.is_first
        if self._follower is not None and point.follower is not None:
            self._follower.restore(point.follower)
        self._n_packed = sum(1 for _ in islice(self._windows, place.n_packed))
        self._ahead.extend(place.waiting)
        self._read.extend(place.read)
        self._features.skip_to(place.first_frame, n_frames_read=place.n_frames_read)

    def _note_resume_point(self, end: int) -> None:
        first = self._ahead[0].start if self._ahead else end
        self._state.resume_point = ResumePoint(
            self._state.snapshot(),
            self._context.tokens,
            self._is_first,
            None if self._follower is None else self._follower.state(first),
            SpeechPlace(
                self._n_packed, first, self._features.n_frames_read, tuple(self._ahead), tuple(self._read)
            ),
        )

    def _next_packed(self) -> Iterator[PackedWindow]:
        for window in self._windows:
            self._n_packed += 1
            yield window

    def _next_batch(self) -> list[PackedWindow]:
        size = self._transcriber.options.batch_size
        self._ahead.extend(islice(self._next_packed(), max(0, size - len(self._ahead))))
        return [self._ahead.popleft() for _ in range(min(size, len(self._ahead)))]

    def _windows_in_silence(self) -> Iterator[Features]:
        for window in self._next_packed():
            self._ahead.append(window)
            mel = self._mel(window, self._transcriber.window_frames, fill="silence")
            yield Features(mel, (window.n_frames,))

    def _encode(self, windows: Sequence[PackedWindow], n_frames: int) -> EncoderOutput:
        mel = torch.cat([self._mel(window, n_frames) for window in windows])
        return self._transcriber.runtime.encode(Features(mel, tuple(window.n_frames for window in windows)))

    def _mel(self, window: PackedWindow, n_frames: int, *, fill: Fill = "zero") -> Tensor:
        pieces = [piece for piece in window.pieces if self._features.has(piece.start)]
        parts = []
        for piece in pieces:
            features = self._features.window(piece.start, piece.end, n_frames=n_frames, fill=fill)
            n_content = None if piece is pieces[-1] else features.n_content_frames[0]
            parts.append(features.mel[..., :n_content])
        return torch.cat(parts, dim=-1)[..., :n_frames]

    def _transcribe(self, windows: Sequence[PackedWindow]) -> Segments:
        found = self._in_one_language_each(windows)
        prompt = self._context.prompt()
        is_first = self._is_first
        for alike in _by_length(found):
            requests = [
                Request(
                    one.language,
                    prompt,
                    one.window.start,
                    is_first and one is found[0],
                    may_be_halved(one.window),
                )
                for one in alike
            ]
            encoded = _stacked([one.encoded for one in alike])
            attempts = self._transcriber.decode(encoded, requests)
            self._take(encoded, attempts, [one.window for one in alike])
        self._features.drop_before(self._ahead[0].start if self._ahead else windows[-1].end)
        yield from self._finished()

    def _take(
        self, encoded: EncoderOutput, attempts: Sequence[Attempt], windows: Sequence[PackedWindow]
    ) -> None:
        transcriber = self._transcriber
        cuts = [self._cut(attempt, window) for attempt, window in zip(attempts, windows, strict=True)]
        fallback, eot = transcriber.options.fallback_of_window, transcriber.tokenizer.eot
        halves = [
            halves_to_read(window, attempt.result, cut, fallback, eot)
            for window, attempt, cut in zip(windows, attempts, cuts, strict=True)
        ]
        is_nothing_read = bool(halves[0]) or not any(cut.segments for cut in cuts)
        self._is_first = self._is_first and is_nothing_read
        if transcriber.options.needs_words:
            lengths = [window.n_frames for window in windows]
            results = [attempt.result for attempt in attempts]
            texts = list(zip(cuts, results, lengths, strict=True))
            cuts = transcriber.with_words(encoded, texts)
        unread: list[PackedWindow] = []
        for index, (window, attempt, cut) in enumerate(zip(windows, attempts, cuts, strict=True)):
            if halves[index]:
                unread += halves[index]
                continue
            is_rest = LEAST_FRAMES <= cut.seek <= window.n_frames - LEAST_FRAMES
            done, *rest = window.split(cut.seek) if is_rest else (window,)
            unread += rest
            cut = replace(cut, segments=tuple(transcriber.segments(cut, attempt.result)))
            place = partial(_in_recording, window=window)
            segments = [place(segment) for segment in cut.segments]
            if transcriber.options.read_again:
                speech = [piece for piece, _ in self._speech_in(done)]
                segments = self._again.completed(
                    DecodedWindow(
                        encoded.row(index), cut, attempt.result, window.n_frames, speech, 0.0, place
                    )
                )
            self._read.append(ReadWindow(window, attempt.last_temperature, tuple(segments)))
        self._ahead = deque(sorted([*unread, *self._ahead], key=lambda window: window.start))

    def _finished(self) -> Segments:
        self._read.sort(key=lambda read: read.window.start)
        while self._read and not (self._ahead and self._ahead[0].start < self._read[0].window.start):
            read = self._read.pop(0)
            for segment in numbered(read.segments, self._state):
                self._context.remember(segment.tokens)
                yield segment
            self._context.end_window(read.last_temperature)
            self._state.position = read.window.end / MEL_FRAMES_PER_SECOND

    def _in_one_language_each(self, windows: Sequence[PackedWindow]) -> list[_LanguageWindow]:
        full = [window for window in windows if not window.is_cut]
        states: dict[PackedWindow, EncoderOutput] = {}
        if full:
            together = self._encode(full, self._transcriber.window_frames)
            states = {window: together.row(index) for index, window in enumerate(full)}
        found: list[_LanguageWindow] = []
        before = self._state.language
        for window in windows:
            parts = [window]
            if not window.language:
                parts = self._in_languages(window, states[window])
            for part in parts:
                assert part.language is not None
                if part.is_cut:
                    encoded = self._encode([part], self._transcriber.frames_to_encode(part.n_frames))
                else:
                    encoded = states[window]
                found.append(_LanguageWindow(part, part.language, encoded))
                self._state.language = part.language
        if before not in (None, found[0].language):
            self._context.reset()
        return found

    def _in_languages(self, window: PackedWindow, encoded: EncoderOutput) -> list[PackedWindow]:
        state, transcriber = self._state, self._transcriber
        speech = self._speech_in(window)
        if self._follower is None or not speech:
            language = state.language
            if language is None:
                language = (transcriber.detect(encoded))[0].language
            return [replace(window, language=language)]
        if state.detection is None:
            (state.detection,) = transcriber.detect(encoded)
        pieces = [piece for piece, _ in speech]
        spans = [span for _, span in speech]
        runs = self._follower.runs(encoded, pieces, spans, state.language)
        parts, rest = [], window
        for run, after in pairwise(runs):
            at = self._follower.border(run, after)
            head, rest = rest.split(rest.window_frame(at))
            parts.append(replace(head, language=run.language, is_cut=True))
        return [*parts, replace(rest, language=runs[-1].language, is_cut=bool(parts))]

    def _speech_in(self, window: PackedWindow) -> list[tuple[Piece, tuple[int, int]]]:
        found = []
        for part in window.pieces:
            for piece in speech_pieces(self._features, self._speech, part.start, part.end):
                start = window.window_frame(piece.start) // FRAMES_PER_TIMESTAMP
                end = window.window_frame(piece.end) // FRAMES_PER_TIMESTAMP
                if end > start:
                    found.append((piece, (start, end)))
        return found

    def _cut(self, attempt: Attempt, window: PackedWindow) -> WindowCut:
        result = attempt.result
        if is_silent(window, result, self._transcriber.options.fallback):
            return WindowCut((), window.n_frames)
        tokenizer = self._transcriber.tokenizer_of(result.language)
        return cut_window(result.tokens, tokenizer, seek=0, n_frames=window.n_frames, keep_open=True)


def _by_length(windows: Sequence[_LanguageWindow]) -> list[list[_LanguageWindow]]:
    batches: dict[int, list[_LanguageWindow]] = {}
    for one in windows:
        batches.setdefault(one.encoded.n_frames, []).append(one)
    return list(batches.values())


def _stacked(encoded: Sequence[EncoderOutput]) -> EncoderOutput:
    if len(encoded) == 1:
        return encoded[0]
    states = torch.cat([one.states for one in encoded])
    return EncoderOutput(states, tuple(one.n_content_frames[0] for one in encoded))


def _in_recording(segment: Segment, window: PackedWindow) -> Segment:
    words = segment.words
    if words is not None:
        words = tuple(
            replace(word, start=window.recording_s(word.start), end=window.recording_s(word.end, is_end=True))
            for word in words
        )
    return replace(
        segment,
        start=window.recording_s(segment.start),
        end=window.recording_s(segment.end, is_end=True),
        words=words,
    )
