"""The one seam to the model: live sessions and recordings go in, events and segments come out.

Whoever asks waits for a future; the model runs in the thread of a `Worker`, where an engine puts together
what live sessions ask for. How that is done is decided behind this seam, and nowhere else in the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource
from sottovoce.audio.vad_stream import VadStreamOptions
from sottovoce.engine.feed import Feed
from sottovoce.engine.live import ON_ACCELERATOR, ON_CPU, LiveEngine
from sottovoce.engine.pace import INTERVALS_S, Pace
from sottovoce.errors import OptionError
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.pool import Ask, FilePool
from sottovoce.offline.result import FileTranscription
from sottovoce.serving.engine_thread import THREADS, EngineState
from sottovoce.serving.live_first import live_first
from sottovoce.serving.settings import MOST_ENGINES, Work
from sottovoce.serving.told import Teller, Told
from sottovoce.serving.worker import FILE, LIVE, Worker
from sottovoce.speakers.base import Floats
from sottovoce.speakers.choose import live_speakers
from sottovoce.speakers.live import LiveSpeakers
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session, Switching
from sottovoce.streaming.work import Steps
from sottovoce.types import SAMPLE_RATE, Event, Samples, Segment, Task, Transcript

T = TypeVar("T")

MOST_AT_ONCE_S = 2.0
"""Audio of one session worked on at a time: the others have their turn in between."""
MOST_BEHIND_S = 10.0
"""The same under load, where one update takes all that came meanwhile."""
FILES_ON_CPU, FILES_ON_ACCELERATOR = 2, 16
"""Recordings whose windows are read in one batch."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What a client may ask of a live session; the names are those of `Model.session`.

    languages: codes or names; empty: all of the model. prompt: what was said before. terms: names and words
    likely to be said. vad: decode only where speech is heard, by these options. frame_threshold: how long
    words wait, see `StreamOptions`. speakers: say who says each word: "auto", how many there are at most, or
    "", not.
    """

    languages: tuple[str, ...] = ()
    switching: Switching = "restart"
    task: Task = "transcribe"
    unstable: bool = False
    prompt: str = ""
    terms: tuple[str, ...] = ()
    vad: bool | VadStreamOptions = True
    frame_threshold: float = 25.0
    speakers: str = ""


@dataclass(frozen=True, slots=True)
class FileWish:
    """What a client may ask of a recording: options, languages ("auto", one or several), boosted phrases."""

    options: TranscribeOptions
    languages: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()


class Live:
    """One live session of a client; one call at a time. Made by `Scheduler.open`."""

    def __init__(self, worker: Worker, model: Model, options: LiveOptions) -> None:
        self._worker = worker
        self._model = model
        self._options = options
        self._teller = Teller()
        self._session: Session | None = None
        self._speakers: LiveSpeakers | None = None
        self._speakers_wish = ""
        self._feed = Feed()
        self._n_samples = 0
        self._began_at = 0
        self.more: Callable[[], Samples] | None = None
        """Audio that came after what was pushed, asked for by a thread of the model when an update begins."""

    @property
    def received_s(self) -> float:
        """Seconds of audio so far."""
        return self._n_samples / SAMPLE_RATE

    async def begin(self) -> None:
        """Make the session, so that wrong options are known before there is audio.

        Raises: OptionError.
        """
        await done(self._worker, self._open, LIVE)

    async def push(self, pcm: Samples) -> list[Told]:
        """Take samples (n,) float32, mono, 16 kHz; the events that follow from them.

        Under load they are held until an update is due, and that update takes all of them.

        Raises: AudioError for samples that are not finite.
        """
        told: list[Told] = []
        self._feed.add(np.ascontiguousarray(pcm))
        self._n_samples += len(pcm)
        while self._feed.is_due(self._worker.pace.interval_s):
            told += self._tell(await self._done(self._update()))
        return told

    async def finalize(self) -> list[Told]:
        """Say now what was heard so far, without waiting for more; the session goes on with what it knows."""
        return self._tell(await self._done(self._conclude()))

    async def voices(self, known: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Know speakers of an earlier session; the speakers so far, see `LiveSpeakers.known`.

        Raises: OptionError, also where speakers are not told apart.
        """
        return await done(self._worker, lambda: self._know(known), LIVE)

    async def begin_anew(self) -> list[Told]:
        """Say what was heard so far; what follows is heard as if nothing had been before."""
        told = self._tell(await self._done(self._finish()))
        self._began_at = self._n_samples
        return told

    async def configure(self, options: LiveOptions) -> list[Told]:
        """Go on with other options; what was heard so far is said under the old ones.

        Raises: OptionError, with the session as it was.
        """
        before = self._options
        self._options = options
        try:
            session = await done(self._worker, self._made, LIVE)
        except BaseException:
            self._options = before
            raise
        told = await self.begin_anew()
        self._session = session
        return told

    async def close(self) -> list[Told]:
        """Finish what is being said, and end."""
        return await self.begin_anew()

    def discard(self) -> None:
        """Forget what was heard so far, without saying it."""
        self._session = None
        self._feed = Feed()
        self._began_at = self._n_samples

    def _tell(self, events: list[Event]) -> list[Told]:
        return self._teller.tell(events, offset_s=self._began_at / SAMPLE_RATE)

    async def _done(self, steps: Steps[list[Event]]) -> list[Event]:
        return await asyncio.wrap_future(self._worker.submit_steps(steps))

    def _update(self) -> Steps[list[Event]]:
        """An update that takes what came while it waited."""
        if self.more is not None:
            newer = self.more()
            self._feed.add(newer)
            self._n_samples += len(newer)
        events = yield from self._listen()
        return events

    def _listen(self) -> Steps[list[Event]]:
        """One update: under load of all that waits, otherwise of what is worked on at a time."""
        is_stretched = self._worker.pace.interval_s > INTERVALS_S[0]
        most_s = MOST_BEHIND_S if is_stretched else MOST_AT_ONCE_S
        pcm = self._feed.take(round(most_s * SAMPLE_RATE))
        events = yield from self._open().listen(pcm, newest_only=is_stretched)
        return events

    def _conclude(self) -> Steps[list[Event]]:
        events = yield from self._caught_up()
        if self._session is not None:
            events += yield from self._session.conclude()
        return events

    def _caught_up(self) -> Steps[list[Event]]:
        """What waits, whether or not an update is due."""
        events: list[Event] = []
        while self._feed.waiting_s:
            events += yield from self._listen()
        return events

    def _finish(self) -> Steps[list[Event]]:
        events = yield from self._caught_up()
        session, self._session = self._session, None
        if session is not None:
            events += yield from session.finish()
        return events

    def _know(self, known: Mapping[str, Floats]) -> Mapping[str, Floats]:
        self._open()
        if not self._options.speakers or self._speakers is None:
            raise OptionError("voices: expected a session that tells speakers apart, got one that does not")
        self._speakers.know(known)
        return self._speakers.known

    def _open(self) -> Session:
        if self._session is None:
            self._session = self._made()
        return self._session

    def _made(self) -> Session:
        options = self._options
        if options.speakers and (self._speakers is None or options.speakers != self._speakers_wish):
            self._speakers, self._speakers_wish = live_speakers(options.speakers), options.speakers
        return self._model.session(
            options.languages or None,
            switching=options.switching,
            vad=options.vad,
            unstable=options.unstable,
            stream=StreamOptions(
                task=options.task,
                init_prompt=options.prompt,
                static_prompt=", ".join(options.terms),
                frame_threshold=options.frame_threshold,
            ),
            speakers=self._speakers if options.speakers else None,
        )


