"""Windows one after the other: each begins where the timestamps of the one before say.

Source of the seek rules: openai-whisper 20250625, transcribe.py. A rest of less than 100 ms is not read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.decoding.decode import DecodingResult
from sottovoce.errors import AudioError
from sottovoce.offline.context import Context
from sottovoce.offline.cut import MEL_FRAMES_PER_SECOND, WindowCut, cut_window
from sottovoce.offline.engine import Engine, Progress, Request
from sottovoce.offline.hallucination import WindowSpan, skip_hallucinations
from sottovoce.offline.languages import find_language
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.turns import TurnFinder, recording_window, turn_finder
from sottovoce.offline.words import place_words
from sottovoce.offline.work import Align, Encode, Read, Step, Steps
from sottovoce.types import EncoderOutput, Features

SHORTEST_FRAMES = 10
"""A shorter rest of a clip holds no word, and would cost a whole window."""
CUT_WORD_S = 1.0
"""So close to the end of a window its last word may go on in the next one."""


def transcribe_seeking(engine: Engine, recording: Recording, progress: Progress) -> Steps:
    """Transcribe the clips of a recording, window by window."""
    normalization = engine.options.normalization
    dims, device = engine.backend.dims, engine.backend.device
    with RecordingFeatures(recording, dims.n_mels, device, normalization=normalization) as features:
        progress.duration = features.declared_duration_s
        loop = _SeekLoop(engine, features, progress)
        if not loop.begin():
            raise past_the_end(recording, engine.options, features.duration_s)
        yield from loop.run()
        progress.duration = features.duration_s or progress.duration


class _Window(NamedTuple):
    """Frames (10 ms) [seek, seek + n_frames) of the recording, encoded."""

    seek: int
    n_frames: int
    encoded: EncoderOutput

    @property
    def end(self) -> int:
        return self.seek + self.n_frames

    @property
    def start_s(self) -> float:
        return self.seek / MEL_FRAMES_PER_SECOND


class _Turn(NamedTuple):
    """Frames (10 ms) up to `end` are in one language."""

    language: str
    end: int

    def holds(self, seek: int) -> bool:
        """Whether enough of the turn is left at `seek` to go on with it."""
        return self.end - seek >= MEL_FRAMES_PER_SECOND / 2


class _SeekLoop:
    """One pass over the clips of a recording."""

    def __init__(self, engine: Engine, features: RecordingFeatures, progress: Progress) -> None:
        self._engine = engine
        self._options = engine.options
        self._features = features
        self._progress = progress
        self._context = Context(engine.tokenizer, engine.options, engine.backend.dims.n_text_ctx)
        self._finder = turn_finder(engine)
        self._turn: _Turn | None = None
        self._first_window: _Window | None = None
        self._last_speech = 0.0
        self._skipped = 0
        self._is_first = True

    def begin(self) -> bool:
        """Read up to the first clip; whether the recording reaches it, where it does not begin there."""
        start = _frame(self._options.clips[0][0])
        self._skip_to(start)
        return start == 0 or self._features.has(start)

    def run(self) -> Steps:
        clips = [(_frame(start), None if end is None else _frame(end)) for start, end in self._options.clips]
        if self._progress.language is None and self._finder is None:
            yield from self._find_language(*clips[0])
        for start, end in clips:
            self._skip_to(start)
            seek = start
            while self._goes_on(start, seek, end):
                self._features.drop_before(seek)
                reach = seek + self._engine.window_frames
                if self._features.is_blank(seek, reach if end is None else min(end, reach)):
                    seek = reach
                    self._report(seek)
                    continue
                window = yield from self._load(seek, end)
                seek = max(seek + 1, (yield from self._transcribe(window)))
                self._report(seek)

    def _skip_to(self, seek: int) -> None:
        """Read up to where a clip begins, forgetting on the way what lies between."""
        for frame in range(0, seek, self._engine.window_frames):
            if frame > self._skipped and self._features.has(frame):
                self._features.drop_before(frame)
                self._skipped = frame

    def _goes_on(self, start: int, seek: int, end: int | None) -> bool:
        """Whether there is something to read; a clip that is short by itself is read."""
        last = seek if seek == start else seek + SHORTEST_FRAMES - 1
        return (end is None or last < end) and self._features.has(last)

    def _load(self, seek: int, end: int | None) -> Generator[Encode, None, _Window]:
        window, self._first_window = self._first_window, None
        if window is not None and window.seek == seek:
            return window
        if self._finder is None:
            return (yield from self._encode(seek, end))
        if self._turn is not None and self._turn.holds(seek):
            return (yield from self._encode(seek, self._turn.end))
        return (yield from self._in_one_language(self._finder, seek, end))

    def _encode(self, seek: int, end: int | None) -> Generator[Encode, None, _Window]:
        work = Encode(self._features.window(seek, end, n_frames=self._engine.window_frames))
        yield work
        return _Window(seek, work.features.n_content_frames[0], work.encoded)

    def _in_one_language(
        self, finder: TurnFinder, seek: int, end: int | None
    ) -> Generator[Encode, None, _Window]:
        """The part of a window before another language begins, encoded by itself."""
        work = Encode(self._features.window(seek, end, n_frames=self._engine.window_frames))
        yield work
        progress = self._progress
        window = recording_window(self._features, seek, work)
        turn = yield from finder.first_turn(window, progress.language)
        if progress.language not in (None, turn.language):
            self._context.reset()
        progress.language, progress.detection = turn.language, progress.detection or turn.detection
        if turn.n_frames is None:
            return _Window(seek, work.features.n_content_frames[0], work.encoded)
        self._turn = _Turn(turn.language, seek + 2 * turn.n_frames)
        return (yield from self._encode(seek, self._turn.end))

    def _find_language(self, start: int, end: int | None) -> Generator[Encode, None, None]:
        """Find the language over the first windows of the first clip."""
        found = yield from find_language(self._engine, self._windows_in_silence(start, end))
        if found is None:
            return
        self._progress.language, self._progress.detection = found.detection.language, found.detection
        full = self._engine.window_frames
        if found.first.features.n_content_frames[0] == full:  # nothing was filled up: the window to be read
            self._first_window = _Window(start, full, found.first.encoded)

    def _windows_in_silence(self, start: int, end: int | None) -> Iterator[Features]:
        """Windows as openai-whisper hears them for detection: a short one goes on in silence, not in 0.0."""
        n_frames = self._engine.window_frames
        seek = start
        while (end is None or seek < end) and self._features.has(seek):
            yield self._features.window(seek, end, n_frames=n_frames, fill="silence")
            seek += n_frames

    def _transcribe(self, window: _Window) -> Generator[Step, None, int]:
        """Decode one window, yield its segments and return the frame to go on from."""
        engine = self._engine
        language = self._progress.language
        assert language is not None
        request = Request(language, self._context.prompt(), window.seek, self._is_first)
        self._is_first = False
        work = Read(window.encoded, [request])
        yield work
        attempt = work.attempts[0]
        result = attempt.result
        if self._options.fallback.is_silence(result):
            return window.end
        tokenizer = engine.tokenizer_of(result.language)
        cut = cut_window(result.tokens, tokenizer, seek=window.seek, n_frames=window.n_frames)
        if self._options.needs_words:
            cut = yield from self._with_words(window, cut, result)
        if cut.restarts:
            return cut.seek
        for segment in engine.segments(cut, result, self._progress):
            self._context.remember(segment.tokens)
            yield segment
        self._context.end_window(attempt.last_temperature)
        return cut.seek

    def _with_words(
        self, window: _Window, cut: WindowCut, result: DecodingResult
    ) -> Generator[Align, None, WindowCut]:
        """Time the words of a window, drop what was made up, and find where to go on."""
        engine = self._engine
        work = Align(window.encoded, [engine.text_of(cut, result, window.n_frames)])
        yield work
        segments = place_words(
            cut.segments,
            work.words[0],
            engine.word_rules,
            eot=engine.tokenizer.eot,
            window_start=window.start_s,
            last_speech=self._last_speech,
        )
        placed = WindowCut(segments, cut.seek, cut.ends_closed)
        spoken_until = placed.end_of_speech
        if not cut.ends_closed and spoken_until is not None and spoken_until > window.start_s:
            placed = WindowCut(segments, self._after_speech(window, spoken_until))
        threshold = self._options.hallucination_silence_threshold
        if threshold is not None:
            placed = skip_hallucinations(placed, self._span(window), threshold, end_by=self._end_by)
        if not placed.restarts:
            self._last_speech = placed.end_of_speech or self._last_speech
        return placed

    def _after_speech(self, window: _Window, spoken_until: float) -> int:
        """Go on after the last word; after the window, if only a little of it is left and silence skipped.

        Text without timestamps is that of all the window: nothing is left of it but a word that it cuts.
        """
        if self._options.decoding.without_timestamps:
            is_cut = window.n_frames == self._engine.window_frames
            rest_s = window.end / MEL_FRAMES_PER_SECOND - spoken_until
            return _frame(spoken_until) if is_cut and rest_s < CUT_WORD_S else window.end
        threshold = self._options.hallucination_silence_threshold
        if threshold is not None and self._span(window).full_end - spoken_until <= threshold:
            return window.end
        return _frame(spoken_until)

    def _span(self, window: _Window) -> WindowSpan:
        return WindowSpan(
            start=window.start_s,
            end=window.end / MEL_FRAMES_PER_SECOND,
            full_end=(window.seek + self._engine.window_frames) / MEL_FRAMES_PER_SECOND,
            last_speech=self._last_speech,
        )

    def _end_by(self, time_s: float) -> int | None:
        """The frame at which the recording ends, if it does by that time."""
        reach = int(time_s * MEL_FRAMES_PER_SECOND)
        return None if self._features.has(reach) else self._features.n_frames

    def _report(self, seek: int) -> None:
        progress = self._progress
        progress.duration = self._features.duration_s or progress.duration
        position = seek / MEL_FRAMES_PER_SECOND
        progress.position = position if progress.duration is None else min(position, progress.duration)


def past_the_end(recording: Recording, options: TranscribeOptions, duration_s: float | None) -> AudioError:
    """What to say where the part that was asked for begins behind the recording."""
    length = "less" if duration_s is None else f"a recording of {duration_s:.1f} s"
    start_s = options.clips[0][0]
    return AudioError(f"{recording.name}: expected sound at {start_s:g} s, where to begin, got {length}")


def _frame(seconds: float) -> int:
    return round(seconds * MEL_FRAMES_PER_SECOND)
