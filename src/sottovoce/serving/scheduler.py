"""The one seam to the model: live sessions and recordings go in, events and segments come out.

Whoever asks waits for a future; the model runs in the threads of a `Worker`, where executors put together
what live sessions and recordings ask for. How that is done is decided behind this seam, and nowhere else in
the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio
import anyio.to_thread
import numpy as np

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource
from sottovoce.engine.audio_accumulator import AudioAccumulator
from sottovoce.engine.batching import ON_ACCELERATOR, ON_CPU, BatchingExecutor
from sottovoce.engine.calls import CallGenerator
from sottovoce.engine.tasks import Priority
from sottovoce.engine.update_interval import INTERVALS_S, UpdateIntervalController
from sottovoce.errors import OptionError
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.live import LiveOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.serving.calibration import calibrate
from sottovoce.serving.engine_thread import THREADS, EngineState
from sottovoce.serving.event_sequence import EventSequencer
from sottovoce.serving.load_forecast import LoadForecast, SessionLoad
from sottovoce.serving.settings import MOST_ENGINES, Work
from sottovoce.serving.worker import Worker
from sottovoce.speakers.base import Floats
from sottovoce.speakers.choose import make_live_speakers
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.types import SAMPLE_RATE, Event, Samples, Segment, Transcript

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_AT_ONCE_S = 2.0
"""Audio of one session worked on at a time: the others have their turn in between."""
MOST_BEHIND_S = 10.0
"""The same under load, where one update takes all that came meanwhile."""


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """What a client may ask of a recording: options, languages ("auto", one or several), boosted phrases."""

    options: TranscribeOptions
    languages: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()


class SessionHandle:
    """One live session of a client; one call at a time. Made by `Scheduler.open`.

    load: what it takes of the model, until `end`, which on_end is told of.
    """

    def __init__(
        self,
        worker: Worker,
        model: Model,
        options: LiveOptions,
        *,
        load: SessionLoad,
        on_end: Callable[[SessionLoad], None],
    ) -> None:
        self._worker = worker
        self._model = model
        self._options = options
        self._on_end = on_end
        self.load = load
        self._sequencer = EventSequencer()
        self._session: Session | None = None
        self._speakers: LiveSpeakers | None = None
        self._speakers_option = ""
        self._held_audio = AudioAccumulator()
        self._n_samples = 0
        self._n_heard = 0
        self._began_at = 0
        self.fixed_interval_s: float | None = None
        """Of audio from one update to the next; None: as it is for all sessions."""
        self.poll_newer_audio: Callable[[], Samples] | None = None
        """Audio that came after what was pushed, asked for by a thread of the model when an update begins."""

    @property
    def received_s(self) -> float:
        """Seconds of audio so far."""
        return self._n_samples / SAMPLE_RATE

    @property
    def interval_s(self) -> float:
        """Seconds of audio from one update to the next."""
        return self.fixed_interval_s or self._worker.interval_controller.interval_s

    @property
    def behind_s(self) -> float:
        """Seconds of audio so far that no update has heard."""
        return (self._n_samples - self._n_heard) / SAMPLE_RATE

    async def begin(self) -> None:
        """Make the session, so that wrong options are known before there is audio.

        Raises: OptionError, and ModelNotFoundError and CheckpointError of what tells speakers apart.
        """
        await self._load_speakers(self._options)
        await done(self._worker, self._open, Priority.LIVE)

    async def push(self, pcm: Samples) -> list[Event]:
        """Take samples (n,) float32, mono, 16 kHz; the events that follow from them.

        Under load they are held until an update is due, and that update takes all of them.

        Raises: AudioError for samples that are not finite.
        """
        events: list[Event] = []
        self._held_audio.add(np.ascontiguousarray(pcm))
        self._n_samples += len(pcm)
        while self._held_audio.is_due(self.interval_s):
            events += self._numbered(await self._done(self._update()))
        return events

    async def finalize(self) -> list[Event]:
        """Say now what was heard so far, without waiting for more; the session goes on with what it knows."""
        return self._numbered(await self._done(self._conclude()))

    async def voices(self, known: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Know speakers of an earlier session; the speakers so far, see `LiveSpeakers.voices`.

        Raises: OptionError, also where speakers are not told apart.
        """
        return await done(self._worker, lambda: self._know(known), Priority.LIVE)

    async def flush_and_reset(self) -> list[Event]:
        """Say what was heard so far; what follows is heard as if nothing had been before."""
        events = self._numbered(await self._done(self._finish()))
        self._began_at = self._n_samples
        return events

    async def configure(self, options: LiveOptions) -> list[Event]:
        """Go on with other options; what was heard so far is said under the old ones.

        Raises: as `begin`, with the session as it was.
        """
        before = self._options, self._speakers, self._speakers_option
        await self._load_speakers(options)
        self._options = options
        try:
            session = await done(self._worker, self._made, Priority.LIVE)
        except BaseException:
            self._options, self._speakers, self._speakers_option = before
            raise
        events = await self.flush_and_reset()
        self._session = session
        return events

    async def close(self) -> list[Event]:
        """Finish what is being said, and end."""
        return await self.flush_and_reset()

    def discard(self) -> None:
        """Forget what was heard so far, without saying it."""
        self._session = None
        self._held_audio = AudioAccumulator()
        self._began_at = self._n_heard = self._n_samples

    def end(self) -> None:
        """Forget what was heard so far, and make room for another session; harmless a second time."""
        self.discard()
        self._on_end(self.load)

    def _numbered(self, events: list[Event]) -> list[Event]:
        return self._sequencer.number(events, offset_s=self._began_at / SAMPLE_RATE)

    async def _done(self, calls: CallGenerator[list[Event]]) -> list[Event]:
        self.load.is_waiting = True
        try:
            return await asyncio.wrap_future(self._worker.submit_calls(calls, on_work=self.load.work))
        finally:
            self.load.is_waiting = False

    def _update(self) -> CallGenerator[list[Event]]:
        """An update that takes what came while it waited."""
        if self.poll_newer_audio is not None:
            newer = self.poll_newer_audio()
            self._held_audio.add(newer)
            self._n_samples += len(newer)
        events = yield from self._listen()
        return events

    def _listen(self) -> CallGenerator[list[Event]]:
        """One update: under load of all that waits, otherwise of what is worked on at a time."""
        interval_s = self.interval_s
        is_stretched = interval_s > INTERVALS_S[0]
        most_s = MOST_BEHIND_S if is_stretched else MOST_AT_ONCE_S
        pcm = self._held_audio.take(round(most_s * SAMPLE_RATE))
        try:
            events = yield from self._open().listen(pcm, newest_only=is_stretched)
        finally:
            self._n_heard = min(self._n_heard + len(pcm), self._n_samples)
            self.load.hear(len(pcm) / SAMPLE_RATE, interval_s)
        return events

    def _conclude(self) -> CallGenerator[list[Event]]:
        events = yield from self._caught_up()
        if self._session is not None:
            events += yield from self._session.conclude()
        return events

    def _caught_up(self) -> CallGenerator[list[Event]]:
        """What waits, whether or not an update is due."""
        events: list[Event] = []
        while self._held_audio.waiting_s:
            events += yield from self._listen()
        return events

    def _finish(self) -> CallGenerator[list[Event]]:
        events = yield from self._caught_up()
        session, self._session = self._session, None
        if session is not None:
            events += yield from session.finish()
        return events

    def _know(self, known: Mapping[str, Floats]) -> Mapping[str, Floats]:
        self._open()
        if not self._options.speakers or self._speakers is None:
            raise OptionError("voices: expected a session that tells speakers apart, got one that does not")
        self._speakers.add_voices(known)
        return self._speakers.voices

    def _open(self) -> Session:
        if self._session is None:
            self._session = self._made()
        return self._session

    async def _load_speakers(self, options: LiveOptions) -> None:
        """Make what tells speakers apart: no thread of the model waits for weights that are fetched."""
        if options.speakers and (self._speakers is None or options.speakers != self._speakers_option):
            self._speakers = await anyio.to_thread.run_sync(make_live_speakers, options.speakers)
            self._speakers_option = options.speakers

    def _made(self) -> Session:
        options = self._options
        return self._model.session(
            options.languages or None,
            switching=options.switching,
            vad=options.vad,
            unstable=options.unstable,
            stream=StreamOptions.of(options.decoding),
            speakers=self._speakers if options.speakers else None,
        )