class FileJob:
    """One recording being transcribed: iterate over its segments as they are found."""

    def __init__(self, worker: Worker, pool: FilePool, start: Callable[[], FileTranscription]) -> None:
        self._worker = worker
        self._pool = pool
        self._start = start
        self._running: FileTranscription | None = None
        self._is_prepared = False

    async def begin(self) -> None:
        """Look at the options and open the recording.

        Raises: AudioError, OptionError.
        """
        self._running = await done(self._worker, self._start, FILE)

    def __aiter__(self) -> AsyncIterator[Segment]:
        return self

    async def __anext__(self) -> Segment:
        running = self._running
        assert running is not None, "begin() first"
        while not self._is_prepared:  # in pieces, so that live work need not wait for all of it
            self._is_prepared = not await done(self._worker, running.prepare, FILE)
        asked = self._pool.ask(running)
        self._serve(asked)
        segment = await asyncio.wrap_future(asked.segment)
        if segment is None:
            raise StopAsyncIteration
        return segment

    def _serve(self, asked: Ask) -> None:
        """Have a thread work on it in its turn; others that wait then are worked on beside it."""
        turn = self._worker.submit(lambda: self._pool.serve(asked, self._serve), FILE)
        turn.add_done_callback(lambda turn: self._pool.leave(asked) if turn.cancelled() else None)

    async def collect(self) -> Transcript:
        """What was found, with what is left to find."""
        running = self._running
        assert running is not None, "begin() first"
        async for _ in self:
            pass
        return running.collect()  # at its end: no work is left

    def close(self) -> None:
        """Stop; harmless at the end."""
        if self._running is not None:
            self._running.close()


