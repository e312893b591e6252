"""The path of a recording: windows → language → decode → words → verify → segments.

The order of windows is a strategy. Between two batches the whole state is a `ResumePoint`.

- `SeekWindows` are consecutive: each begins at the last timestamp of the one before it, at the end of its
  words, or where its speech was skipped. Source: openai-whisper 20250625, transcribe.py.
- `PackedWindows` are decoded in batches: a first pass detects speech, which fills windows without pauses.
  Speech after the text of a window becomes another window, and so do both halves of a window with too little
  or repeated text. Windows in batches are not conditioned on earlier text, so that their text does not depend
  on the batch. Source: WhisperX (https://arxiv.org/abs/2303.00747), faster-whisper.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, pairwise
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
from msgspec import structs

from sottovoce.audio.io import Recording
from sottovoce.audio.mel import MEL_FRAMES_PER_SECOND, RecordingFeatures
from sottovoce.audio.vad import SpeechFinder
from sottovoce.decoding.decode import Attempt, LanguageDetection
from sottovoce.decoding.search import Fusion
from sottovoce.errors import AudioError, OptionError
from sottovoce.models.backend import EncoderOutput
from sottovoce.offline.languages import LOOK_AHEAD_FRAMES, WindowLanguages
from sottovoce.offline.resume import (
    Place,
    ReadWindow,
    ResumePoint,
    SeekPlace,
    SpeechPlace,
    TranscriptionState,
    WindowPlace,
)
from sottovoce.offline.transcriber import (
    Context,
    RecordingTranscriber,
    SecondModel,
    Segments,
    Transcriber,
    WindowRequest,
)
from sottovoce.offline.verify import (
    DecodedWindow,
    SkippedSpeechRecovery,
    SpeechPresence,
    VerifiedWindow,
    WindowSpan,
    may_be_halved,
    skip_hallucinations,
    split_retry,
)
from sottovoce.offline.windows import (
    PIECE_VAD,
    SpeechSpan,
    Window,
    WindowCut,
    mel_frames,
    pack_speech,
    seconds_of,
)
from sottovoce.options.decoding import WINDOW_VAD, is_silence
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import Runtime
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Word

logger = logging.getLogger(__name__)


class LanguageWindow(NamedTuple):
    """A window in one language and its encoder states, a batch of 1; is_prompted: with the text before it."""

    window: Window
    encoded: EncoderOutput
    is_prompted: bool = True


Batches: TypeAlias = Generator[Sequence[LanguageWindow], WindowPlace | None, None]


@dataclass(eq=False)
class WindowOrder(ABC):
    """Plans which windows of a recording are decoded, and in which order.

    last_speech_s: end of the last word. finds_again: windows are planned again if their text is not kept.
    """

    transcriber: Transcriber
    features: RecordingFeatures
    languages: WindowLanguages
    progress: TranscriptionState

    finds_again: ClassVar[bool] = False
    last_speech_s = 0.0

    def __post_init__(self) -> None:
        self.options, self.run = self.transcriber.options, self.transcriber.runtime.run

    @abstractmethod
    def restore(self, place: Place) -> None: ...

    @abstractmethod
    def find_language(self) -> None: ...

    @abstractmethod
    def batches(self) -> Batches:
        """Yield the windows to decode next, none over silence; is sent the place after them.

        None: they are planned again.
        """

    @abstractmethod
    def covered(
        self, decoded: Sequence[DecodedWindow]
    ) -> tuple[list[tuple[DecodedWindow, Window]], WindowPlace]:
        """Return the windows whose text is kept, each with the part that it covers, and the place after."""


SHORTEST_FRAMES = 10
"""A shorter rest of a clip holds no word."""
SHORTEST_PROMPTED_FRAMES = 200
"""In multilingual recordings, a shorter window would repeat its prompt."""
SHORTEST_PART_FRAMES = 50
"""A shorter rest before a change of language holds no word."""
DIVIDED_FRAMES = 10
"""Log-mel frames kept before skipped speech that the end of a window divides."""
CUT_WORD_S = 1.0
"""The last word may continue in the next window if it ends this close to the end."""


@dataclass(eq=False)
class SeekWindows(WindowOrder):
    """Consecutive windows of the clips of a recording."""

    finds_again = True

    def __post_init__(self) -> None:
        super().__post_init__()
        clips = self.options.clips
        self._clips = [(mel_frames(start), None if end is None else mel_frames(end)) for start, end in clips]
        self._encoded: dict[Window, EncoderOutput] = {}
        self.place = SeekPlace(0, self._clips[0][0], 0.0, 0)

    @property
    def last_speech_s(self) -> float:  # type: ignore[override]
        return self.place.last_speech

    def restore(self, place: Place) -> None:
        assert isinstance(place, SeekPlace), "the mode was checked"
        self.place = place
        self.features.skip_to(place.next_frame, n_frames_read=place.n_frames_read)

    def find_language(self) -> None:
        self._encoded = self.languages.detect_first(self._first_windows(), n_kept=1)

    def _first_windows(self) -> Iterator[Window]:
        seek, end = self._clips[0]
        while (end is None or seek < end) and self.features.has(seek):
            yield self._window(seek, end)
            seek += self.transcriber.content_frames

    def _window(self, seek: int, end: int | None) -> Window:
        reach = seek + self.transcriber.content_frames
        return Window.of(seek, self.features.end_before(reach if end is None else min(end, reach)))

    def batches(self) -> Batches:
        for clip in range(self.place.clip, len(self._clips)):
            start, end = self._clips[clip]
            if clip > self.place.clip:
                self.place = structs.replace(self.place, clip=clip, next_frame=start)
            self.features.skip_to(start, n_frames_read=start)
            while self._goes_on(start, end):
                seek, reach = self.place.next_frame, self._reach
                self.features.drop_before(seek)
                is_blank = self.features.is_blank(seek, reach if end is None else min(end, reach))
                after = yield () if is_blank else (self._load(end),)
                if after is not None:
                    assert isinstance(after, SeekPlace), "it is one of `covered`"
                    self.place = after

    @property
    def _reach(self) -> int:
        return self.place.next_frame + self.transcriber.content_frames

    def _goes_on(self, start: int, end: int | None) -> bool:
        seek = self.place.next_frame
        last = seek if seek == start else seek + SHORTEST_FRAMES - 1
        return (end is None or last < end) and self.features.has(last)

    def _load(self, end: int | None) -> LanguageWindow:
        window, encoded = self.locate(end)
        self.progress.language = window.language
        if encoded is None:
            (encoded,) = self.run(self.transcriber.encode(self.features, [window], is_part=True))
        is_rest = self.languages.expects_several and window.n_frames < SHORTEST_PROMPTED_FRAMES
        return LanguageWindow(window, encoded, is_prompted=not is_rest)

    def locate(self, end: int | None) -> tuple[Window, EncoderOutput | None]:
        """Return the next window, in one language, up to a frame `end`.

        Without encoder states: a part before a change, which is encoded separately.
        """
        seek, parts = self.place.next_frame, self.place.parts
        while parts and parts[0].end - seek < SHORTEST_PART_FRAMES:
            seek, parts = max(seek, parts[0].end), parts[1:]
        self.place = structs.replace(self.place, parts=parts)
        if parts:
            return replace(parts[0], pieces=(SpeechSpan(seek, parts[0].end),)), None
        window, first, self._encoded = self._window(seek, end), self._encoded, {}
        encoded = first.get(window) or self.run(self.transcriber.encode(self.features, [window]))[0]
        first_part, *others = self.run(self.languages.divided(window, encoded))
        if not others:
            return first_part, encoded
        self.place = structs.replace(self.place, parts=(first_part, *others[:-1]))
        return first_part, None

    def covered(
        self, decoded: Sequence[DecodedWindow]
    ) -> tuple[list[tuple[DecodedWindow, Window]], WindowPlace]:
        if not decoded:
            return [], structs.replace(self.place, next_frame=self._reach)
        (each,) = decoded
        cut, last_speech_s, least = each.cut, self.last_speech_s, self.place.next_frame + 1
        if any(segment.words for segment in cut.segments):
            spoken_until = cut.end_of_speech
            if not cut.ends_closed and spoken_until is not None and spoken_until > each.window.origin_s:
                cut = replace(cut, seek=self._after_speech(each.window, spoken_until))
            threshold = self.options.hallucination_silence_threshold
            if threshold is not None:
                cut = skip_hallucinations(cut, self._span(each.window), threshold, end_by=self._end_by)
            last_speech_s = cut.end_of_speech or last_speech_s
        if cut.restarts:
            return [], structs.replace(self.place, next_frame=max(least, cut.seek))
        text_end = mel_frames(each.window.origin_s if cut.end_of_speech is None else cut.end_of_speech)
        seek = self._before_divided(each.window, cut.seek, text_end)
        seek, parts = self._reassigned_tail(seek, text_end)
        after = structs.replace(
            self.place, next_frame=max(least, seek), last_speech=last_speech_s, parts=parts
        )
        return [(replace(each, cut=replace(cut, seek=seek)), Window.of(each.window.start, seek))], after

    def _after_speech(self, window: Window, spoken_until: float) -> int:
        """Return the frame after the last word, or after the window if little of it is left."""
        if self.options.decoding.without_timestamps:
            is_cut = window.n_frames == self.transcriber.content_frames
            rest_s = window.end / MEL_FRAMES_PER_SECOND - spoken_until
            return mel_frames(spoken_until) if is_cut and rest_s < CUT_WORD_S else window.end
        threshold = self.options.hallucination_silence_threshold
        if threshold is not None and self._span(window).full_end - spoken_until <= threshold:
            return window.end
        return mel_frames(spoken_until)

    def _span(self, window: Window) -> WindowSpan:
        return WindowSpan(
            start=window.origin_s,
            end=window.end / MEL_FRAMES_PER_SECOND,
            full_end=(window.start + self.transcriber.content_frames) / MEL_FRAMES_PER_SECOND,
            last_speech=self.last_speech_s,
        )

    def _end_by(self, time_s: float) -> int | None:
        reach = int(time_s * MEL_FRAMES_PER_SECOND)
        return None if self.features.has(reach) else self.features.n_frames

    def _before_divided(self, window: Window, seek: int, text_end: int) -> int:
        """Return `seek`, or the frame before skipped speech that the end of a full window divides."""
        if not self.options.read_again or window.n_frames < self.transcriber.content_frames:
            return seek
        pieces = self.languages.speech_between(text_end, window.end + 1)
        if not pieces or pieces[-1].end <= window.end:
            return seek
        first = pieces[-1].start
        for before, piece in reversed(list(pairwise(pieces))):
            if before.end < piece.start:
                break
            first = before.start
        is_divided = window.start + DIVIDED_FRAMES < first and text_end + DIVIDED_FRAMES < first < seek
        return first if is_divided else seek

    def _reassigned_tail(self, seek: int, text_end: int) -> tuple[int, tuple[Window, ...]]:
        """Return `seek` and the parts in one language each.

        Skipped speech at the end of the first part goes to the language after the change.
        """
        follower, parts = self.languages.follower, self.place.parts
        if follower is None or len(parts) < 2 or parts[0].end - seek >= SHORTEST_PART_FRAMES:
            return seek, parts
        part, after = parts[:2]
        at = part.end
        for piece in reversed(follower.probed_pieces(part.start, part.end)):
            assert part.language is not None
            assert after.language is not None
            if piece.start < text_end or not follower.may_change(piece, part.language, after.language):
                break
            at = piece.start
        if at == part.end:
            return seek, parts
        return at, (replace(part, pieces=(SpeechSpan(part.start, at),)), *parts[1:])


LONG_MISSING_S = 2.0
"""No window reaches across this many seconds of missing sound."""
LEAST_FRAMES = 100
"""Log-mel frames that must be transcribed, and left, before the rest of a window is decoded."""


def packed_speech(features: RecordingFeatures, speech: SpeechFinder, longest: int) -> Iterator[Window]:
    """Pack the speech of a recording, which `speech` observes, into windows of at most `longest` frames."""
    features.has(0)
    missing = [(start + end) / 2 for start, end in features.silences if end - start >= LONG_MISSING_S]
    yield from pack_speech(speech.finish(), longest, [mel_frames(middle) for middle in missing])


@dataclass(eq=False)
class PackedWindows(WindowOrder):
    """Windows of packed speech, `batch_size` at a time; full ones are taken as needed."""

    packed: Iterator[Window]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._n_packed = 0
        self._encoded: dict[Window, EncoderOutput] = {}
        self._ahead: deque[Window] = deque()
        self._end = 0

    def restore(self, place: Place) -> None:
        assert isinstance(place, SpeechPlace), "the mode was checked"
        self._n_packed = sum(1 for _ in islice(self.packed, place.n_packed))
        self._ahead.extend(place.waiting)
        self._end = place.next_frame
        self.features.skip_to(place.next_frame, n_frames_read=place.n_frames_read)

    def find_language(self) -> None:
        self._encoded = self.languages.detect_first(self._first_windows(), n_kept=self.options.batch_size)

    def _first_windows(self) -> Iterator[Window]:
        for window in self._next_packed():
            self._ahead.append(window)
            yield window

    def _next_packed(self) -> Iterator[Window]:
        for window in self.packed:
            self._n_packed += 1
            yield window

    def batches(self) -> Batches:
        size = self.options.batch_size
        while True:
            self._ahead.extend(islice(self._next_packed(), max(0, size - len(self._ahead))))
            if not self._ahead:
                return
            batch = [self._ahead.popleft() for _ in range(min(size, len(self._ahead)))]
            self._end = max(self._end, batch[-1].end)
            after = yield self._in_one_language_each(batch)
            assert isinstance(after, SpeechPlace), "it is one of `covered`"
            self._ahead = deque(after.waiting)
            self.features.drop_before(after.next_frame)

    def _in_one_language_each(self, windows: Sequence[Window]) -> list[LanguageWindow]:
        states, self._encoded = self._encoded, {}
        whole = [window for window in windows if not window.is_cut and window not in states]
        states |= zip(whole, self.run(self.transcriber.encode(self.features, whole)), strict=True)
        parts: list[tuple[Window, Window]] = []
        for window in windows:
            divided = [window]
            if window.language is None:
                divided = self.run(self.languages.divided(window, states[window]))
            parts += [(part, part if part.is_cut else window) for part in divided]
            self.progress.language = divided[-1].language
        cut = [part for part, _ in parts if part.is_cut]
        encoded = self.run(self.transcriber.encode(self.features, cut, is_part=True))
        states |= zip(cut, encoded, strict=True)
        return [LanguageWindow(part, states[encoded]) for part, encoded in parts]

    def covered(
        self, decoded: Sequence[DecodedWindow]
    ) -> tuple[list[tuple[DecodedWindow, Window]], WindowPlace]:
        fallback, eot = self.options.fallback_of_window, self.transcriber.tokenizer.eot
        kept: list[tuple[DecodedWindow, Window]] = []
        waiting = list(self._ahead)
        for each in decoded:
            window, at = each.window, each.cut.seek
            if halves := split_retry(window, each.result, each.cut, fallback, eot):
                waiting += halves
                continue
            is_rest = LEAST_FRAMES <= at <= window.n_frames - LEAST_FRAMES
            done, *rest = window.split(at) if is_rest else (window,)
            waiting += rest
            kept.append((each, done))
        waiting.sort(key=lambda window: window.start)
        next_frame = waiting[0].start if waiting else self._end
        return kept, SpeechPlace(self._n_packed, next_frame, 0, tuple(waiting))


@dataclass(frozen=True, slots=True)
class WhisperTranscriber(Transcriber, RecordingTranscriber):
    """The transcriber of a Whisper model, made by `transcriber_for`."""

    def transcribe(
        self, recording: Recording, state: TranscriptionState, resume: ResumePoint | None = None
    ) -> Segments:
        return transcribe_recording(self, recording, state, resume)

    def with_runtime(self, runtime: Runtime) -> WhisperTranscriber:
        return replace(self, runtime=runtime)

    def with_options(self, options: TranscribeOptions, second: SecondModel | None) -> WhisperTranscriber:
        return replace(self, options=options, second=second)


def transcriber_for(
    runtime: Runtime,
    tokenizer: Tokenizer,
    options: TranscribeOptions,
    fusion: Fusion | None,
    second: SecondModel | None = None,
) -> WhisperTranscriber:
    """Make the transcriber of a model and options.

    Raises:
        OptionError: the model lacks the language or task, or the options contradict each other.
    """
    if fusion is not None and options.decoding.beam_size is None:
        raise OptionError("language model fusion: needs beam search, got no beam_size")
    most = runtime.backend.dims.n_audio_ctx
    if options.audio_ctx is not None and options.audio_ctx > most:
        raise OptionError(f"audio_ctx: expected at most {most}, the model's, got {options.audio_ctx}")
    transcriber = WhisperTranscriber(runtime, tokenizer, options, fusion, second)
    transcriber.tokenizer_of(transcriber.fixed_language or "en")
    if second is not None:
        second.check(transcriber)
    return transcriber


def transcribe_recording(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    resume: ResumePoint | None = None,
) -> Segments:
    """Transcribe the requested part of a recording, from `resume` on if given.

    Raises:
        AudioError: the recording cannot be read, or ends before the requested part.
    """
    options = transcriber.options
    start_s, _ = options.clips[0]
    is_packed = options.mode == "vad"
    vad = (options.vad or WINDOW_VAD) if is_packed else PIECE_VAD
    speech = SpeechFinder(vad, model=transcriber.speech_model)
    pieces, voices = speech.beside(PIECE_VAD) if is_packed else speech, SpeechPresence(speech)
    observer = speech if is_packed or options.read_again or transcriber.may_follow else None
    with transcriber.features(recording, observer, observes_first=is_packed) as features:
        state.duration = features.declared_duration_s
        languages = WindowLanguages(transcriber, features, pieces, state)
        windows: WindowOrder
        if is_packed:
            packed = packed_speech(features, speech, transcriber.content_frames)
            windows = PackedWindows(transcriber, features, languages, state, packed)
        else:
            windows = SeekWindows(transcriber, features, languages, state)
        start = mel_frames(start_s)
        features.skip_to(start, n_frames_read=start)
        if start > 0 and not features.has(start):
            length_s = features.duration_s
            got = "less" if length_s is None else f"a recording of {length_s:.1f} s"
            raise AudioError(f"{recording.name}: expected sound at {start_s:g} s, where to begin, got {got}")
        pipeline = _Pipeline(transcriber, features, languages, windows, voices, state)
        for segment in pipeline.run(resume):
            yield outside_silences(segment, recording.silences())
        state.duration = features.duration_s or state.duration


@dataclass(eq=False)
class _Pipeline:
    transcriber: Transcriber
    features: RecordingFeatures
    languages: WindowLanguages
    windows: WindowOrder
    voices: SpeechPresence
    progress: TranscriptionState

    def __post_init__(self) -> None:
        follower, n_text_ctx = self.languages.follower, self.transcriber.backend.dims.n_text_ctx
        self.options = self.transcriber.options
        self._recovery = SkippedSpeechRecovery(
            self.transcriber, self.features, self.voices, follower, self.progress
        )
        self._context = Context(self.transcriber.tokenizer, self.options, n_text_ctx)
        self._read: list[ReadWindow] = []
        """Windows whose segments wait for those of earlier windows."""
        self._is_first = True

    def run(self, resume: ResumePoint | None) -> Segments:
        if resume is None:
            self.windows.find_language()
        else:
            self._context.tokens = resume.context
            self._is_first = resume.is_first
            self.languages.restore(resume.follower)
            self.windows.restore(resume.place)
            self._read.extend(resume.read)
        language = self.progress.language
        batches = self.windows.batches()
        batch = next(batches, None)
        while batch is not None:
            if batch and language not in (None, batch[0].window.language):
                self._context.reset()  # text in another language is no context
            language = self.progress.language
            after = self._transcribe(batch)
            if after is not None:
                yield from self._finished(after.next_frame)
                self._end_batch(after, is_silence=not batch)
            try:
                batch = batches.send(after)
            except StopIteration:
                return

    def _end_batch(self, after: WindowPlace, *, is_silence: bool) -> None:
        state = self.progress
        state.duration = self.features.duration_s or state.duration
        if is_silence:
            self._reach(after.next_frame)
        state.resume_point = ResumePoint(
            state.to_resume(),
            self._context.tokens,
            self._is_first,
            self.languages.state(after.next_frame),
            structs.replace(after, n_frames_read=self.features.n_frames_read),
            tuple(self._read),
        )

    def _reach(self, frame: int) -> None:
        position, duration = seconds_of(frame), self.progress.duration
        self.progress.position = position if duration is None else min(position, duration)

    def _transcribe(self, batch: Sequence[LanguageWindow]) -> WindowPlace | None:
        """Decode and verify windows; return the place after them.

        None: their text shows a recording in several languages and is dropped: the windows are planned again.
        """
        had_one_language = not self.languages.expects_several
        skipped = self.progress.skipped
        decoded = self._decoded(batch) if batch else []
        kept, after = self.windows.covered(decoded)
        verified = self._verified(kept)
        if self.windows.finds_again and had_one_language and self.languages.expects_several:
            self.progress.skipped = skipped
            return None
        self._read += verified
        return after

    def _decoded(self, windows: Sequence[LanguageWindow]) -> list[DecodedWindow]:
        transcriber, prompt = self.transcriber, self._context.prompt()
        requests = [
            WindowRequest(
                window.window.language or "",
                prompt if window.is_prompted else (),
                window.window.start,
                window.encoded.n_frames,
                self._is_first and window is windows[0],
                may_be_halved(window.window),
            )
            for window in windows
        ]
        encoded = windows[0].encoded.joined([window.encoded for window in windows[1:]])
        attempts = transcriber.runtime.run(transcriber.decode(encoded, requests))
        decoded = [
            self._cut(window.window, encoded.rows([index]), attempt)
            for index, (window, attempt) in enumerate(zip(windows, attempts, strict=True))
        ]
        if self.options.needs_words and not all(window.is_silent for window in decoded):
            decoded = self._with_words(encoded, decoded)
        return list(map(self._reread, decoded, requests)) if self.options.read_again else decoded

    def _with_words(self, encoded: EncoderOutput, windows: Sequence[DecodedWindow]) -> list[DecodedWindow]:
        words = self.transcriber.with_words(
            encoded,
            [(window.cut, window.result, window.window.n_frames) for window in windows],
            window_start=windows[0].window.origin_s,
            last_speech=self.windows.last_speech_s,
        )
        cuts = self.transcriber.runtime.run(words)
        return [replace(window, cut=cut) for window, cut in zip(windows, cuts, strict=True)]

    def _reread(self, decoded: DecodedWindow, request: WindowRequest) -> DecodedWindow:
        """Return a window with aligned words, if by their times more of its segments are spoken.

        Timestamps of Whisper may be seconds early. Whisper may also skip a sentence that ends the prompt and
        is repeated, and write other sentences twice. A window with repeated text is therefore decoded without
        earlier text too; the alignment of words, which uses no prompt, decides which text is more probable.
        """
        if decoded.window.is_packed:
            return decoded
        segments, n_spoken = decoded.cut.segments, self._n_spoken(decoded)
        is_conditioned = request.prompt not in ((), self._context.initial)
        is_repeated = is_conditioned and self._context.repeats(segments)
        if n_spoken == len(segments) and not is_repeated:
            return decoded
        aligned = decoded if self.options.needs_words else self._with_words(decoded.encoded, [decoded])[0]
        alone = self._without_context(decoded, request) if is_repeated else None
        if alone is not None and alone.cut.aligned_mean > aligned.cut.aligned_mean:
            return alone
        return aligned if self._n_spoken(aligned) > n_spoken else decoded

    def _without_context(self, decoded: DecodedWindow, request: WindowRequest) -> DecodedWindow | None:
        """Decode a window at the first temperature; None if its text fails, as a loop is probable too."""
        request, fallback = replace(request, prompt=self._context.initial), self.options.fallback
        again = self.transcriber.decode(decoded.encoded, [request], fallback.temperatures[:1])
        (attempt,) = self.transcriber.runtime.run(again)
        if fallback.fails(attempt.result):
            return None
        alone = self._cut(decoded.window, decoded.encoded, attempt)
        return self._with_words(decoded.encoded, [alone])[0]

    def _n_spoken(self, decoded: DecodedWindow) -> int:
        self._look_ahead(decoded.cut.segments)
        return sum(map(self.voices.has_speech, decoded.cut.segments))

    def _look_ahead(self, segments: Sequence[Segment]) -> None:
        """Read on so far that the speech in segments is known."""
        if segments:
            self.features.has(mel_frames(segments[-1].end) + LOOK_AHEAD_FRAMES)

    def _cut(self, window: Window, encoded: EncoderOutput, attempt: Attempt) -> DecodedWindow:
        result, n_frames, fallback = attempt.result, window.n_frames, self.options.fallback
        is_rejected = fallback.is_silence(result) or (
            window.may_be_silent and is_silence(result.no_speech_prob, fallback.no_speech_threshold)
        )
        if is_rejected:
            cut = WindowCut((), window.origin + n_frames)
        else:
            cut = self.transcriber.cut(attempt, window.origin, n_frames, keep_open=window.is_packed)
        return DecodedWindow(window, encoded, cut, result, attempt.last_temperature, is_rejected)

    def _verified(self, kept: Sequence[tuple[DecodedWindow, Window]]) -> list[ReadWindow]:
        windows = [(self._with_text(decoded), done) for decoded, done in kept]
        if self.options.read_again:
            verified = [VerifiedWindow(decoded, self.languages.speech_in(done)) for decoded, done in windows]
            texts = self.transcriber.runtime.run(self._recovery.recovered(verified))
        else:
            texts = [decoded.segments for decoded, _ in windows]
            self.progress.skipped += tuple(
                (seconds_of(piece.start), seconds_of(piece.end))
                for decoded, done in windows
                if decoded.is_silent and self.options.fallback.repeats(decoded.result)
                for piece in done.pieces
            )
        return [
            ReadWindow(done, decoded.is_silent, decoded.last_temperature, tuple(segments))
            for (decoded, done), segments in zip(windows, texts, strict=True)
        ]

    def _with_text(self, decoded: DecodedWindow) -> DecodedWindow:
        segments = list(self.transcriber.segments(decoded.cut, decoded.result))
        if self.languages.expects_several:
            probability = decoded.window.probability
            segments = [replace(segment, language_probability=probability) for segment in segments]
        if self.options.read_again and not decoded.window.is_packed:
            self._look_ahead(segments)
            segments = list(filter(self._is_spoken, segments))
        return replace(decoded, cut=replace(decoded.cut, segments=tuple(segments)))

    def _is_spoken(self, segment: Segment) -> bool:
        if not self.voices.has_speech(segment, is_guess=self.options.fallback.is_guess(segment)):
            span = f"{segment.start:.1f} to {segment.end:.1f} s"
            logger.info("nobody speaks from %s: '%s' is left out", span, segment.text.strip())
            return False
        return not (self._context.holds(segment.text) and self.voices.exceeds_speech_rate(segment))

    def _finished(self, next_frame: int) -> Segments:
        self._read.sort(key=lambda read: read.window.start)
        while self._read and self._read[0].window.start <= next_frame:
            read = self._read.pop(0)
            self._is_first = self._is_first and read.is_silent
            for segment in read.segments:
                if not read.is_silent:
                    self._context.remember(segment.tokens)
                yield segment
            if not read.is_silent:
                self._context.end_window(read.last_temperature)
            self._reach(read.window.end)


_Timed = TypeVar("_Timed", Segment, Word)
SHORTEST_PART_S = 0.5
"""A shorter rest of a segment next to missing sound holds no word."""


def outside_silences(segment: Segment, silences: Sequence[tuple[float, float]]) -> Segment:
    """Cut a segment and its words at missing sound; only segments reach across, over 0.5 s on both sides."""
    for start, end in [gap for gap in silences if gap[0] < segment.end and segment.start < gap[1]]:
        words = segment.words and tuple(_outside(word, start, end) for word in segment.words)
        segment = replace(_outside(segment, start, end), words=words)
    return segment


def _outside(timed: _Timed, silence_start: float, silence_end: float) -> _Timed:
    if timed.end <= silence_start or silence_end <= timed.start:
        return timed
    before_s, after_s = silence_start - timed.start, timed.end - silence_end
    longest_s = math.inf if isinstance(timed, Word) else SHORTEST_PART_S
    if min(before_s, after_s) >= longest_s or max(before_s, after_s) <= 0:
        return timed
    if before_s < after_s:
        return replace(timed, start=round(silence_end, 3))
    return replace(timed, end=round(silence_start, 3))


@dataclass(frozen=True, slots=True)
class LanguageSpan:
    """A stretch of a recording in one language, in seconds; probability: mean over its pieces."""

    start: float
    end: float
    language: str
    probability: float


def language_spans(transcriber: Transcriber, recording: Recording) -> Iterator[LanguageSpan]:
    """Yield the languages of a recording in order, without gaps. Raises: AudioError."""
    state, speech = TranscriptionState(language=transcriber.fixed_language), SpeechFinder(PIECE_VAD)
    with transcriber.features(recording, speech) as features:
        languages = WindowLanguages(transcriber, features, speech, state)
        windows = SeekWindows(transcriber, features, languages, state)
        windows.find_language()
        last: LanguageSpan | None = None
        for language, group in groupby(_located(windows), key=lambda window: window.language or ""):
            if last is not None:
                yield last
            run = list(group)
            mean = np.average([part.probability for part in run], weights=[part.n_frames for part in run])
            last = LanguageSpan(seconds_of(run[0].start), seconds_of(run[-1].end), language, float(mean))
        if last is not None:
            yield replace(last, end=features.duration_s or last.end)


def _located(windows: SeekWindows) -> Iterator[Window]:
    while windows.features.has(windows.place.next_frame):
        windows.features.drop_before(windows.place.next_frame)
        window, _ = windows.locate(None)
        windows.progress.language = window.language
        windows.place = structs.replace(windows.place, next_frame=window.end)
        yield window


def recording_language(transcriber: Transcriber, recording: Recording) -> LanguageDetection | None:
    """Detect the language over the first windows with speech; None without audio. Raises: AudioError."""
    transcriber = replace(transcriber, options=replace(transcriber.options, follow_languages=False))
    state = TranscriptionState()
    speech = SpeechFinder(PIECE_VAD)  # sees no audio: only windows are detected
    with transcriber.features(recording) as features:
        languages = WindowLanguages(transcriber, features, speech, state)
        SeekWindows(transcriber, features, languages, state).find_language()
    return state.detection
