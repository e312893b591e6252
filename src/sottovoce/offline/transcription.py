"""The transcription of a recording, or of those of one meeting: an iterator of segments, with progress,
cancellation and results.

A second model replaces the segments of which the first is uncertain. It transcribes each stretch between
certain segments as a recording of its own.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from itertools import count, islice
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from sottovoce.audio.io import Recording
from sottovoce.decoding.decode import LanguageDetection
from sottovoce.errors import OptionError
from sottovoce.offline.pipeline import WhisperTranscriber
from sottovoce.offline.regroup import clean_segment, segment_moved
from sottovoce.offline.resume import (
    ChannelsPlace,
    DraftState,
    FollowerState,
    ResumePoint,
    SeekPlace,
    SpeechPlace,
    TranscriptionState,
    state_at,
)
from sottovoce.offline.speakers import by_turn_tokens, channels_apart, with_speakers
from sottovoce.offline.transcriber import Context, RecordingTranscriber, SecondModel, Segments
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import Batching, BatchingRuntime, Caller, Priority
from sottovoce.runtime.calls import ObservedRuntime, Runtime
from sottovoce.speakers.diarize import ChannelDiarizer, make_diarizer
from sottovoce.speakers.labels import replace_letter, spoken_by
from sottovoce.text.disfluency import DISFLUENCIES, VERBATIM_PROMPTS
from sottovoce.text.filters import NUMERAL_LANGUAGES, translation_filtered
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.text.word_edits import equal_words
from sottovoce.types import SAMPLE_RATE, Samples, Segment, Span, Transcript, Turn, Word

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


class StoppedError(Exception):
    """Ends the iteration of a transcription that was stopped."""


@dataclass(frozen=True, slots=True)
class RunControl:
    """Progress and cancellation of a transcription.

    on_progress: called with the seconds done and those of the recording (None while unknown). abort: called
    before every call of the model; True ends the transcription, as does setting `stopped` from any thread.
    """

    on_progress: Callable[[float, float | None], None] | None = None
    abort: Callable[[], bool] | None = None
    stopped: Event = field(default_factory=Event)

    def check(self) -> None:
        if self.abort is not None and self.abort():
            self.stopped.set()
        if self.stopped.is_set():
            raise StoppedError


class FileTranscription(Iterator[Segment]):
    """The segments of one recording, computed while they are requested.

    A second iteration gives the segments again from the first; the other properties grow with the first one.

    recording: closed at the end, unless keeps_open. resume: of the same recording, model and options.

    Raises:
        OptionError: a resume point of another mode.
        AudioError: while iterating, if the recording cannot be read.
    """

    def __init__(
        self,
        transcriber: RecordingTranscriber,
        recording: Recording,
        control: RunControl | None = None,
        *,
        model: str = "",
        resume: ResumePoint | None = None,
        keeps_open: bool = False,
    ) -> None:
        options = transcriber.options
        self._transcriber, self._runtime = transcriber, transcriber.runtime
        if resume is not None:
            _check(transcriber, resume)
        self._state = state_at(resume, transcriber.fixed_language)
        self._control = control or RunControl()
        self._model, self._name = model, recording.name
        self._recording = None if keeps_open else recording
        self._part = recording.part(options.offset_s, options.duration_s) if options.is_part else None
        self._start_s = self._reported_s = options.offset_s
        self._names = options.speaker_names
        self._segments: list[Segment] = []
        self._n_resumed = 0 if resume is None else resume.n_segments
        self._point = None if resume is None else (resume, resume)
        self._busy = Lock()
        second = transcriber.second
        observed = transcriber.with_runtime(self._observed(transcriber.runtime)).with_options(
            replace(options, offset_s=0.0, duration_s=None),
            None if second is None else second.with_runtime(self._observed(second.transcriber.runtime)),
        )
        self._generator = _segments(observed, self._part or recording, self._state, resume)

    def _observed(self, runtime: Runtime) -> Runtime:
        return ObservedRuntime(runtime, self._control.check, self._report)

    def __iter__(self) -> Iterator[Segment]:
        for place in count():
            if place == len(self._segments):
                try:
                    next(self)
                except StopIteration:
                    return
            yield self._segments[place]

    def __repr__(self) -> str:
        state = "done" if self._control.stopped.is_set() else "not done"
        n_segments = len(self._segments)
        return f"FileTranscription({self._name!r}, {self.language!r}, {n_segments} segments, {state})"

    def __next__(self) -> Segment:
        with self._busy:
            try:
                try:
                    with self._runtime.torch_threads():
                        self._control.check()
                        segment = next(self._generator)
                finally:
                    self._note_point()
                self._report()
            except StoppedError:
                self._end()
                raise StopIteration from None
            except BaseException as error:
                if isinstance(error, StopIteration):
                    self._report()
                self._end()
                raise
            if self._names:
                segment = with_names(segment, self._names)
            if self._part is not None:
                segment = segment_moved(segment, self._start_s)
            segment = replace(segment, id=self._n_resumed + len(self._segments))
            self._segments.append(segment)
        return segment

    def _note_point(self) -> None:
        """Note how many segments came before the newest resume point, which precedes the next one."""
        point = self._state.resume_point
        if point is not None and (self._point is None or point is not self._point[0]):
            n_segments = self._n_resumed + len(self._segments)
            self._point = point, replace(point, n_segments=n_segments)

    def _report(self) -> None:
        on_progress = self._control.on_progress
        if on_progress is not None and self.position > self._reported_s:
            self._reported_s = self.position
            on_progress(self.position, self.duration)

    def __enter__(self) -> FileTranscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, from any thread: the iteration ends after the current call; segments stay."""
        self._control.stopped.set()
        if self._busy.acquire(blocking=False):  # otherwise the iterating thread closes the recording
            try:
                self._end()
            finally:
                self._busy.release()

    def _end(self) -> None:
        self._control.stopped.set()
        self._generator.close()
        if self._recording is not None:
            self._recording.close()

    def collect(self) -> Transcript:
        """Transcribe the rest and return the whole transcript; after `close`, the part that exists.

        Raises:
            AudioError, OptionError: as the iteration.
        """
        for _ in self:
            pass
        tokens = {token for segment in self._segments for token in segment.tokens}
        tokenizer = self._transcriber.tokenizer
        return Transcript(
            segments=self.segments,
            language=self.language or "",
            duration=self.position if self.duration is None else self.duration,
            model=self._model,
            language_probability=self.language_probability,
            language_probabilities=self.language_probabilities,
            turns=self.turns,
            unread=self.unread,
            token_texts={} if tokenizer is None else {each: tokenizer.token_text(each) for each in tokens},
        )

    @property
    def text(self) -> str:
        """The whole text; transcribes the rest."""
        return self.collect().text

    @property
    def words(self) -> tuple[Word, ...]:
        """All words, where they are timed; transcribes the rest."""
        return self.collect().words

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document; transcribes the rest. See `Transcript.to_dict`."""
        return self.collect().to_dict()

    def to_dataframe(self) -> pd.DataFrame:
        """Return a table; transcribes the rest. See `Transcript.to_dataframe`."""
        return self.collect().to_dataframe()

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def language(self) -> str | None:
        """The most spoken language of the segments so far; before, the detected one."""
        return spoken_most(self._segments) or self._state.language

    @property
    def detection(self) -> LanguageDetection | None:
        """The detection of the first language; None if it was given or is not known yet."""
        return self._state.detection

    @property
    def language_probability(self) -> float | None:
        """Probability of the first detected language among those allowed, or None."""
        return None if self.detection is None else self.detection.probability

    @property
    def language_probabilities(self) -> Mapping[str, float]:
        """Probabilities of all languages at the first detection, or empty."""
        return {} if self.detection is None else self.detection.probabilities

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Speaker turns: of a diarization, known before the first segment, or each segment with a speaker."""
        turns = self._state.turns
        if not turns:
            return turns_of(self._segments)
        if self._names:
            turns = tuple(
                replace(turn, speaker=replace_letter(turn.speaker, self._names) or "") for turn in turns
            )
        if self._part is None:
            return turns
        return tuple(
            Turn(turn.start + self._start_s, turn.end + self._start_s, turn.speaker) for turn in turns
        )

    @property
    def unread(self) -> tuple[Span, ...] | None:
        """Skipped speech so far; None if it is not searched for and no text was rejected as a loop."""
        if not self._transcriber.options.read_again and not self._state.skipped:
            return None
        return tuple((self._start_s + start, self._start_s + end) for start, end in self._state.skipped)

    @property
    def second_s(self) -> float:
        """Seconds that a second model transcribed so far."""
        return self._state.second_s

    @property
    def outside_languages(self) -> Mapping[str, float]:
        """Seconds of speech by detected language that is not listed."""
        return self._state.outside_languages

    @property
    def duration(self) -> float | None:
        """Seconds as the recording declares, exact once its end was read; None if unknown."""
        if self._part is None:
            return self._state.duration
        end_s = None if self._state.duration is None else self._start_s + self._state.duration
        return end_s if self._part.declared_s is None else max(self._part.declared_s, end_s or 0.0)

    @property
    def position(self) -> float:
        return self._start_s + self._state.position

    @property
    def resume_point(self) -> ResumePoint | None:
        """Where `Model.transcribe(resume=…)` can go on: after the first `n_segments` segments; later
        ones come again. None before the first window is done.
        """
        return None if self._point is None else self._point[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Utterance:
    """before: the state before it."""

    start_s: float
    pcm: Samples
    words: Sequence[Word]
    before: ResumePoint | None

    @property
    def end_s(self) -> float:
        return self.start_s + len(self.pcm) / SAMPLE_RATE


CERTAIN, WINDOW_S = 0.75, 10.0
"""Utterances whose committed words are all this probable are not transcribed again, and others together with
those before them, up to so many seconds. Source: `python -m benchmarks live finals --fit` on development
clips, docs/research/live.md.
"""


def _capitalized(word: Word) -> Word:
    """Begin a sentence, as in "The end. Then"; the transcript of the window may have "the end, then"."""
    text = word.word.lstrip()
    return replace(word, word=word.word[: -len(text)] + text[:1].upper() + text[1:]) if text else word


@dataclass(eq=False)
class UtteranceTranscription:
    """Transcribes the utterances of a session one by one, with the speech, text and languages before them.

    is_same_model: as that of the committed words, which stay where they are certain.
    """

    transcriber: RecordingTranscriber
    is_same_model: bool = False

    def __post_init__(self) -> None:
        self._after: ResumePoint | None = None
        self._window: list[_Utterance] = []
        """Adjoining utterances before the next one."""

    def words(
        self, pcm: Samples, start_s: float, committed: Sequence[Word], stopped: Event
    ) -> tuple[Word, ...] | None:
        """Transcribe an utterance, or return None where its committed words are certain.

        pcm: samples (n,) that begin at a time (s) of the session; adjoining ones continue the last utterance.
        stopped: ends it early.
        """
        end_s = start_s + len(pcm) / SAMPLE_RATE
        if self._window and abs(start_s - self._window[-1].end_s) * SAMPLE_RATE >= 1.0:
            self._window.clear()
        while self._window and end_s - self._window[0].start_s > WINDOW_S:
            del self._window[0]
        self._window.append(_Utterance(start_s, pcm, committed, self._after))
        certain = CERTAIN if self.is_same_model else math.inf
        is_certain = min((word.probability for word in committed), default=0.0) >= certain
        words = None if is_certain else self._again(stopped)
        if words is None:
            self._after = self._followed_by(committed)
        else:
            self._window[-1] = replace(self._window[-1], words=words)
        return words

    def _again(self, stopped: Event) -> tuple[Word, ...] | None:
        """Transcribe the window; return the words of its last utterance, or None if it was stopped."""
        first, last = self._window[0], self._window[-1]
        pcm = np.concatenate([each.pcm for each in self._window])
        recording, control = Recording(pcm, self.transcriber.options), RunControl(abort=stopped.is_set)
        segments = FileTranscription(self.transcriber, recording, control, resume=first.before)
        words = [word for each in segments for word in segment_moved(each, first.start_s).words or ()]
        if stopped.is_set():
            return None
        if (point := segments.resume_point) is not None:
            follower = point.follower and replace(point.follower, pieces=())
            progress = replace(point.progress, duration=None, position=0.0, skipped=())
            self._after = replace(point, progress=progress, follower=follower, place=START, n_segments=0)
        earlier = [_letters(word) for each in self._window[:-1] for word in each.words]
        others = [*earlier, *map(_letters, last.words)]
        places = equal_words([*map(_letters, words)], others)
        before = [n for n, at in enumerate(places, 1) if at is not None and at < len(earlier)]
        after = [n for n, at in enumerate(places) if at is not None and at >= len(earlier)]
        n_before, until = max(before, default=0), min(after, default=len(words))
        n_before += sum(word.end <= last.start_s for word in words[n_before:until])
        said = "".join(word.word for each in self._window[-2:-1] for word in each.words).rstrip()
        if n_before < len(words) and said.endswith(SENTENCE_ENDS) and not said.endswith(("...", "…")):
            words[n_before] = _capitalized(words[n_before])
        return tuple(words[n_before:])

    def _followed_by(self, words: Sequence[Word]) -> ResumePoint | None:
        """Return the state after committed words; text before another language is no context."""
        tokenizer, options, point = self.transcriber.tokenizer, self.transcriber.options, self._after
        if tokenizer is None:
            return point
        context = Context(tokenizer, options, self.transcriber.runtime.backend.dims.n_text_ctx)
        point = point or ResumePoint(TranscriptionState(words[0].language), context.tokens, True, None, START)
        follower = point.follower or FollowerState(options.follows_languages, is_beginning=True)
        spoken_s, language = {**follower.spoken_s}, point.progress.language
        context.tokens = point.context
        for word in words:
            if word.language != language:
                context.reset()
            language = word.language
            context.remember(tokenizer.encode(word.word))
            spoken_s[language or ""] = spoken_s.get(language or "", 0.0) + word.end - word.start
        return replace(
            point,
            progress=replace(point.progress, language=language),
            context=context.tokens,
            is_first=False,
            follower=replace(follower, is_beginning=False, spoken_s=spoken_s),
        )


START = SeekPlace(0, 0, 0.0, 0)


def _letters(word: Word) -> str:
    return "".join(filter(str.isalnum, word.word.casefold()))


def _check(transcriber: RecordingTranscriber, resume: ResumePoint) -> None:
    points, options = [resume], transcriber.options
    given = "channels 'apart'" if options.channels == "apart" else f"mode '{options.mode}'"
    if isinstance(resume.place, ChannelsPlace):
        kind = "channels 'apart'"
        points = [channel.point for channel in resume.place.channels if channel.point is not None]
    else:
        kind = "mode 'vad'" if isinstance(resume.place, SpeechPlace) else "mode 'seek'"
    if kind != given:
        raise OptionError(f"resume: is of {kind}, got {given}")
    for point in points:
        if (transcriber.second is None) != (point.draft is None):
            expected = "no second model" if point.draft is None else "a second model"
            raise OptionError(f"resume: expected {expected}, as where it was left")


def _segments(
    transcriber: RecordingTranscriber,
    recording: Recording,
    state: TranscriptionState,
    resume: ResumePoint | None,
) -> Segments:
    options, runtime = transcriber.options, transcriber.runtime

    def begin(channel: Recording, progress: TranscriptionState, point: ResumePoint | None) -> Segments:
        if transcriber.second is None:
            return transcriber.transcribe(channel, progress, point)
        return transcribe_with_both(transcriber, transcriber.second, channel, progress, point)

    if options.channels == "apart":
        channels = channels_apart(recording, state, begin, transcriber.fixed_language, resume)
        return in_style(channels, options, state)
    segments = begin(recording, state, resume)
    if options.decoding.speaker_turns:
        assert isinstance(transcriber, WhisperTranscriber), "others refuse speaker_turns"
        segments = by_turn_tokens(segments, transcriber.tokenizer, state)
    if options.channels == "energy":
        segments = with_speakers(runtime, segments, ChannelDiarizer(), recording, state)
    if options.speakers is not None:
        segments = with_speakers(runtime, segments, make_diarizer(options.speakers), recording, state)
    return in_style(segments, options, state)


LONGEST_S = 60.0
"""Uncertain text of this length is transcribed without waiting for a certain segment."""


def transcribe_with_both(
    first: RecordingTranscriber,
    second: SecondModel,
    recording: Recording,
    state: TranscriptionState,
    resume: ResumePoint | None = None,
) -> Segments:
    """Yield the segments of a first model, with uncertain ones decoded again by a second model.

    state: updated for both.
    """
    draft = _Draft(second, first, recording, state, resume)
    if second.deferral.min_word_prob > 0.0:
        first = first.with_options(replace(first.options, word_timestamps=True), None)
    first, draft_state = first.with_runtime(ObservedRuntime(first.runtime, after=draft.note)), draft.progress
    with closing(first.transcribe(recording, draft_state, resume)) as segments:
        for segment in segments:
            draft.note()
            yield from draft.take(segment)
        draft.note()
        yield from draft.read(draft_state.duration or draft_state.position)
        draft.note()
        state.skipped = tuple(sorted([*state.skipped, *draft_state.skipped]))


@dataclass(eq=False)
class _Draft:
    second: SecondModel
    first: RecordingTranscriber
    recording: Recording
    state: TranscriptionState
    resume: InitVar[ResumePoint | None]

    def __post_init__(self, resume: ResumePoint | None) -> None:
        self._recording = self.recording.to_read_beside()
        self.progress = TranscriptionState(language=self.state.language)
        """Of the first model."""
        self._until_s = 0.0
        self._held: list[Segment] = []
        self._drafted: ResumePoint | None = None
        if resume is not None:
            draft = resume.draft
            assert draft is not None, "that there was a second model was checked"
            self.progress, self._until_s, self._held = replace(draft.progress), draft.until_s, [*draft.held]

    def note(self) -> None:
        draft_state, state = self.progress, self.state
        state.detection, state.duration = draft_state.detection, draft_state.duration
        state.language, state.outside_languages = draft_state.language, draft_state.outside_languages
        state.position = min(draft_state.position, self._until_s) if self._held else draft_state.position
        point = draft_state.resume_point
        if point is not None and point is not self._drafted:
            self._drafted = point
            draft = DraftState(point.progress, self._until_s, tuple(self._held))
            state.resume_point = replace(point, progress=state.to_resume(), draft=draft)

    def take(self, segment: Segment) -> list[Segment]:
        is_in_doubt = self.second.deferral.defers(segment)
        if not self.first.options.needs_words:
            segment = replace(segment, words=None)
        if is_in_doubt:
            self._held.append(segment)
            long = segment.end - self._until_s >= LONGEST_S
            return self.read(segment.end) if long else []
        again = self.read(segment.start)
        self._until_s = max(self._until_s, segment.end)
        return [*again, segment]

    def read(self, end_s: float) -> list[Segment]:
        start_s, held = self._until_s, self._held
        has_gaps = any(start < end_s and end > start_s for start, end in self.progress.skipped)
        self._held, self._until_s = [], max(start_s, end_s)
        if not (held or has_gaps) or end_s - start_s < 0.1:  # shorter ones hold no word
            return held
        self.progress.skipped = tuple(
            part
            for start, end in self.progress.skipped
            for part in ((start, min(end, start_s)), (max(start, end_s), end))
            if part[0] < part[1]
        )
        self.state.second_s += end_s - start_s
        language = held[0].language if held else self.progress.language
        return self._read_by_second(start_s, end_s, language)

    def _read_by_second(self, start_s: float, end_s: float, language: str | None) -> list[Segment]:
        reader = self.second.with_options_of(self.first, language)
        state, part = TranscriptionState(language=language), self._recording.part(start_s, end_s - start_s)
        with closing(reader.transcribe(part, state)) as segments:
            segments_again = list(segments)
        self.state.skipped += tuple((start_s + start, start_s + end) for start, end in state.skipped)
        tokenizers = self.first.tokenizer, reader.tokenizer
        return [_in_tokens(segment_moved(segment, start_s), *tokenizers) for segment in segments_again]


def _in_tokens(segment: Segment, ours: Tokenizer | None, others: Tokenizer | None) -> Segment:
    """Return a segment, which has tokens of `others`, with those of `ours`; None: without tokens."""
    if ours is not None and others is not None and ours.timestamp_begin == others.timestamp_begin:
        return segment
    tokens = () if ours is None else tuple(ours.encode(segment.text))
    words = segment.words and tuple(replace(word, tokens=()) for word in segment.words)
    return replace(segment, tokens=tokens, words=words)


def in_style(
    segments: Segments, options: TranscribeOptions, state: TranscriptionState | None = None
) -> Segments:
    """Yield segments in the requested style; a language without rules is unchanged, with a warning."""
    if options.decoding.verbatim:
        segments = _reporting(segments, "verbatim", VERBATIM_PROMPTS)
    written = "en" if options.decoding.task == "translate" else None
    if options.clean:
        if written is None:
            segments = _reporting(segments, "clean", DISFLUENCIES)
        segments = _nonempty(clean_segment(segment, written or segment.language) for segment in segments)
    if options.only_languages or options.except_languages:
        segments = _in_languages(segments, options)
    if options.numerals and written is None:
        segments = _reporting(segments, "numerals", NUMERAL_LANGUAGES)
    for each in options.text_filters:
        segments = _nonempty(map(partial(each.segment, language=written), segments))
    if options.with_english:
        segments = (translation_filtered(each, options.text_filters, "en") for each in segments)
    if options.mark_pauses is not None:
        segments = _with_pauses(segments, options.mark_pauses, state or TranscriptionState())
    return segments


def _in_languages(segments: Iterator[Segment], options: TranscribeOptions) -> Segments:
    for segment in segments:
        is_excepted = segment.language in options.except_languages
        if segment.language in options.only_languages or not (options.only_languages or is_excepted):
            yield segment


def _with_pauses(segments: Segments, least_s: float, state: TranscriptionState) -> Segments:
    """Put pauses as words before the word that ends them."""
    for segment in segments:
        words: list[Word] = []
        for word in segment.words or ():
            end_s = word.start if state.word_end_s is None else state.word_end_s
            if word.start - end_s >= least_s:
                words.append(replace(word, word=f" ({word.start - end_s:.1f})", start=end_s, end=word.start))
            words.append(word)
            state.word_end_s = max(end_s, word.end)
        text = "".join(word.word for word in words)
        yield replace(segment, text=text, words=tuple(words)) if words else segment


def _nonempty(segments: Iterator[Segment | None]) -> Segments:
    yield from (segment for segment in segments if segment is not None)


def _reporting(segments: Iterator[Segment], style: str, checked: Collection[str]) -> Segments:
    seen = set(checked)
    for segment in segments:
        if segment.language not in seen:
            seen.add(segment.language)
            logger.warning(
                "%s: not verified for language '%s'; its text stays unchanged", style, segment.language
            )
        yield segment


def turns_of(segments: Iterable[Segment]) -> tuple[Turn, ...]:
    return tuple(Turn(segment.start, segment.end, segment.speaker) for segment in segments if segment.speaker)


def spoken_most(segments: list[Segment]) -> str | None:
    seconds: dict[str, float] = {}
    for segment in segments:
        seconds[segment.language] = seconds.get(segment.language, 0.0) + segment.end - segment.start
    return max(seconds, key=lambda language: seconds[language], default=None)


def with_names(segment: Segment, names: Sequence[str]) -> Segment:
    words = segment.words and tuple(
        replace(word, speaker=replace_letter(word.speaker, names)) for word in segment.words
    )
    return replace(segment, speaker=replace_letter(segment.speaker, names), words=words)


Source = TypeVar("Source")
Outcome: TypeAlias = Transcript | Exception


def transcribe_batch(
    transcriber: RecordingTranscriber,
    sources: Iterable[Source],
    open_source: Callable[[Source], Recording],
    *,
    batch_size: int,
    model: str,
) -> Iterator[tuple[Source, Outcome]]:
    """Transcribe recordings, batch_size at a time, and yield transcripts, or errors, in input order.

    Any exception of a recording is its outcome and leaves the others running.
    """
    limits = Batching(files=batch_size, files_together=True)
    runtime = BatchingRuntime(transcriber.runtime.backend, limits, waits_for_all=True)
    stopped = Event()

    def transcribe(source: Source, caller: Caller) -> Transcript:
        with caller:
            shared, control = transcriber.with_runtime(caller), RunControl(abort=stopped.is_set)
            with FileTranscription(shared, open_source(source), control, model=model) as transcription:
                return transcription.collect()

    waiting = iter(sources)
    runs: deque[tuple[Source, Future[Transcript]]] = deque()  # all from the first that was not yielded yet
    pool = ThreadPoolExecutor(batch_size)
    try:
        while True:
            while runs and runs[0][1].done():
                source, run = runs.popleft()
                error = run.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield source, error or run.result()
            open_runs = [run for _, run in runs if not run.done()]
            # Four batches of finished recordings may wait for an earlier one.
            room = min(batch_size - len(open_runs), 4 * batch_size - len(runs))
            new = [(source, runtime.caller(Priority.FILE)) for source in islice(waiting, room)]
            runs.extend((source, pool.submit(transcribe, source, caller)) for source, caller in new)
            if not runs:
                return
            if not new:
                wait(open_runs, return_when=FIRST_COMPLETED)
    finally:
        stopped.set()
        runtime.close()
        pool.shutdown(cancel_futures=True)
        runtime.join()


@dataclass(slots=True)
class TogetherTranscription(Iterator[Segment]):
    """The segments of several recordings in the order of their starts.

    parts: start in the meeting (s) and transcription, by speaker. Language probabilities are not computed.
    """

    parts: Mapping[str, tuple[float, FileTranscription]]
    model: str = ""
    language_probability: float | None = None
    language_probabilities: Mapping[str, float] = field(default_factory=dict)
    _merged: Iterator[Segment] = field(init=False)
    _segments: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._merged = heapq.merge(
            *(_of_speaker(speaker, *part) for speaker, part in self.parts.items()),
            key=lambda segment: segment.start,
        )

    def __next__(self) -> Segment:
        segment = replace(next(self._merged), id=len(self._segments))
        self._segments.append(segment)
        return segment

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def language(self) -> str | None:
        return spoken_most(self._segments)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return turns_of(self._segments)

    @property
    def position(self) -> float:
        return min(start_s + part.position for start_s, part in self.parts.values())

    @property
    def duration(self) -> float | None:
        ends = [(start_s, part.duration) for start_s, part in self.parts.values()]
        return max((start_s + length for start_s, length in ends if length is not None), default=None)

    @property
    def unread(self) -> tuple[Span, ...] | None:
        spans = [
            (start_s + start, start_s + end)
            for start_s, part in self.parts.values()
            for start, end in part.unread or ()
        ]
        return (
            tuple(sorted(spans)) if any(part.unread is not None for _, part in self.parts.values()) else None
        )

    @property
    def second_s(self) -> float:
        return sum(part.second_s for _, part in self.parts.values())

    @property
    def outside_languages(self) -> Mapping[str, float]:
        seconds: dict[str, float] = {}
        for _, part in self.parts.values():
            for code, more_s in part.outside_languages.items():
                seconds[code] = seconds.get(code, 0.0) + more_s
        return seconds

    def collect(self) -> Transcript:
        """Transcribe the rest, and return the whole. Raises: AudioError, OptionError."""
        for _ in self:
            pass
        return Transcript(
            segments=self.segments,
            language=self.language or "",
            duration=self.duration or self.position,
            model=self.model,
            turns=self.turns,
            unread=self.unread,
        )

    def close(self) -> None:
        for _, part in self.parts.values():
            part.close()


def _of_speaker(speaker: str, start_s: float, part: Iterator[Segment]) -> Iterator[Segment]:
    return (spoken_by(segment_moved(segment, start_s), speaker) for segment in part)
