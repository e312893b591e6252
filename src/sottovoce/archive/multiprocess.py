"""Transcription of one long recording by several processes: cut at pauses, with a model in each process."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from sottovoce.audio.io import AudioSource, Recording
from sottovoce.audio.vad import SpeechSegment, speech_segments
from sottovoce.errors import OptionError
from sottovoce.offline.transcription import spoken_most
from sottovoce.options.decoding import WINDOW_VAD
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.recogniser import Recogniser
from sottovoce.threads import n_threads, set_threads
from sottovoce.types import SAMPLE_RATE, AudioChunk, Segment, Span, Turn

SHORTEST_PART_S = 5.0


@dataclass(frozen=True, slots=True)
class RecordingPart:
    start_s: float
    end_s: float | None


def parts_of(
    speech: Sequence[SpeechSegment], start_s: float, end_s: float, n_parts: int, *, is_open: bool = True
) -> list[RecordingPart]:
    """Cut a recording into at most n_parts of about equal length, in the middle of pauses.

    is_open: the last part has no end.
    """
    length = (end_s - start_s) / n_parts
    pauses = [(before.end_s, after.start_s) for before, after in pairwise(speech)]
    cuts: list[float] = []
    for number in range(1, n_parts):
        even = start_s + number * length
        least = (cuts[-1] if cuts else start_s) + SHORTEST_PART_S
        # A cut moves by at most a quarter of a part.
        near = [
            (later - earlier, -abs((earlier + later) / 2 - even), (earlier + later) / 2)
            for earlier, later in pauses
            if abs((earlier + later) / 2 - even) <= 0.25 * length
            and least <= (earlier + later) / 2 <= end_s - SHORTEST_PART_S
        ]
        if near:
            cuts.append(max(near)[2])
    bounds = [start_s, *cuts]
    ends: list[float | None] = [*cuts, None if is_open else end_s]
    return [RecordingPart(start, end) for start, end in zip(bounds, ends, strict=True)]


@dataclass(slots=True)
class MultiprocessTranscription(Iterator[Segment]):
    """The segments of a recording, in order, as its parts are done; `close` ends its processes.

    language: the most frequent one so far. turns and language probabilities are not computed.
    """

    language: str | None
    duration: float | None
    position: float = 0.0
    _workers: list[_PartWorker] = field(default_factory=list)
    _ready: Iterator[Segment] = field(default_factory=lambda: iter(()))
    _seen: list[Segment] = field(default_factory=list)
    turns: tuple[Turn, ...] = ()
    language_probability: float | None = None
    language_probabilities: Mapping[str, float] = field(default_factory=dict)
    unread: tuple[Span, ...] | None = None
    outside_languages: dict[str, float] = field(default_factory=dict)

    def __next__(self) -> Segment:
        while (segment := next(self._ready, None)) is None:
            if not self._workers:
                raise StopIteration
            worker = self._workers.pop(0)
            result = worker.result()
            self._ready = iter(result.segments)
            self._note(result)
            self.position = worker.part.end_s or self.duration or self.position
        segment = replace(segment, id=len(self._seen))
        self._seen.append(segment)
        self.language = spoken_most(self._seen)
        return segment

    def _note(self, result: _ReadPart) -> None:
        if result.unread is not None:
            self.unread = (*(self.unread or ()), *result.unread)
        for code, seconds in result.outside_languages.items():
            self.outside_languages[code] = self.outside_languages.get(code, 0.0) + seconds

    def close(self) -> None:
        while self._workers:
            self._workers.pop().end()


def transcribe_parts(
    model: Recogniser, load: Callable[[], Recogniser], source: str, options: TranscribeOptions, n_workers: int
) -> MultiprocessTranscription:
    """Transcribe a recording with several processes.

    load: loads the model in the other processes (pickled). options: without clip_timestamps, speakers,
    channels and speaker_turns.
    Raises: AudioError; while iterating, the errors of the processes.
    """
    speech, start_s, end_s, duration_s = _find_speech(source, options)
    if end_s - start_s < 2 * SHORTEST_PART_S:
        n_workers = 1
    parts = parts_of(speech, start_s, end_s, n_workers, is_open=options.duration_s is None)
    options = _with_language(model, source, options)
    threads = max(1, n_threads() // len(parts))
    workers = [
        _PartWorker.begun(load, source, options, part, is_first=part is parts[0], threads=threads)
        for part in parts
    ]
    return MultiprocessTranscription(options.decoding.language, duration_s, start_s, workers)


def _find_speech(source: str, options: TranscribeOptions) -> tuple[list[SpeechSegment], float, float, float]:
    length = 0

    def counted(chunks: Iterable[AudioChunk]) -> Iterator[AudioChunk]:
        nonlocal length
        for chunk in chunks:
            length = chunk.start_sample + len(chunk.samples)
            yield chunk

    start = options.offset_s
    with Recording(source, options) as recording:
        part = recording.part(start, options.duration_s)
        with part.open() as reader:
            speech = speech_segments(counted(reader), WINDOW_VAD)
    first = round(start * SAMPLE_RATE)
    segments = [SpeechSegment(first + segment.start_sample, first + segment.end_sample) for segment in speech]
    end_s = start + length / SAMPLE_RATE
    return segments, start, end_s, max(end_s, part.declared_s or 0.0) if options.is_part else end_s


def _with_language(model: Recogniser, source: AudioSource, options: TranscribeOptions) -> TranscribeOptions:
    is_given = options.decoding.language is not None or not model.can_detect_languages
    if is_given or options.follow_languages:
        return options
    with model.transcribe(source, options=options) as transcription:
        next(transcription, None)
        language = transcription.language
    return replace(options, decoding=replace(options.decoding, language=language)) if language else options


@dataclass(frozen=True, slots=True)
class _ReadPart:
    segments: list[Segment]
    unread: tuple[Span, ...] | None
    outside_languages: Mapping[str, float]


@dataclass(slots=True)
class _PartWorker:
    part: RecordingPart
    process: BaseProcess
    pipe: Connection

    @classmethod
    def begun(
        cls,
        load: Callable[[], Recogniser],
        source: str,
        options: TranscribeOptions,
        part: RecordingPart,
        *,
        is_first: bool,
        threads: int,
    ) -> _PartWorker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        length = None if part.end_s is None else part.end_s - part.start_s
        part_options = replace(options, offset_s=part.start_s, duration_s=length)
        if not is_first and not options.carry_initial_prompt:
            part_options = replace(part_options, initial_prompt=None)
        process = context.Process(
            target=_read, args=(theirs, load, source, part_options, threads), daemon=True
        )
        with without_interrupts():
            process.start()
        theirs.close()
        return cls(part, process, ours)

    def result(self) -> _ReadPart:
        try:
            while not wait([self.pipe], timeout=0.5):
                pass
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise OptionError(
                f"processors: the one for the part from {self.part.start_s:.0f} s ended with code "
                f"{self.process.exitcode}; is there memory for so many models?"
            ) from None
        finally:
            self.end()
        if isinstance(answer, BaseException):
            raise answer
        result: _ReadPart = answer
        return result

    def end(self) -> None:
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join()


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes that are started in the block never get Ctrl-C, not even while they import; their parent
    gets it after the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # its start would end the block of the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _read(
    pipe: Connection, load: Callable[[], Recogniser], source: str, options: TranscribeOptions, threads: int
) -> None:
    """Run one process; its parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_threads(threads)
    answer: _ReadPart | BaseException
    try:
        transcription = load().transcribe(source, options=options)
        segments = list(transcription)
        answer = _ReadPart(segments, transcription.unread, dict(transcription.outside_languages))
    except Exception as error:  # the parent raises it
        try:
            answer = pickle.loads(pickle.dumps(error))
        except Exception:  # of an exception that cannot be sent
            answer = RuntimeError(f"{type(error).__name__}: {error}")
    with suppress(OSError):  # the parent has gone
        pipe.send(answer)