class FileJob:
    """One recording being transcribed: iterate over its segments as they are found."""

    def __init__(self, worker: Worker, start: Callable[[], FileTranscription]) -> None:
        self._worker = worker
        self._start = start
        self._running: FileTranscription | None = None

    async def begin(self) -> None:
        """Look at the options and open the recording.

        Raises: AudioError, OptionError.
        """
        self._running = await done(self._worker, self._start, Priority.FILE)

    def __aiter__(self) -> AsyncIterator[Segment]:
        return self

    async def __anext__(self) -> Segment:
        running = self._running
        assert running is not None, "begin() first"
        segment = await asyncio.wrap_future(self._worker.submit_calls(running.next_segment(), Priority.FILE))
        if segment is None:
            raise StopAsyncIteration
        return segment

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
        self._fusions = anyio.CapacityLimiter(1)
        work = work or Work()
        engines = engines_for(model, work)
        self._is_forecast = work.forecast
        self.forecast = LoadForecast(len(engines), work.longest_interval_s)
        self._worker = Worker(
            self._note,
            engines,
            interval_controller=UpdateIntervalController(time.monotonic(), work.longest_interval_s),
            n_threads=work.threads or THREADS,
        )

    @property
    def live_wait_s(self) -> float:
        """How long live work waits for its turn, of late."""
        return self._worker.live_wait_s

    def trouble(self, stall_s: float) -> str | None:
        """Return what keeps the model from working; see `Worker.trouble`."""
        return self._worker.trouble(stall_s)

    @property
    def engines(self) -> list[EngineState]:
        """What each engine of the model is at."""
        return self._worker.engines

    @property
    def interval_s(self) -> float:
        """Audio between two updates of a live session, as it is now."""
        return self._worker.interval_controller.interval_s

    @property
    def n_waiting(self) -> int:
        """Pieces of work that wait."""
        return self._worker.n_waiting

    async def open(self, options: LiveOptions) -> SessionHandle:
        """Begin a live session.

        Raises: ApiError 429 where it would make the others late; OptionError.
        """
        load = self.forecast.enter()
        handle = SessionHandle(self._worker, self.model, options, load=load, on_end=self.forecast.leave)
        try:
            await handle.begin()
        except BaseException:
            handle.end()
            raise
        return handle

    async def calibrate(self) -> None:
        """Measure what a live session costs, if sessions are refused by that; all are taken if it fails."""
        if not self._is_forecast:
            return
        try:
            self.forecast.begin(await calibrate(self, len(self.engines)))
        except Exception:
            logger.exception("what a live session costs could not be measured: all are taken")

    async def transcribe(self, source: AudioSource, request: TranscriptionRequest) -> FileJob:
        """Begin with a recording, which stays open until the job is closed.

        Raises: AudioError, OptionError.
        """
        fusion = await anyio.to_thread.run_sync(self._fusion, request, limiter=self._fusions)
        job = FileJob(self._worker, lambda: self._begin(source, request, fusion))
        await job.begin()
        return job

    def run_background(self, calls: CallGenerator[T]) -> Future[T]:
        """Have other calls of the model done, in turn with recordings; return what the generator returns.

        Raises: ApiError after `close`.
        """
        return self._worker.submit_calls(calls, Priority.FILE)

    def close(self) -> None:
        """End the thread after the work at hand."""
        self._worker.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._worker.join(timeout_s)

    def _beam_size_of(self, request: TranscriptionRequest) -> int:
        return request.options.decoding.beam_size or self._beam_size

    def _fusion(self, request: TranscriptionRequest) -> ShallowFusion | None:
        """Make what boosts phrases in a beam; many take a while, which no thread of the model spends."""
        if not request.phrases or self._beam_size_of(request) == 1:
            return None
        return self.model.fusion(hotwords=request.phrases)

    def _begin(
        self, source: AudioSource, request: TranscriptionRequest, fusion: ShallowFusion | None
    ) -> FileTranscription:
        options, beam_size = request.options, self._beam_size_of(request)
        if (
            request.phrases and fusion is None
        ):  # a greedy search has no scores to add to: they go before the prompt
            hotwords = ", ".join(request.phrases)
            options = replace(options, decoding=replace(options.decoding, hotwords=hotwords))
        return self.model.transcribe(
            source,
            language=list(request.languages) or None,
            beam_size=beam_size,
            options=options,
            fusion=fusion,
        )

    def _note(self, priority: Priority, waited_s: float, worked_s: float) -> None:
        if priority is Priority.LIVE and self._on_live is not None:
            self._on_live(waited_s, worked_s)


def engines_for(model: Model, work: Work) -> list[BatchingExecutor]:
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
    return [BatchingExecutor(backend, batching, file_share=work.file_share) for _ in range(n_engines)]


async def done(worker: Worker, do: Callable[[], T], priority: Priority) -> T:
    """The result of work; when who asks is cancelled, so is work that has not begun."""
    return await asyncio.wrap_future(worker.submit(do, priority))
