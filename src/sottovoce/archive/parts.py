"""One long recording read by several processes: cut at pauses, each part by a model of its own.

Within a part the text is that of the part alone: what was said before a cut is not known after it. Knows
neither the command line nor how a model is named; whoever calls says how one is loaded.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType

import torch

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechSegment, speech_segments
from sottovoce.errors import OptionError, SottovoceError
from sottovoce.offline.options import WINDOW_VAD, TranscribeOptions
from sottovoce.offline.result import spoken_most
from sottovoce.types import SAMPLE_RATE, AudioChunk, Segment, Turn

SHORTEST_PART_S = 5.0
REACH = 0.25
"""A cut may lie this share of a part beside its even place, where the longest pause is."""
WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of a recording; end_s None: to its end."""

    start_s: float
    end_s: float | None


def parts_of(
    speech: Sequence[SpeechSegment], start_s: float, end_s: float, n_parts: int, *, is_open: bool = True
) -> list[Part]:
    """At most n_parts of about the same length, cut in the middle of pauses; fewer where nobody pauses.

    speech: of the recording. is_open: the last part goes on to the end of the recording, whatever that is.
    """
    length = (end_s - start_s) / n_parts
    pauses = [(before.end_s, after.start_s) for before, after in pairwise(speech)]
    cuts: list[float] = []
    for number in range(1, n_parts):
        even = start_s + number * length
        least = (cuts[-1] if cuts else start_s) + SHORTEST_PART_S
        found = [
            (later - earlier, -abs((earlier + later) / 2 - even), (earlier + later) / 2)
            for earlier, later in pauses
            if abs((earlier + later) / 2 - even) <= REACH * length
            and least <= (earlier + later) / 2 <= end_s - SHORTEST_PART_S
        ]
        if found:
            cuts.append(max(found)[2])
    bounds = [start_s, *cuts]
    ends: list[float | None] = [*cuts, None if is_open else end_s]
    return [Part(start, end) for start, end in zip(bounds, ends, strict=True)]


@dataclass(slots=True)
class PartsTranscription(Iterator[Segment]):
    """The segments of a recording, in order, as its parts are done; a context manager, or closed by `close`.

    language: spoken most so far. duration: seconds, known at once. turns: none, speakers are not
    told apart.
    """

    language: str | None
    duration: float | None
    position: float = 0.0
    _workers: list[_Worker] = field(default_factory=list)
    _ready: Iterator[Segment] = field(default_factory=lambda: iter(()))
    _seen: list[Segment] = field(default_factory=list)
    turns: tuple[Turn, ...] = ()

    def __next__(self) -> Segment:
        while (segment := next(self._ready, None)) is None:
            if not self._workers:
                raise StopIteration
            worker = self._workers.pop(0)
            self._ready = iter(worker.result())
            self.position = worker.part.end_s or self.duration or self.position
        segment = replace(segment, id=len(self._seen))
        self._seen.append(segment)
        self.language = spoken_most(self._seen)
        return segment

    def __enter__(self) -> PartsTranscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; what was read stays."""
        while self._workers:
            self._workers.pop().end()


def transcribe_parts(
    model: Model, load: Callable[[], Model], source: str, options: TranscribeOptions, n_workers: int
) -> PartsTranscription:
    """Read a recording with several processes.

    model: of this process; finds the language where it is not given. load: makes one in each of the others
    (it is sent there). options: as `Model.options` gives them.
    Raises: OptionError for parts that are given already, and for speakers, who are told apart in the whole of
        a recording; AudioError. While iterating: what a process raises.
    """
    if options.clip_timestamps:
        raise OptionError("processors: cannot be combined with clip_timestamps")
    if options.speakers is not None or options.channels != "mixed":
        raise OptionError("processors: cannot be combined with speakers or channels")
    speech, duration_s = _heard(source, options.audio_filter)
    last_s = duration_s if options.duration_s is None else options.offset_s + options.duration_s
    start_s, end_s = options.offset_s, min(duration_s, last_s)
    if end_s - start_s < 2 * SHORTEST_PART_S:
        n_workers = 1
    parts = parts_of(speech, start_s, end_s, n_workers, is_open=options.duration_s is None)
    options = _with_language(model, source, options)
    threads = max(1, torch.get_num_threads() // len(parts))
    workers = [
        _Worker.begun(load, source, options, part, is_first=part is parts[0], threads=threads)
        for part in parts
    ]
    return PartsTranscription(options.decoding.language, duration_s, start_s, workers)


def _heard(source: str, audio_filter: str | None) -> tuple[list[SpeechSegment], float]:
    """The speech of a recording, and its seconds."""
    length = 0

    def counted(chunks: Iterable[AudioChunk]) -> Iterator[AudioChunk]:
        nonlocal length
        for chunk in chunks:
            length = chunk.start_sample + len(chunk.samples)
            yield chunk

    with Recording(source, audio_filter=audio_filter) as recording, recording.open() as reader:
        speech = speech_segments(counted(reader), WINDOW_VAD)
    return speech, length / SAMPLE_RATE


def _with_language(model: Model, source: AudioSource, options: TranscribeOptions) -> TranscribeOptions:
    """The language that the whole recording is read in, found as when one process reads it."""
    is_known = options.decoding.language is not None or not model.tokenizer.is_multilingual
    if is_known or options.follow_languages:
        return options
    with model.transcribe(source, options=options) as transcription:
        next(transcription, None)
        found = transcription.language
    return replace(options, decoding=replace(options.decoding, language=found)) if found else options


@dataclass(slots=True)
class _Worker:
    """A process that reads one part."""

    part: Part
    process: BaseProcess
    pipe: Connection

    @classmethod
    def begun(
        cls,
        load: Callable[[], Model],
        source: str,
        options: TranscribeOptions,
        part: Part,
        *,
        is_first: bool,
        threads: int,
    ) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        length = None if part.end_s is None else part.end_s - part.start_s
        own = replace(options, offset_s=part.start_s, duration_s=length)
        if not is_first and not options.carry_initial_prompt:
            own = replace(own, initial_prompt=None)
        process = context.Process(target=_read, args=(theirs, load, source, own, threads), daemon=True)
        process.start()
        theirs.close()
        return cls(part, process, ours)

    def result(self) -> list[Segment]:
        """The segments of the part, once they are there.

        Raises: what the process raised; OptionError when it ended without a word.
        """
        try:
            while not wait([self.pipe], timeout=WAIT_S):
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
        segments: list[Segment] = answer
        return segments

    def end(self) -> None:
        """End the process, whatever it does."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join()


def _read(
    pipe: Connection, load: Callable[[], Model], source: str, options: TranscribeOptions, threads: int
) -> None:
    """What a process does. Ctrl-C is for the one that began it, and that ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    answer: list[Segment] | BaseException
    try:
        answer = list(load().transcribe(source, options=options))
    except (SottovoceError, MemoryError, RuntimeError) as error:
        answer = error
    with suppress(OSError):  # nobody waits any more
        pipe.send(answer)
