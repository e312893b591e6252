"""Windows of speech, several decoded together: nothing is read where nobody speaks.

Speech is looked for first, in a reading of its own; then the windows are filled and decoded as the
recording is read again. Without conditioning, windows do not depend on each other, so a batch gives the
same text as one by one. A window in which the language changes is cut there, and what the model left unread
of a window is a window of its own; so are its halves, where the text does not fit the speech (`doubt`).
Source of the idea: WhisperX (https://arxiv.org/abs/2303.00747), faster-whisper.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.audio.features import Fill, RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.audio.silero import SpeechModel
from sottovoce.audio.vad import SpeechSegment, speech_segments
from sottovoce.decoding.fallback import Attempt
from sottovoce.offline.context import Context
from sottovoce.offline.cut import MEL_FRAMES_PER_SECOND, WindowCut, cut_window
from sottovoce.offline.doubt import halves_to_read, is_silent, may_be_halved
from sottovoce.offline.engine import Engine, Progress, Request
from sottovoce.offline.languages import find_language
from sottovoce.offline.options import WINDOW_VAD
from sottovoce.offline.packing import PackedWindow, pack_speech
from sottovoce.offline.seek import past_the_end
from sottovoce.offline.turns import TurnWindow, turn_finder
from sottovoce.offline.words import place_words
from sottovoce.offline.work import Align, Encode, Read, Steps
from sottovoce.types import SAMPLE_RATE, AudioChunk, EncoderOutput, Features, Segment

LEAST_FRAMES = 100
"""Log-mel frames that a window must have got on by, and have left, for the rest to be read."""


class _ReadWindow(NamedTuple):
    """A window that was read, and what it holds; its segments wait for those of earlier windows."""

    window: PackedWindow
    attempt: Attempt
    cut: WindowCut


def transcribe_speech(
    engine: Engine, recording: Recording, progress: Progress, speech_model: SpeechModel | None = None
) -> Steps:
    """Transcribe the speech of a recording, batch by batch."""
    with recording.open() as reader:
        progress.duration = reader.info.duration_s
        heard = _Counted(reader)
        speech = speech_segments(heard, engine.options.vad or WINDOW_VAD, model=speech_model)
    ((start, end),) = engine.options.clips
    if start and start * SAMPLE_RATE >= heard.n_samples:
        raise past_the_end(recording, engine.options, heard.n_samples / SAMPLE_RATE)
    windows = pack_speech(_within(speech, start, end), engine.window_frames)
    normalization = engine.options.normalization
    dims, device = engine.backend.dims, engine.backend.device
    with RecordingFeatures(recording, dims.n_mels, device, normalization=normalization) as features:
        yield from _SpeechLoop(engine, features, progress).run(windows)
        progress.duration = features.duration_s or progress.duration


class _Counted:
    """Chunks as they come, counted."""

    def __init__(self, chunks: Iterable[AudioChunk]) -> None:
        self._chunks = chunks
        self.n_samples = 0

    def __iter__(self) -> Iterator[AudioChunk]:
        for chunk in self._chunks:
            self.n_samples = chunk.start_sample + len(chunk.samples)
            yield chunk


def _within(speech: Sequence[SpeechSegment], start_s: float, end_s: float | None) -> list[SpeechSegment]:
    """The parts of speech that lie in the part of the recording that was asked for."""
    first = round(start_s * SAMPLE_RATE)
    last = sys.maxsize if end_s is None else round(end_s * SAMPLE_RATE)
    inside = [SpeechSegment(max(first, one.start_sample), min(last, one.end_sample)) for one in speech]
    return [one for one in inside if one.start_sample < one.end_sample]


class _SpeechLoop:
    """One pass over the packed windows of a recording."""

    def __init__(self, engine: Engine, features: RecordingFeatures, progress: Progress) -> None:
        self._engine = engine
        self._features = features
        self._progress = progress
        self._context = Context(engine.tokenizer, engine.options, engine.backend.dims.n_text_ctx)
        self._finder = turn_finder(engine)
        self._ahead: deque[PackedWindow] = deque()
        self._read: list[_ReadWindow] = []
        self._is_first = True

    def run(self, windows: Iterator[PackedWindow]) -> Steps:
        if self._progress.language is None and self._finder is None:
            found = yield from find_language(self._engine, self._windows_in_silence(windows))
            if found is not None:
                self._progress.language, self._progress.detection = found.detection.language, found.detection
        while batch := self._next_batch(windows):
            yield from self._transcribe(batch)

    def _next_batch(self, windows: Iterator[PackedWindow]) -> list[PackedWindow]:
        size = self._engine.options.batch_size
        self._ahead.extend(islice(windows, max(0, size - len(self._ahead))))
        return [self._ahead.popleft() for _ in range(min(size, len(self._ahead)))]

    def _windows_in_silence(self, windows: Iterator[PackedWindow]) -> Iterator[Features]:
        for window in windows:
            self._ahead.append(window)
            yield Features(self._mel(window, fill="silence"), (window.n_frames,))

    def _encode(self, windows: Sequence[PackedWindow]) -> Encode:
        mel = torch.cat([self._mel(window) for window in windows])
        return Encode(Features(mel, tuple(window.n_frames for window in windows)))

    def _mel(self, window: PackedWindow, *, fill: Fill = "zero") -> Tensor:
        """The pieces of a window end to end: (1, n_mels, window_frames), filled up after the last."""
        n_frames = self._engine.window_frames
        pieces = [piece for piece in window.pieces if self._features.has(piece.start)]
        parts = []
        for piece in pieces:
            features = self._features.window(piece.start, piece.end, n_frames=n_frames, fill=fill)
            n_content = None if piece is pieces[-1] else features.n_content_frames[0]
            parts.append(features.mel[..., :n_content])
        return torch.cat(parts, dim=-1)[..., :n_frames]

    def _transcribe(self, windows: Sequence[PackedWindow]) -> Steps:
        engine = self._engine
        windows, encoded, languages = yield from self._in_one_language_each(windows)
        prompt = self._context.prompt()
        requests = [
            Request(
                language, prompt, window.start, self._is_first and window is windows[0], may_be_halved(window)
            )
            for language, window in zip(languages, windows, strict=True)
        ]
        self._is_first = False
        work = Read(encoded, requests)
        yield work
        cuts = [self._cut(attempt, window) for attempt, window in zip(work.attempts, windows, strict=True)]
        fallback, eot = engine.options.fallback_of_window, engine.tokenizer.eot
        halves = [
            halves_to_read(window, attempt.result, cut, fallback, eot)
            for window, attempt, cut in zip(windows, work.attempts, cuts, strict=True)
        ]
        if engine.options.needs_words:
            cuts = yield from self._with_words(work, cuts, windows)
        self._read += [
            _ReadWindow(*read)
            for read, instead in zip(zip(windows, work.attempts, cuts, strict=True), halves, strict=True)
            if not instead
        ]
        self._take_up_unread(windows, cuts, halves)
        self._features.drop_before(self._ahead[0].start if self._ahead else windows[-1].end)
        yield from self._finished()

    def _take_up_unread(
        self,
        windows: Sequence[PackedWindow],
        cuts: Sequence[WindowCut],
        halves: Sequence[tuple[PackedWindow, ...]],
    ) -> None:
        """Put what the model left unread of windows before the windows that wait, or their halves."""
        unread: list[PackedWindow] = []
        for window, cut, instead in zip(windows, cuts, halves, strict=True):
            if instead:
                unread += instead
            elif LEAST_FRAMES <= cut.seek <= window.n_frames - LEAST_FRAMES:
                unread.append(window.split(cut.seek)[1])
        self._ahead.extendleft(reversed(unread))

    def _finished(self) -> Iterator[Segment]:
        """Segments of the windows before which nothing is unread."""
        self._read.sort(key=lambda read: read.window.start)
        while self._read and not (self._ahead and self._ahead[0].start < self._read[0].window.start):
            window, attempt, cut = self._read.pop(0)
            for segment in self._engine.segments(cut, attempt.result, self._progress):
                self._context.remember(segment.tokens)
                yield _in_recording(segment, window)
            self._context.end_window(attempt.last_temperature)
            self._progress.position = window.end / MEL_FRAMES_PER_SECOND

    def _in_one_language_each(
        self, windows: Sequence[PackedWindow]
    ) -> Generator[Encode, None, tuple[Sequence[PackedWindow], EncoderOutput, list[str]]]:
        """The windows up to the first change inside one, encoded, and their languages; the rest waits."""
        work = self._encode(windows)
        yield work
        progress = self._progress
        if self._finder is None:
            assert progress.language is not None
            return windows, work.encoded, [progress.language] * len(windows)
        languages: list[str] = []
        last = progress.language
        for index, window in enumerate(windows):
            turn = yield from self._finder.first_turn(self._turn_window(window, work, index), last)
            last = turn.language
            languages.append(last)
            progress.detection = progress.detection or turn.detection
            if turn.n_frames is not None:
                head, tail = window.split(2 * turn.n_frames)
                self._ahead.extendleft(reversed([tail, *windows[index + 1 :]]))
                windows = [*windows[:index], head]
                work = self._encode(windows)
                yield work
                break
        if progress.language not in (None, languages[0]):
            self._context.reset()
        progress.language = last
        return windows, work.encoded, languages

    def _turn_window(self, window: PackedWindow, work: Encode, index: int) -> TurnWindow:
        """One of the encoded windows, whose pieces are found in the recording."""
        encoded = work.encoded.row(index)

        def piece(start: int, end: int) -> Features:
            part = window.part(2 * start, 2 * end)
            return Features(self._mel(part, fill="silence"), (part.n_frames,))

        return TurnWindow(encoded, work.features.mel[index, :, : 2 * encoded.n_content_frames[0]], piece)

    def _cut(self, attempt: Attempt, window: PackedWindow) -> WindowCut:
        """Segments of a window, in its own time; nothing for silence."""
        result = attempt.result
        if is_silent(window, result, self._engine.options.fallback):
            return WindowCut((), window.n_frames)
        tokenizer = self._engine.tokenizer_of(result.language)
        return cut_window(result.tokens, tokenizer, seek=0, n_frames=window.n_frames, keep_open=True)

    def _with_words(
        self, read: Read, cuts: Sequence[WindowCut], windows: Sequence[PackedWindow]
    ) -> Generator[Align, None, list[WindowCut]]:
        engine = self._engine
        results = [attempt.result for attempt in read.attempts]
        lengths = [window.n_frames for window in windows]
        work = Align(
            read.encoded, [engine.text_of(*each) for each in zip(cuts, results, lengths, strict=True)]
        )
        yield work
        rules, eot = engine.word_rules, engine.tokenizer.eot
        return [
            replace(cut, segments=place_words(cut.segments, words, rules, eot=eot))
            for cut, words in zip(cuts, work.words, strict=True)
        ]


def _in_recording(segment: Segment, window: PackedWindow) -> Segment:
    """A segment in the time of its window, moved to that of the recording."""
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
