"""The transcription of one recording: an iterator of segments, with progress, cancellation and results.

`transcribe_batch` transcribes several recordings whose windows share batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Event, Lock
from types import TracebackType
from typing import TypeAlias, TypeVar

from sottovoce.audio.io import AudioSource
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechModel
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.errors import OptionError, SottovoceError
from sottovoce.models.backend import Backend
from sottovoce.offline.pipeline import transcribe_recording
from sottovoce.offline.regroup import segment_moved
from sottovoce.offline.resume import ResumePoint, SpeechPlace
from sottovoce.offline.second_model import transcribe_with_both
from sottovoce.offline.speakers import by_turn_tokens, channels_apart, with_speakers
from sottovoce.offline.style import in_style
from sottovoce.offline.transcriber import Segments, Transcriber, TranscriptionState
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import Batching, BatchingRuntime, Caller, Priority
from sottovoce.runtime.calls import ObservedRuntime, Runtime
from sottovoce.speakers.channel_diarizer import ChannelDiarizer
from sottovoce.speakers.choose import make_diarizer
from sottovoce.speakers.labels import replace_letter
from sottovoce.types import Segment, Span, Transcript, Turn

ObserveRuntime: TypeAlias = Callable[[Runtime], Runtime]


class StoppedError(Exception):
    """Raised by a call of the model after a transcription was stopped; it ends the iteration."""


@dataclass(frozen=True, slots=True)
class RunControl:
    """Progress and cancellation of a transcription.

    on_progress: called with the seconds done and those of the recording (None while unknown) when they grow.
    abort: called before every call of the model; True ends the transcription, as does setting `stopped` from
    any thread. Segments found so far are kept.
    """

    on_progress: Callable[[float, float | None], None] | None = None
    abort: Callable[[], bool] | None = None
    stopped: Event = field(default_factory=Event)

    def check(self) -> None:
        """Raise if the transcription was stopped. Raises: StoppedError."""
        if self.abort is not None and self.abort():
            self.stopped.set()
        if self.stopped.is_set():
            raise StoppedError


class FileTranscription(Iterator[Segment]):
    """The segments of one recording, as they are found.

    Iterate once; `text` and `collect` use all segments, and the other properties grow with the iteration.

    begin: starts the transcription with the function that it applies to the runtimes of its models, and
    returns the segments. model: its name, for the transcript. recording: closed at the end; None: its
    owner closes it. part: what is transcribed, if not all of it, which begins at start_s. names: of
    people, for the letters of speakers.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        begin: Callable[[ObserveRuntime], Segments],
        state: TranscriptionState,
        control: RunControl,
        *,
        model: str = "",
        recording: Recording | None = None,
        part: Recording | None = None,
        start_s: float = 0.0,
        names: Sequence[str] = (),
    ) -> None:
        self._transcriber = transcriber
        self._runtime = transcriber.runtime
        self._state = state
        self._control = control
        self._model = model
        self._recording = recording
        self._part = part
        self._start_s = start_s
        self._names = names
        self._segments: list[Segment] = []
        self._reported_s = start_s
        self._busy = Lock()
        self._generator = begin(lambda runtime: ObservedRuntime(runtime, control.check, self._report))

    @property
    def backend(self) -> Backend:
        return self._runtime.backend

    def __next__(self) -> Segment:
        with self._busy:
            try:
                with self._runtime.torch_threads():
                    self._control.check()
                    segment = next(self._generator)
                self._report()
            except StoppedError:
                self._end()
                raise StopIteration from None
            except StopIteration:
                self._report()
                self._end()
                raise
            except BaseException:
                self._end()
                raise
            segment = self._in_recording(segment)
            self._segments.append(segment)
        return segment

    def _in_recording(self, segment: Segment) -> Segment:
        if self._names:
            segment = with_names(segment, self._names)
        return segment if self._part is None else segment_moved(segment, self._start_s)

    def _report(self) -> None:
        on_progress = self._control.on_progress
        if on_progress is not None and self.position > self._reported_s:
            self._reported_s = self.position
            on_progress(self.position, self.duration)

    def __enter__(self) -> FileTranscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        text = self._transcriber.tokenizer.token_text
        return Transcript(
            segments=self.segments,
            language=self.language or "",
            duration=self.position if self.duration is None else self.duration,
            model=self._model,
            language_probability=self.language_probability,
            language_probabilities=self.language_probabilities,
            turns=self.turns,
            unread=self.unread,
            token_texts={token: text(token) for segment in self._segments for token in segment.tokens},
        )

    @property
    def text(self) -> str:
        """The whole text; transcribes the rest."""
        return self.collect().text

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def language(self) -> str | None:
        """The most spoken language of the segments so far; before the first segment, the detected one."""
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
        """Probabilities of all languages of the model at the first detection, or empty."""
        return {} if self.detection is None else self.detection.probabilities

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Speaker turns, known before the first segment; empty without diarization."""
        turns = self._state.turns
        if self._names:
            turns = tuple(
                replace(one, speaker=replace_letter(one.speaker, self._names) or "") for one in turns
            )
        if self._part is None:
            return turns
        return tuple(Turn(one.start + self._start_s, one.end + self._start_s, one.speaker) for one in turns)

    @property
    def unread(self) -> tuple[Span, ...] | None:
        """Skipped speech so far; None if it is not searched for."""
        if not self._transcriber.options.read_again:
            return None
        return tuple((self._start_s + start, self._start_s + end) for start, end in self._state.unread)

    @property
    def second_s(self) -> float:
        """Seconds that a second model transcribed so far."""
        return self._state.second_s

    @property
    def outside_languages(self) -> Mapping[str, float]:
        """Seconds of speech by detected language, for languages that are not listed."""
        return self._state.outside_languages

    @property
    def duration(self) -> float | None:
        """Seconds as the recording declares, and exactly once its end was read; None if unknown."""
        if self._part is None:
            return self._state.duration
        end_s = None if self._state.duration is None else self._start_s + self._state.duration
        return end_s if self._part.declared_s is None else max(self._part.declared_s, end_s or 0.0)

    @property
    def position(self) -> float:
        return self._start_s + self._state.position

    @property
    def resume_point(self) -> ResumePoint | None:
        """Where `Model.transcribe(resume=…)` can go on, as plain values (`to_json`).

        None before the first window is done, and with diarization or separate channels. Segments that came
        since the point last changed come again after resuming.
        """
        return self._state.resume_point if self._transcriber.options.is_resumable else None


def open_recording(source: AudioSource, sample_rate: int, options: TranscribeOptions) -> Recording:
    return Recording(
        source,
        sample_rate=sample_rate,
        audio_filter=options.audio_filter,
        audio_track=options.audio_track,
        input_format=options.input_format,
    )


def transcription_of(
    transcriber: Transcriber,
    recording: Recording,
    control: RunControl | None = None,
    *,
    model: str = "",
    speech_model: SpeechModel | None = None,
    resume: ResumePoint | None = None,
    keeps_open: bool = False,
) -> FileTranscription:
    """Begin or resume a transcription; segments are computed while they are requested.

    model: its name, for the transcript. speech_model: for mode "vad", Silero if None. resume: of the same
    recording, model and options. keeps_open: leave the recording open at the end.

    Raises:
        OptionError: a resume point of another mode, or with diarization.
        AudioError: while iterating, if the recording cannot be read.
    """
    options, state = transcriber.options, _state_at(transcriber, resume)
    part = recording.part(options.offset_s, options.duration_s) if options.is_part else None

    def begin(observe: ObserveRuntime) -> Segments:
        second = transcriber.second
        observed = replace(
            transcriber,
            runtime=observe(transcriber.runtime),
            second=None if second is None else replace(second, runtime=observe(second.runtime)),
            options=replace(options, offset_s=0.0, duration_s=None),
        )
        return _segments(observed, part or recording, state, speech_model, resume)

    return FileTranscription(
        transcriber,
        begin,
        state,
        control or RunControl(),
        model=model,
        recording=None if keeps_open else recording,
        part=part,
        start_s=options.offset_s,
        names=options.speaker_names,
    )


def _state_at(transcriber: Transcriber, resume: ResumePoint | None) -> TranscriptionState:
    state = TranscriptionState(language=transcriber.fixed_language)
    if resume is None:
        return state
    if (transcriber.second is None) != (resume.draft is None):
        expected = "no second model" if resume.draft is None else "a second model"
        raise OptionError(f"resume: expected {expected}, as where it was left")
    if not transcriber.options.is_resumable:
        raise OptionError("resume: expected neither speakers nor channels, which are told apart anew")
    mode = "vad" if isinstance(resume.place, SpeechPlace) else "seek"
    if mode != transcriber.options.mode:
        raise OptionError(f"resume: is of mode '{mode}', got mode '{transcriber.options.mode}'")
    state.restore(resume)
    return state


def _segments(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None,
    resume: ResumePoint | None,
) -> Segments:
    options, runtime = transcriber.options, transcriber.runtime

    def begin(one: Recording, own: TranscriptionState) -> Segments:
        if transcriber.second is None:
            return transcribe_recording(transcriber, one, own, speech_model, resume)
        return transcribe_with_both(transcriber, transcriber.second, one, own, speech_model, resume)

    if options.channels == "apart":
        return in_style(channels_apart(recording, state, begin), options, state)
    segments = begin(recording, state)
    if options.decoding.speaker_turns:
        segments = by_turn_tokens(segments, transcriber.tokenizer, state)
    if options.channels == "energy":
        segments = with_speakers(runtime, segments, ChannelDiarizer(), recording, state)
    if options.speakers is not None:
        segments = with_speakers(runtime, segments, make_diarizer(options.speakers), recording, state)
    return in_style(segments, options, state)


def spoken_most(segments: list[Segment]) -> str | None:
    seconds: dict[str, float] = {}
    for segment in segments:
        seconds[segment.language] = seconds.get(segment.language, 0.0) + segment.end - segment.start
    return max(seconds, key=lambda language: seconds[language], default=None)


def with_names(segment: Segment, names: Sequence[str]) -> Segment:
    """Return a segment with the names of people for its speaker labels."""
    words = segment.words and tuple(
        replace(word, speaker=replace_letter(word.speaker, names)) for word in segment.words
    )
    return replace(segment, speaker=replace_letter(segment.speaker, names), words=words)


Source = TypeVar("Source")
Outcome: TypeAlias = Transcript | Exception

AHEAD = 4
"""Batches of finished recordings that may wait for an earlier one."""
FAILURES = (SottovoceError, MemoryError, RuntimeError)
"""Errors of one recording that leave the others running; PyTorch raises RuntimeError when out of memory."""


def transcribe_batch(
    transcriber: Transcriber,
    sources: Iterable[Source],
    open_source: Callable[[Source], Recording],
    *,
    batch_size: int,
    model: str,
) -> Iterator[tuple[Source, Outcome]]:
    """Transcribe recordings, batch_size at a time, and yield transcripts in input order.

    open_source: opens a source. model: its name, for the transcripts. A failed recording yields its error.
    """
    limits = Batching(files=batch_size, files_together=True)
    runtime = BatchingRuntime(transcriber.backend, limits, waits_for_all=True)
    stopped = Event()

    def transcribe(source: Source, caller: Caller) -> Transcript:
        with caller:
            own, control = replace(transcriber, runtime=caller), RunControl(abort=stopped.is_set)
            with transcription_of(own, open_source(source), control, model=model) as transcription:
                return transcription.collect()

    waiting = iter(sources)
    runs: deque[tuple[Source, Future[Transcript]]] = deque()  # all from the first that was not yielded yet
    pool = ThreadPoolExecutor(batch_size)
    try:
        while True:
            while runs and runs[0][1].done():
                source, run = runs.popleft()
                yield source, _outcome(run)
            open_runs = [run for _, run in runs if not run.done()]
            room = min(batch_size - len(open_runs), AHEAD * batch_size - len(runs))
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


def _outcome(run: Future[Transcript]) -> Outcome:
    error = run.exception()
    if error is None:
        return run.result()
    if isinstance(error, FAILURES):
        return error
    raise error
