"""The windows of a recording, in one of two orders.

`SeekWindows` are consecutive: each begins at the last timestamp of the one before it, at the end of its
words, or where its speech was skipped. A rest of less than 100 ms is not transcribed.

`PackedWindows` are decoded in batches: a first pass detects speech, which fills windows without its pauses.
A window is cut where the language changes. Speech after the text of a window becomes another window, and so
do both halves of a window with too little or repeated text. In batches of several windows none is conditioned
on earlier text, so that each has the text that it has alone.

Source of the seek rules: openai-whisper 20250625, transcribe.py; of packed speech: WhisperX
(https://arxiv.org/abs/2303.00747), faster-whisper.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
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
from sottovoce.offline.languages import WindowLanguages
from sottovoce.offline.pieces import PIECE_VAD, Piece, Window, pack_speech
from sottovoce.offline.resume import Place, SeekPlace, SpeechPlace
from sottovoce.offline.segments import MEL_FRAMES_PER_SECOND, mel_frames
from sottovoce.offline.transcriber import Transcriber, TranscriptionState
from sottovoce.offline.verify import DecodedWindow, WindowSpan, halves_to_read, skip_hallucinations
from sottovoce.options.vad import WINDOW_VAD
from sottovoce.types import SAMPLE_RATE, EncoderOutput, Features


class LanguageWindow(NamedTuple):
    """A window in one language and its encoder states, a batch of 1.

    is_prompted: the text before it is its prompt.
    """

    window: Window
    encoded: EncoderOutput
    is_prompted: bool = True


class SettledWindow(NamedTuple):
    """A decoded window whose text is kept. done: the part of the window that the text covers."""

    decoded: DecodedWindow
    done: Window


class WindowOrder(ABC):
    """Plans which windows of a recording are read, and in which order.

    next_frame: first log-mel frame of the recording that is not transcribed. last_speech_s: end of the last
    word before it.
    """

    finds_again = False
    """Whether the windows of a batch are planned again if its text is not kept."""
    last_speech_s = 0.0

    def __init__(
        self,
        transcriber: Transcriber,
        features: RecordingFeatures,
        languages: WindowLanguages,
        state: TranscriptionState,
    ) -> None:
        self._transcriber = transcriber
        self._options = transcriber.options
        self._features = features
        self._languages = languages
        self._state = state

    @property
    @abstractmethod
    def next_frame(self) -> int: ...

    @abstractmethod
    def state(self) -> Place: ...

    @abstractmethod
    def restore(self, place: Place) -> None: ...

    @abstractmethod
    def find_language(self) -> None:
        """Detect the language of the recording over its first windows, padded with silence."""

    @abstractmethod
    def batches(self) -> Iterator[Sequence[LanguageWindow]]:
        """Yield the windows to decode next; none: only silence was passed.

        `advance` follows if their text is kept.
        """

    @abstractmethod
    def settle(self, decoded: Sequence[DecodedWindow]) -> list[SettledWindow]:
        """Return the windows whose text is kept, and plan where reading continues after it."""

    @abstractmethod
    def advance(self) -> None:
        """Continue after the text of the settled windows."""


SHORTEST_FRAMES = 10
"""A shorter rest of a clip holds no word, and would cost a window."""
SHORTEST_PROMPTED_FRAMES = 200
"""In multilingual recordings, a shorter window is decoded without a prompt, which it would repeat."""
SHORTEST_PART_FRAMES = 50
"""A shorter rest before a change of language holds no word, and would cost a window."""
DIVIDED_FRAMES = 10
"""Log-mel frames kept before skipped speech that the end of a window divides."""
CUT_WORD_S = 1.0
"""The last word may continue in the next window if it ends this close to the end."""


class SeekWindows(WindowOrder):
    """Consecutive windows of the clips of a recording."""

    finds_again = True
    next_frame = 0

    def __init__(
        self,
        transcriber: Transcriber,
        features: RecordingFeatures,
        languages: WindowLanguages,
        state: TranscriptionState,
    ) -> None:
        super().__init__(transcriber, features, languages, state)
        self._clips = [
            (mel_frames(start), None if end is None else mel_frames(end))
            for start, end in self._options.clips
        ]
        self._clip = 0
        self._parts: deque[Window] = deque()
        """Parts of the last window in one language each, but for the last, which is detected again together
        with what follows it.
        """
        self._first: tuple[int, Features, EncoderOutput] | None = None
        self.next_frame = self._clips[0][0]
        self._after = (self.next_frame, self.last_speech_s)

    def state(self) -> SeekPlace:
        return SeekPlace(
            self._clip, self.next_frame, self.last_speech_s, self._features.n_frames_read, tuple(self._parts)
        )

    def restore(self, place: Place) -> None:
        assert isinstance(place, SeekPlace), "the mode was checked"
        self._clip, self.next_frame, self.last_speech_s = place.clip, place.seek, place.last_speech
        self._parts.extend(place.parts)
        self._features.skip_to(place.seek, n_frames_read=place.n_frames_read)

    def find_language(self) -> None:
        start, _ = self._clips[0]
        found = self._languages.detect_first(self._first_windows())
        full = self._transcriber.window_frames
        if (
            found is not None
            and found.features.n_content_frames[0] == full == self._transcriber.content_frames
        ):
            self._first = start, found.features, found.encoded  # the last window, which is transcribed next

    def _first_windows(self) -> Iterator[Features]:
        seek, end = self._clips[0]
        n_frames = self._transcriber.window_frames
        while (end is None or seek < end) and self._features.has(seek):
            yield self._features.window(seek, end, n_frames=n_frames, fill="silence")
            seek += n_frames

    def batches(self) -> Iterator[Sequence[LanguageWindow]]:
        while self._clip < len(self._clips):
            start, end = self._clips[self._clip]
            self._features.skip_to(start, n_frames_read=start)
            while self._goes_on(start, end):
                self._features.drop_before(self.next_frame)
                reach = self.next_frame + self._transcriber.content_frames
                if self._features.is_blank(self.next_frame, reach if end is None else min(end, reach)):
                    self._after = (reach, self.last_speech_s)
                    yield ()
                else:
                    yield (self._load(end),)
            self._clip += 1
            if self._clip < len(self._clips):
                self.next_frame = self._clips[self._clip][0]

    def _goes_on(self, start: int, end: int | None) -> bool:
        seek = self.next_frame
        last = seek if seek == start else seek + SHORTEST_FRAMES - 1
        return (end is None or last < end) and self._features.has(last)

    def _load(self, end: int | None) -> LanguageWindow:
        window, encoded = self.locate(end)
        self._state.language = window.language
        if encoded is None:
            n_frames = self._transcriber.frames_to_encode(window.n_frames)
            features = self._features.window(window.start, window.end, n_frames=n_frames)
            encoded = self._transcriber.runtime.encode(features)
        is_rest = self._languages.expects_several and window.n_frames < SHORTEST_PROMPTED_FRAMES
        return LanguageWindow(window, encoded, is_prompted=not is_rest)

    def locate(self, end: int | None) -> tuple[Window, EncoderOutput | None]:
        """Return the window that begins at `next_frame`, in one language, up to a frame `end`.

        Its encoder states are None for a part before a change of language, which is encoded separately.
        """
        seek = self.next_frame
        while self._parts and self._parts[0].end - seek < SHORTEST_PART_FRAMES:
            seek = max(seek, self._parts.popleft().end)
        if self._parts:
            return replace(self._parts[0], pieces=(Piece(seek, self._parts[0].end),)), None
        first, self._first = self._first, None
        if first is not None and first[0] == seek:
            _, features, encoded = first
        else:
            last = seek + self._transcriber.content_frames
            last = last if end is None else min(end, last)
            features = self._features.window(seek, last, n_frames=self._transcriber.window_frames)
            encoded = self._transcriber.runtime.encode(features)
        window = Window.of(seek, seek + features.n_content_frames[0])
        parts = self._languages.divided(window, encoded)
        if len(parts) == 1:
            return parts[0], encoded
        self._parts.extend(parts[:-1])
        return parts[0], None

    def settle(self, decoded: Sequence[DecodedWindow]) -> list[SettledWindow]:
        (one,) = decoded
        cut, last_speech_s = one.cut, self.last_speech_s
        if self._options.needs_words and not one.is_silent:
            spoken_until = cut.end_of_speech
            if not cut.ends_closed and spoken_until is not None and spoken_until > one.window.origin_s:
                cut = replace(cut, seek=self._after_speech(one.window, spoken_until))
            threshold = self._options.hallucination_silence_threshold
            if threshold is not None:
                cut = skip_hallucinations(cut, self._span(one.window), threshold, end_by=self._end_by)
            last_speech_s = cut.end_of_speech or last_speech_s
        if cut.restarts:
            self._after = (max(self.next_frame + 1, cut.seek), self.last_speech_s)
            return []
        text_end = mel_frames(one.window.origin_s if cut.end_of_speech is None else cut.end_of_speech)
        seek = self._before_divided(one.window, cut.seek, text_end)
        seek = self._reassigned_tail(seek, text_end)
        self._after = (max(self.next_frame + 1, seek), last_speech_s)
        return [SettledWindow(replace(one, cut=replace(cut, seek=seek)), Window.of(one.window.start, seek))]

    def advance(self) -> None:
        self.next_frame, self.last_speech_s = self._after

    def _after_speech(self, window: Window, spoken_until: float) -> int:
        """Return the frame after the last word, or after the window if little of it is left."""
        if self._options.decoding.without_timestamps:
            is_cut = window.n_frames == self._transcriber.content_frames
            rest_s = window.end / MEL_FRAMES_PER_SECOND - spoken_until
            return mel_frames(spoken_until) if is_cut and rest_s < CUT_WORD_S else window.end
        threshold = self._options.hallucination_silence_threshold
        if threshold is not None and self._span(window).full_end - spoken_until <= threshold:
            return window.end
        return mel_frames(spoken_until)

    def _span(self, window: Window) -> WindowSpan:
        return WindowSpan(
            start=window.origin_s,
            end=window.end / MEL_FRAMES_PER_SECOND,
            full_end=(window.start + self._transcriber.content_frames) / MEL_FRAMES_PER_SECOND,
            last_speech=self.last_speech_s,
        )

    def _end_by(self, time_s: float) -> int | None:
        reach = int(time_s * MEL_FRAMES_PER_SECOND)
        return None if self._features.has(reach) else self._features.n_frames

    def _before_divided(self, window: Window, seek: int, text_end: int) -> int:
        """Return the frame at which to continue, before skipped speech that the end of a full window divides.

        Half a second of it is too short to be transcribed separately.

        seek: frame at which to continue otherwise. text_end: frame where the text of the window ends.
        """
        if not self._options.read_again or window.n_frames < self._transcriber.content_frames:
            return seek
        pieces = self._languages.speech_between(text_end, window.end + 1)
        if not pieces or pieces[-1].end <= window.end:
            return seek
        first = pieces[-1].start
        for before, piece in reversed(list(pairwise(pieces))):
            if before.end < piece.start:
                break
            first = before.start
        is_divided = window.start + DIVIDED_FRAMES < first and text_end + DIVIDED_FRAMES < first < seek
        return first if is_divided else seek

    def _reassigned_tail(self, seek: int, text_end: int) -> int:
        """Return the frame at which to continue; skipped speech before a change goes to the language after
        it.

        A short piece next to a change may be assigned to the wrong language, and that text ends before it.

        seek: frame at which to continue otherwise. text_end: frame where the text of the part ends.
        """
        follower = self._languages.follower
        if follower is None or len(self._parts) < 2 or self._parts[0].end - seek >= SHORTEST_PART_FRAMES:
            return seek
        part, after = self._parts[0], self._parts[1]
        at = part.end
        for piece in reversed(follower.probed_pieces(part.start, part.end)):
            assert part.language is not None
            assert after.language is not None
            if piece.start < text_end or not follower.may_change(piece, part.language, after.language):
                break
            at = piece.start
        if at == part.end:
            return seek
        self._parts[0] = replace(part, pieces=(Piece(part.start, at),))
        return at


LONG_MISSING_S = 2.0
"""No window, and so no segment, reaches across this many seconds of missing sound."""
LEAST_FRAMES = 100
"""Log-mel frames that must be transcribed, and as many left, before the rest of a window is decoded."""


def packed_speech(
    transcriber: Transcriber, recording: Recording, speech_model: SpeechModel | None
) -> tuple[Iterator[Window], SpeechFinder]:
    """Detect the speech of a recording, in packed windows and in pieces between short pauses."""
    finder = SpeechFinder(transcriber.options.vad or WINDOW_VAD, model=speech_model)
    pieces = finder.beside(PIECE_VAD)
    with recording.open() as reader:
        for chunk in reader:
            transcriber.runtime.run_on_host(partial(finder.push, chunk.samples))
        speech = finder.finish()
        missing = [(start + end) / 2 for start, end in reader.silences() if end - start >= LONG_MISSING_S]
    ((start, end),) = transcriber.options.clips
    breaks = [mel_frames(middle) for middle in missing]
    return pack_speech(_within(speech, start, end), transcriber.content_frames, breaks), pieces


def _within(speech: Sequence[SpeechSegment], start_s: float, end_s: float | None) -> list[SpeechSegment]:
    first = round(start_s * SAMPLE_RATE)
    last = sys.maxsize if end_s is None else round(end_s * SAMPLE_RATE)
    inside = [SpeechSegment(max(first, one.start_sample), min(last, one.end_sample)) for one in speech]
    return [one for one in inside if one.start_sample < one.end_sample]


class PackedWindows(WindowOrder):
    """Windows of packed speech, `batch_size` at a time; full ones are taken as needed."""

    def __init__(
        self,
        transcriber: Transcriber,
        features: RecordingFeatures,
        languages: WindowLanguages,
        state: TranscriptionState,
        packed: Iterator[Window],
    ) -> None:
        super().__init__(transcriber, features, languages, state)
        self._windows = packed
        self._n_packed = 0
        self._ahead: deque[Window] = deque()
        self._left: list[Window] = []
        """Windows that remain to be read after the text of the batch."""
        self._end = 0

    @property
    def next_frame(self) -> int:
        return self._ahead[0].start if self._ahead else self._end

    def state(self) -> SpeechPlace:
        return SpeechPlace(self._n_packed, self.next_frame, self._features.n_frames_read, tuple(self._ahead))

    def restore(self, place: Place) -> None:
        assert isinstance(place, SpeechPlace), "the mode was checked"
        self._n_packed = sum(1 for _ in islice(self._windows, place.n_packed))
        self._ahead.extend(place.waiting)
        self._end = place.first_frame
        self._features.skip_to(place.first_frame, n_frames_read=place.n_frames_read)

    def find_language(self) -> None:
        self._languages.detect_first(self._first_windows())

    def _first_windows(self) -> Iterator[Features]:
        for window in self._next_packed():
            self._ahead.append(window)
            mel = self._mel(window, self._transcriber.window_frames, fill="silence")
            yield Features(mel, (window.n_frames,))

    def _next_packed(self) -> Iterator[Window]:
        for window in self._windows:
            self._n_packed += 1
            yield window

    def batches(self) -> Iterator[Sequence[LanguageWindow]]:
        size = self._options.batch_size
        while True:
            self._ahead.extend(islice(self._next_packed(), max(0, size - len(self._ahead))))
            if not self._ahead:
                return
            batch = [self._ahead.popleft() for _ in range(min(size, len(self._ahead)))]
            self._end = max(self._end, batch[-1].end)
            yield self._in_one_language_each(batch)

    def _in_one_language_each(self, windows: Sequence[Window]) -> list[LanguageWindow]:
        full = [window for window in windows if not window.is_cut]
        states: dict[Window, EncoderOutput] = {}
        if full:
            together = self._encode(full, self._transcriber.window_frames)
            states = {window: together.row(index) for index, window in enumerate(full)}
        found: list[LanguageWindow] = []
        for window in windows:
            parts = [window] if window.language else self._languages.divided(window, states[window])
            for part in parts:
                if part.is_cut:
                    encoded = self._encode([part], self._transcriber.frames_to_encode(part.n_frames))
                else:
                    encoded = states[window]
                found.append(LanguageWindow(part, encoded))
                self._state.language = part.language
        return found

    def _encode(self, windows: Sequence[Window], n_frames: int) -> EncoderOutput:
        mel = torch.cat([self._mel(window, n_frames) for window in windows])
        return self._transcriber.runtime.encode(Features(mel, tuple(window.n_frames for window in windows)))

    def _mel(self, window: Window, n_frames: int, *, fill: Fill = "zero") -> Tensor:
        pieces = [piece for piece in window.pieces if self._features.has(piece.start)]
        parts = []
        for piece in pieces:
            features = self._features.window(piece.start, piece.end, n_frames=n_frames, fill=fill)
            n_content = None if piece is pieces[-1] else features.n_content_frames[0]
            parts.append(features.mel[..., :n_content])
        return torch.cat(parts, dim=-1)[..., :n_frames]

    def settle(self, decoded: Sequence[DecodedWindow]) -> list[SettledWindow]:
        fallback, eot = self._options.fallback_of_window, self._transcriber.tokenizer.eot
        settled: list[SettledWindow] = []
        for one in decoded:
            window, at = one.window, one.cut.seek
            if halves := halves_to_read(window, one.result, one.cut, fallback, eot):
                self._left += halves
                continue
            is_rest = LEAST_FRAMES <= at <= window.n_frames - LEAST_FRAMES
            done, *rest = window.split(at) if is_rest else (window,)
            self._left += rest
            settled.append(SettledWindow(one, done))
        return settled

    def advance(self) -> None:
        self._ahead = deque(sorted([*self._left, *self._ahead], key=lambda window: window.start))
        self._left.clear()
        self._features.drop_before(self.next_frame)
