"""The path of a recording: windows → language → decode → words → verify → segments.

The windows come in the order of `windows.SeekWindows` or `windows.PackedWindows`; everything after them is
the same for both. Between two batches the whole state is a `ResumePoint`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechFinder, SpeechModel
from sottovoce.decoding.decode import Attempt
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.errors import AudioError
from sottovoce.offline.languages import LOOK_AHEAD_FRAMES, WindowLanguages
from sottovoce.offline.pieces import PIECE_VAD, Window
from sottovoce.offline.resume import ReadWindow, ResumePoint
from sottovoce.offline.segments import WindowCut, cut_window, mel_frames, seconds_of
from sottovoce.offline.transcriber import (
    Context,
    Request,
    Segments,
    Transcriber,
    TranscriptionState,
    numbered,
)
from sottovoce.offline.verify import (
    DecodedWindow,
    SkippedSpeechRecovery,
    SpeechPresence,
    is_silent,
    may_be_halved,
)
from sottovoce.offline.windows import (
    LanguageWindow,
    PackedWindows,
    SeekWindows,
    WindowOrder,
    packed_speech,
)
from sottovoce.types import EncoderOutput, Segment, Word


def transcribe_recording(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None = None,
    resume: ResumePoint | None = None,
) -> Segments:
    """Transcribe the requested part of a recording, from `resume` on if given.

    Raises:
        AudioError: the recording cannot be read, or ends before the requested part.
    """
    options = transcriber.options
    start_s, _ = options.clips[0]
    packed, speech = None, SpeechFinder(PIECE_VAD, model=speech_model)
    if options.mode == "vad":
        packed, speech = packed_speech(transcriber, recording, speech_model)
    observes = packed is None and (options.read_again or transcriber.may_follow)
    with transcriber.features(recording, speech if observes else None) as features:
        state.duration = features.declared_duration_s
        languages = WindowLanguages(transcriber, features, speech, state)
        windows: WindowOrder
        if packed is None:
            windows, voices = SeekWindows(transcriber, features, languages, state), SpeechPresence(speech)
        else:
            windows, voices = PackedWindows(transcriber, features, languages, state, packed), None
        start = mel_frames(start_s)
        features.skip_to(start, n_frames_read=start)
        if start > 0 and not features.has(start):
            raise _past_the_end(recording, start_s, features.duration_s)
        pipeline = _Pipeline(transcriber, features, languages, windows, voices, state)
        yield from outside_silences(pipeline.run(resume), recording)
        state.duration = features.duration_s or state.duration


def _past_the_end(recording: Recording, start_s: float, duration_s: float | None) -> AudioError:
    length = "less" if duration_s is None else f"a recording of {duration_s:.1f} s"
    return AudioError(f"{recording.name}: expected sound at {start_s:g} s, where to begin, got {length}")


class _Pipeline:
    """The stages of one recording; voices: None keeps text without a voice."""

    def __init__(
        self,
        transcriber: Transcriber,
        features: RecordingFeatures,
        languages: WindowLanguages,
        windows: WindowOrder,
        voices: SpeechPresence | None,
        state: TranscriptionState,
    ) -> None:
        self._transcriber = transcriber
        self._options = transcriber.options
        self._features = features
        self._languages = languages
        self._windows = windows
        self._voices = voices
        self._recovery = SkippedSpeechRecovery(transcriber, features, languages.follower, state)
        self._context = Context(
            transcriber.tokenizer, transcriber.options, transcriber.backend.dims.n_text_ctx
        )
        self._state = state
        self._read: list[ReadWindow] = []
        """Windows whose segments wait for those of earlier windows."""
        self._is_first = True

    def run(self, resume: ResumePoint | None) -> Segments:
        if resume is None:
            self._windows.find_language()
        else:
            self._restore(resume)
        language = self._state.language
        for batch in self._windows.batches():
            if batch and language not in (None, batch[0].window.language):
                self._context.reset()  # text in another language is no context
            language = self._state.language
            if not self._transcribe(batch):
                continue
            self._windows.advance()
            yield from self._finished()
            self._end_batch(is_silence=not batch)

    def _restore(self, point: ResumePoint) -> None:
        self._context.restore(point.context)
        self._is_first = point.is_first
        self._languages.restore(point.follower)
        self._windows.restore(point.place)
        self._read.extend(point.read)

    def _end_batch(self, *, is_silence: bool) -> None:
        state, next_frame = self._state, self._windows.next_frame
        state.duration = self._features.duration_s or state.duration
        if is_silence:
            self._reach(next_frame)
        state.resume_point = ResumePoint(
            state.snapshot(),
            self._context.tokens,
            self._is_first,
            self._languages.state(next_frame),
            self._windows.state(),
            tuple(self._read),
        )

    def _reach(self, frame: int) -> None:
        position, duration = seconds_of(frame), self._state.duration
        self._state.position = position if duration is None else min(position, duration)

    def _transcribe(self, batch: Sequence[LanguageWindow]) -> bool:
        """Decode and verify windows; return whether their text is kept.

        It is dropped if it shows that the recording is in several languages: the windows are then planned
        again.
        """
        had_one_language = not self._languages.expects_several
        unread, found = self._state.unread, []
        for alike in _by_length(batch):
            for settled in self._windows.settle(self._decoded(alike, batch[0])):
                found.append(self._verified(*settled))
        if self._windows.finds_again and had_one_language and self._languages.expects_several:
            self._state.unread = unread
            return False
        self._read += found
        return True

    def _decoded(self, windows: Sequence[LanguageWindow], first: LanguageWindow) -> list[DecodedWindow]:
        transcriber, prompt = self._transcriber, self._context.prompt()
        requests = [
            Request(
                one.window.language or "",
                prompt if one.is_prompted else (),
                one.window.start,
                self._is_first and one is first,
                may_be_halved(one.window),
            )
            for one in windows
        ]
        encoded = _stacked([one.encoded for one in windows])
        attempts = transcriber.decode(encoded, requests)
        decoded = [
            self._cut(one.window, encoded.row(index), attempt)
            for index, (one, attempt) in enumerate(zip(windows, attempts, strict=True))
        ]
        if not self._options.needs_words or all(one.is_silent for one in decoded):
            return decoded
        cuts = transcriber.with_words(
            encoded,
            [(one.cut, one.result, one.window.n_frames) for one in decoded],
            window_start=windows[0].window.origin_s,
            last_speech=self._windows.last_speech_s,
        )
        return [replace(one, cut=cut) for one, cut in zip(decoded, cuts, strict=True)]

    def _cut(self, window: Window, encoded: EncoderOutput, attempt: Attempt) -> DecodedWindow:
        result, last_temperature = attempt.result, attempt.last_temperature
        if is_silent(window, result, self._options.fallback):
            cut = WindowCut((), window.origin + window.n_frames)
            return DecodedWindow(window, encoded, cut, result, last_temperature, is_silent=True)
        tokenizer = self._transcriber.tokenizer_of(result.language)
        cut = cut_window(
            result.tokens,
            tokenizer,
            seek=window.origin,
            n_frames=window.n_frames,
            keep_open=window.is_packed,
        )
        return DecodedWindow(window, encoded, cut, result, last_temperature)

    def _verified(self, decoded: DecodedWindow, done: Window) -> ReadWindow:
        segments = list(self._transcriber.segments(decoded.cut, decoded.result))
        if self._languages.expects_several:
            probability = decoded.window.probability
            segments = [replace(segment, language_probability=probability) for segment in segments]
        if self._options.read_again and self._voices is not None:
            segments = self._spoken(segments, self._voices)
        decoded = replace(decoded, cut=replace(decoded.cut, segments=tuple(segments)))
        segments = decoded.segments
        if self._options.read_again:
            segments = self._recovery.recovered(decoded, self._languages.speech_in(done))
        return ReadWindow(done, decoded.is_silent, decoded.last_temperature, tuple(segments))

    def _spoken(self, segments: Sequence[Segment], voices: SpeechPresence) -> list[Segment]:
        if segments:
            self._features.has(mel_frames(segments[-1].end) + LOOK_AHEAD_FRAMES)
        return [
            segment
            for segment in segments
            if voices.has_speech(segment, is_guess=self._options.fallback.is_guess(segment))
            and not (self._context.holds(segment.text) and voices.exceeds_speech_rate(segment))
        ]

    def _finished(self) -> Segments:
        self._read.sort(key=lambda read: read.window.start)
        while self._read and self._read[0].window.start <= self._windows.next_frame:
            read = self._read.pop(0)
            self._is_first = self._is_first and read.is_silent
            for segment in numbered(read.segments, self._state):
                if not read.is_silent:
                    self._context.remember(segment.tokens)
                yield segment
            if not read.is_silent:
                self._context.end_window(read.last_temperature)
            self._reach(read.window.end)


_Timed = TypeVar("_Timed", Segment, Word)

SHORTEST_PART_S = 0.5
"""A shorter rest of a segment next to missing sound holds no word, as timestamps are inexact."""


def outside_silences(segments: Iterator[Segment], recording: Recording) -> Segments:
    """Cut segments and words at missing sound: words never reach across it, segments only across gaps
    below 0.5 s.
    """
    for segment in segments:
        silences = recording.silences()
        for start, end in [one for one in silences if one[0] < segment.end and segment.start < one[1]]:
            words = segment.words and tuple(_outside(word, start, end) for word in segment.words)
            segment = replace(_outside(segment, start, end), words=words)
        yield segment


def _outside(one: _Timed, silence_start: float, silence_end: float) -> _Timed:
    if one.end <= silence_start or silence_end <= one.start:
        return one
    before_s, after_s = silence_start - one.start, one.end - silence_end
    longest_s = math.inf if isinstance(one, Word) else SHORTEST_PART_S
    if min(before_s, after_s) >= longest_s or max(before_s, after_s) <= 0:
        return one
    if before_s < after_s:
        return replace(one, start=round(silence_end, 3))
    return replace(one, end=round(silence_start, 3))


def _by_length(windows: Sequence[LanguageWindow]) -> list[list[LanguageWindow]]:
    batches: dict[int, list[LanguageWindow]] = {}
    for one in windows:
        batches.setdefault(one.encoded.n_frames, []).append(one)
    return list(batches.values())


def _stacked(encoded: Sequence[EncoderOutput]) -> EncoderOutput:
    if len(encoded) == 1:
        return encoded[0]
    states = torch.cat([one.states for one in encoded])
    return EncoderOutput(states, tuple(one.n_content_frames[0] for one in encoded))


@dataclass(frozen=True, slots=True)
class LanguageSpan:
    """A stretch of a recording in one language, in seconds.

    probability: mean over its pieces.
    """

    start: float
    end: float
    language: str
    probability: float


def language_spans(transcriber: Transcriber, recording: Recording) -> Iterator[LanguageSpan]:
    """Return the languages of a recording in order, without gaps; neighbours differ.

    Raises:
        AudioError: the recording cannot be read.
    """
    state, speech = TranscriptionState(language=transcriber.fixed_language), SpeechFinder(PIECE_VAD)
    with transcriber.features(recording, speech) as features:
        windows = SeekWindows(
            transcriber, features, WindowLanguages(transcriber, features, speech, state), state
        )
        windows.find_language()
        last: LanguageSpan | None = None
        while features.has(windows.next_frame):
            features.drop_before(windows.next_frame)
            window, _ = windows.locate(None)
            assert window.language is not None
            state.language, windows.next_frame = window.language, window.end
            span = LanguageSpan(
                seconds_of(window.start), seconds_of(window.end), window.language, window.probability
            )
            if last is not None and last.language != span.language:
                yield last
                last = None
            last = span if last is None else _joined(last, span)
        if last is not None:
            yield replace(last, end=features.duration_s or last.end)


def _joined(span: LanguageSpan, after: LanguageSpan) -> LanguageSpan:
    weights = span.end - span.start, after.end - after.start
    mean = float(np.average([span.probability, after.probability], weights=weights))
    return LanguageSpan(span.start, after.end, span.language, mean)


def recording_language(transcriber: Transcriber, recording: Recording) -> LanguageDetection | None:
    """Detect the language of a recording over its first windows with speech; None without audio.

    Raises:
        AudioError: the recording cannot be read.
    """
    transcriber = replace(transcriber, options=replace(transcriber.options, follow_languages=False))
    state = TranscriptionState()
    speech = SpeechFinder(PIECE_VAD)  # sees no audio: only windows are detected
    with transcriber.features(recording) as features:
        languages = WindowLanguages(transcriber, features, speech, state)
        SeekWindows(transcriber, features, languages, state).find_language()
    return state.detection
