"""Windows of speech, several decoded together: nothing is read where nobody speaks.

Speech is looked for first, in a reading of its own; then the windows are filled and decoded as the
recording is read again. Without conditioning, windows do not depend on each other, so a batch gives the
same text as one by one. A window in which the language changes is cut there. Source of the idea: WhisperX
(https://arxiv.org/abs/2303.00747), faster-whisper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.mel import pad_or_trim
from sottovoce.audio.recording import Recording
from sottovoce.audio.silero import SpeechModel
from sottovoce.audio.vad import speech_segments
from sottovoce.decoding.fallback import Attempt
from sottovoce.offline.context import Context
from sottovoce.offline.drafts import MEL_FRAMES_PER_SECOND, cut_window
from sottovoce.offline.engine import Drafts, Engine, Progress, Request
from sottovoce.offline.options import WINDOW_VAD
from sottovoce.offline.packing import PackedWindow, pack_speech
from sottovoce.offline.turns import first_turn, probe_for
from sottovoce.offline.words import place_words
from sottovoce.types import EncoderOutput, Features, Segment


def transcribe_speech(
    engine: Engine, recording: Recording, progress: Progress, speech_model: SpeechModel | None = None
) -> Iterator[Segment]:
    """Transcribe the speech of a recording, batch by batch."""
    with recording.open() as reader:
        progress.duration = reader.info.duration_s
        speech = speech_segments(reader, engine.options.vad or WINDOW_VAD, model=speech_model)
    windows = pack_speech(speech, engine.window_frames)
    normalization = engine.options.normalization
    dims, device = engine.backend.dims, engine.backend.device
    with RecordingFeatures(recording, dims.n_mels, device, normalization=normalization) as features:
        yield from _SpeechLoop(engine, features, progress).run(windows)
        progress.duration = features.duration_s or progress.duration


class _SpeechLoop:
    """One pass over the packed windows of a recording."""

    def __init__(self, engine: Engine, features: RecordingFeatures, progress: Progress) -> None:
        self._engine = engine
        self._features = features
        self._progress = progress
        self._context = Context(engine.tokenizer, engine.options, engine.backend.dims.n_text_ctx)
        self._probe = probe_for(engine)
        self._ahead: deque[PackedWindow] = deque()

    def run(self, windows: Iterator[PackedWindow]) -> Iterator[Segment]:
        options = self._engine.options
        if self._progress.language is None and not options.per_window_language:
            self._ahead.extend(islice(windows, options.language_windows))
            self._detect(self._ahead)
        while batch := self._next_batch(windows):
            yield from self._transcribe(batch)

    def _next_batch(self, windows: Iterator[PackedWindow]) -> list[PackedWindow]:
        size = self._engine.options.batch_size
        self._ahead.extend(islice(windows, max(0, size - len(self._ahead))))
        return [self._ahead.popleft() for _ in range(min(size, len(self._ahead)))]

    def _detect(self, windows: Sequence[PackedWindow]) -> None:
        if not windows:
            return
        found = self._engine.combine(self._engine.detect(self._encode(windows)))
        self._progress.language, self._progress.language_probability = found.language, found.probability

    def _encode(self, windows: Sequence[PackedWindow]) -> EncoderOutput:
        return self._engine.backend.encode(self._heard(windows))

    def _heard(self, windows: Sequence[PackedWindow]) -> Features:
        mel = torch.cat([self._mel(window) for window in windows])
        return Features(mel, tuple(window.n_frames for window in windows))

    def _mel(self, window: PackedWindow) -> Tensor:
        """The pieces of a window end to end: (1, n_mels, window_frames), filled with 0.0."""
        n_frames = self._engine.window_frames
        parts = []
        for piece in window.pieces:
            if self._features.has(piece.start):
                features = self._features.window(piece.start, piece.end, n_frames=n_frames)
                parts.append(features.mel[..., : features.n_content_frames[0]])
        return pad_or_trim(torch.cat(parts, dim=-1), n_frames)

    def _transcribe(self, windows: Sequence[PackedWindow]) -> Iterator[Segment]:
        engine = self._engine
        windows, encoded, languages = self._in_one_language_each(windows)
        self._features.drop_before(windows[-1].end)
        prompt = self._context.prompt()
        requests = [
            Request(language, prompt, window.start)
            for language, window in zip(languages, windows, strict=True)
        ]
        attempts = engine.decode(encoded, requests)
        drafts = [self._drafts(attempt, window) for attempt, window in zip(attempts, windows, strict=True)]
        if engine.options.word_timestamps:
            self._place_words(encoded, attempts, drafts)
        for attempt, window, found in zip(attempts, windows, drafts, strict=True):
            for segment in engine.segments(found.drafts, attempt.result, self._progress):
                self._context.remember(segment.tokens)
                yield _in_recording(segment, window)
            self._context.end_window(attempt.last_temperature)
            self._progress.position = window.end / MEL_FRAMES_PER_SECOND

    def _in_one_language_each(
        self, windows: Sequence[PackedWindow]
    ) -> tuple[Sequence[PackedWindow], EncoderOutput, list[str]]:
        """The windows up to the first change inside one, encoded, and their languages; the rest waits."""
        features = self._heard(windows)
        encoded = self._engine.backend.encode(features)
        if self._probe is None:
            assert self._progress.language is not None
            return windows, encoded, [self._progress.language] * len(windows)
        languages: list[str] = []
        for index, window in enumerate(windows):
            one = encoded.row(index)
            turn = first_turn(self._probe, one, features.mel[index, :, : 2 * one.n_content_frames[0]])
            languages.append(turn.language)
            if self._progress.language is None:
                self._progress.language, self._progress.language_probability = turn.language, turn.probability
            if turn.n_frames is not None:
                head, tail = window.split(2 * turn.n_frames)
                self._ahead.extendleft(reversed([tail, *windows[index + 1 :]]))
                windows = [*windows[:index], head]
                encoded = self._encode(windows)
                break
        if languages[0] != self._progress.language:
            self._context.reset()
        self._progress.language = languages[-1]
        return windows, encoded, languages

    def _drafts(self, attempt: Attempt, window: PackedWindow) -> Drafts:
        """Segments of a window, in its own time; nothing for silence."""
        result, n_frames = attempt.result, window.n_frames
        if self._engine.options.fallback.is_silence(result):
            return Drafts([], n_frames)
        cut = cut_window(
            result.tokens, self._engine.tokenizer, start_s=0.0, n_frames=n_frames, keep_open=True
        )
        return Drafts(cut.drafts, n_frames)

    def _place_words(
        self, encoded: EncoderOutput, attempts: Sequence[Attempt], windows: Sequence[Drafts]
    ) -> None:
        engine = self._engine
        timed = engine.align(encoded, [attempt.result for attempt in attempts], windows)
        for window, words in zip(windows, timed, strict=True):
            place_words(window.drafts, words, engine.word_rules, eot=engine.tokenizer.eot)


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