class Scheduler:
    """All that is asked of one model."""

    def __init__(
        self,
        model: Model,
        work: Work | None = None,
        *,
        beam_size: int = 5,
        on_live: Callable[[float, float], None] | None = None,
    ) -> None:
        self.model = model
        self._beam_size = beam_size
        self._on_live = on_live
        work = work or Work()
        self._worker = Worker(
            self._note,
            engines_for(model, work),
            pace=Pace(time.monotonic(), work.longest_interval_s),
            n_threads=work.threads or THREADS,
            file_share=work.file_share,
        )
        is_cpu = model.backend.device.type == "cpu"
        self._pool = FilePool(FILES_ON_CPU if is_cpu else FILES_ON_ACCELERATOR, encodes_together=not is_cpu)
        self.for_recordings = model.on_backend(live_first(model.backend, self._worker.live_first))
        """The model for what is not live: each of its calls lets live work go first."""

    @property
    def live_wait_s(self) -> float:
        """How long live work waits for its turn, of late."""
        return self._worker.live_wait_s

    @property
    def engines(self) -> list[EngineState]:
        """What each engine of the model is at."""
        return self._worker.engines

    @property
    def interval_s(self) -> float:
        """Audio between two updates of a live session, as it is now."""
        return self._worker.pace.interval_s

    @property
    def n_waiting(self) -> int:
        """Pieces of work that wait."""
        return self._worker.n_waiting

    async def open(self, options: LiveOptions) -> Live:
        """Begin a live session.

        Raises: OptionError.
        """
        live = Live(self._worker, self.model, options)
        await live.begin()
        return live

    async def transcribe(self, source: AudioSource, wish: FileWish) -> FileJob:
        """Begin with a recording, which stays open until the job is closed.

        Raises: AudioError, OptionError.
        """
        job = FileJob(self._worker, self._pool, lambda: self._begin(source, wish))
        await job.begin()
        return job

    def aside(self, do: Callable[[], T]) -> Future[T]:
        """Have other work of the model done, in turn with recordings.

        Raises: ApiError after `close`.
        """
        return self._worker.submit(do, FILE)

    def close(self) -> None:
        """End the thread after the work at hand."""
        self._worker.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._worker.join(timeout_s)

    def _begin(self, source: AudioSource, wish: FileWish) -> FileTranscription:
        options, fusion = wish.options, None
        beam_size = options.decoding.beam_size or self._beam_size
        if wish.phrases and beam_size > 1:
            fusion = self.model.fusion(hotwords=wish.phrases)
        elif wish.phrases:  # a greedy search has no scores to add to: they go before the prompt
            options = replace(options, decoding=replace(options.decoding, hotwords=", ".join(wish.phrases)))
        return self.for_recordings.transcribe(
            source,
            language=list(wish.languages) or None,
            beam_size=beam_size,
            options=options,
            fusion=fusion,
        )

    def _note(self, urgency: int, waited_s: float, worked_s: float) -> None:
        if urgency == LIVE and self._on_live is not None:
            self._on_live(waited_s, worked_s)


def engines_for(model: Model, work: Work) -> list[LiveEngine]:
    """Engines of a model, that share its weights."""
    backend = model.backend
    is_cpu = backend.device.type == "cpu"
    n_engines = work.engines or (min(work.threads or THREADS, MOST_ENGINES) if is_cpu else 1)
    known = ON_CPU if is_cpu else ON_ACCELERATOR
    batching = replace(
        known,
        encoder_frames=work.encoder_frames or known.encoder_frames,
        rows=work.rows or known.rows,
    )
    return [LiveEngine(backend, batching) for _ in range(n_engines)]


async def done(worker: Worker, do: Callable[[], T], urgency: int) -> T:
    """The result of work; when who asks is cancelled, so is work that has not begun."""
    return await asyncio.wrap_future(worker.submit(do, urgency))
