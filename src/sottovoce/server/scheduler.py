"""The interface to a model: live sessions and recordings go in, events and segments come out."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import numpy as np

from sottovoce.audio.io import AudioSource
from sottovoce.decoding.decode import LanguageDetection
from sottovoce.errors import OptionError
from sottovoce.offline.transcriber import SecondModel
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.decoding import DeferralOptions
from sottovoce.options.transcribe import Diarizer, SpeakerOptions, TranscribeOptions, parse_speakers
from sottovoce.recogniser import LanguageModels, Recogniser
from sottovoce.runtime.batching import Caller, Priority
from sottovoce.runtime.calls import Request, Steps
from sottovoce.runtime.update_interval import INTERVALS_S, UpdateIntervalController
from sottovoce.server.errors import RETRY_S, ApiError, too_many_requests
from sottovoce.server.settings import MOST_ENGINES, Work
from sottovoce.server.worker import Worker
from sottovoce.speakers.live_speakers import LiveSpeakers, make_live_speakers
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.live_session import EventNumbers, LiveSession
from sottovoce.streaming.options import LiveOptions
from sottovoce.streaming.sources import SourcesSession
from sottovoce.text.filters import Replacements, TextFilter
from sottovoce.threads import n_threads
from sottovoce.translation.live_translator import SourceText
from sottovoce.translation.whisper_translate import WhisperTranslator
from sottovoce.types import SAMPLE_RATE, Event, Final, Floats, Partial, Samples, Segment, Transcript, Word

MAX_LOAD = 0.85
"""Part of the engines' time that sessions may take; the rest absorbs bursts."""
SPEECH_FACTOR = 1.75
"""Cost of speech relative to the sound: words cost 1.4 times as much, and more in batches (base).

Source: docs/research/serving.md, admission.
"""
FOLLOWING = Fraction(4, 3)
"""Cost of a session that follows languages, relative to one whose language is given.

Source: docs/research/serving.md, admission.
"""
SOUND_S, WARM_UP_S, PIECE_S = 4.0, 1.0, 0.5
PITCH_HZ, SYLLABLES_HZ, N_HARMONICS = 120.0, 3.0, 20


def overloaded(n_sessions: int) -> ApiError:
    """Return an error with a random time until a retry, to spread refused clients."""
    message = f"{n_sessions} live sessions are as many as this model keeps up with: try again later"
    return too_many_requests(message, retry_s=RETRY_S * (1 + random.random()))


def places_of(model: Recogniser, options: LiveOptions, sources: Sequence[str]) -> Fraction:
    """Return the number of sessions of a given language that cost as much."""
    follows = model.can_detect_languages and options.switching != "off" and len(options.languages) != 1
    return (len(sources) or 1) * (FOLLOWING if follows else Fraction(1))


async def measured_capacity(
    open_session: Callable[[LiveOptions], Awaitable[SessionHandle]], n_engines: int
) -> int | None:
    """Return the number of sessions, at least 1, that the engines keep up with; None: unknown."""
    options = LiveOptions(vad=False)
    sessions = [await open_session(options) for _ in range(n_engines)]
    try:
        costs = await asyncio.gather(*(measured_cost(session) for session in sessions))
    finally:
        for session in sessions:
            session.end()
    measured = [SPEECH_FACTOR * cost for cost in costs if cost > 0]
    return max(1, int(MAX_LOAD * n_engines * len(measured) / sum(measured))) if measured else None


async def measured_cost(session: SessionHandle) -> float:
    """Return the engine seconds for a second of a sound, without its first second; 0: unknown."""
    # Seconds between two updates; longer intervals are a reserve.
    session.fixed_interval_s = 0.5
    ends_s = time.monotonic() + 5.0  # the calibration gives up
    sound = voice_like_sound()
    step, n_warm_up = round(PIECE_S * SAMPLE_RATE), round(WARM_UP_S * SAMPLE_RATE)
    await session.push(sound[:n_warm_up])
    worked_s, audio_s = session.worked_s, session.audio_s
    for start in range(n_warm_up, len(sound), step):
        await session.push(sound[start : start + step])
        if time.monotonic() > ends_s and session.audio_s > audio_s:
            break
    new_audio_s = session.audio_s - audio_s
    return (session.worked_s - worked_s) / new_audio_s if new_audio_s > 0 else 0.0


def voice_like_sound() -> Samples:
    """Return a sound (n,) float32 with the pitch, harmonics and syllables of a voice."""
    at_s = np.arange(round(SOUND_S * SAMPLE_RATE)) / SAMPLE_RATE
    pitch_hz = PITCH_HZ * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * at_s))
    phase = 2 * np.pi * np.cumsum(pitch_hz) / SAMPLE_RATE
    harmonics = np.sum([np.sin(k * phase) / k for k in range(1, N_HARMONICS)], axis=0)
    sound = 0.2 * harmonics * np.clip(np.sin(2 * np.pi * SYLLABLES_HZ * at_s), 0, 1)
    noise = 0.01 * np.random.default_rng(0).standard_normal(len(at_s))
    samples: Samples = (sound + noise).astype(np.float32)
    return samples


logger = logging.getLogger(__name__)
TIME_FIELDS = frozenset({"start", "end", "at", "confirmed_at", "emission_time"})
MAX_COMMANDS = 64
IDLE_S = 10.0
"""Without audio for so long a session does not count for admission."""
AnySession: TypeAlias = LiveSession | SourcesSession
Command: TypeAlias = Callable[[], Awaitable[None]]
"""A command of the client, run after all audio before it."""


class InputQueue:
    """The audio of a session, and commands or a close code, for one producer and one consumer.

    max_samples: unprocessed audio above which the producer waits.
    """

    def __init__(self, max_samples: float = math.inf) -> None:
        self._max_samples = max_samples
        self._pieces: list[Samples] = []
        self._commands: deque[tuple[int, Command | int]] = deque()
        """With the number of samples before each."""
        self.n_received = 0
        self._n_taken = self._n_processed = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._changed = anyio.Event()

    @property
    def n_samples(self) -> int:
        """Samples that were not processed yet."""
        return self.n_received - self._n_processed

    @property
    def n_ready(self) -> int:
        """Samples before the next command that were not taken yet."""
        return (self._commands[0][0] if self._commands else self.n_received) - self._n_taken

    @property
    def is_empty(self) -> bool:
        return not self.n_samples and not self._commands

    async def put_audio(self, samples: Samples) -> None:
        if len(samples):
            with self._lock:
                self._pieces.append(samples)
                self.n_received += len(samples)
            self._wake()
        while self.n_samples > self._max_samples:
            await self._changed.wait()

    async def put(self, command: Command | int) -> None:
        self._add(command)
        while len(self._commands) > MAX_COMMANDS:
            await self._changed.wait()

    def put_from_thread(self, command: Command) -> None:
        """Put a command, from any thread, without waiting for room."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._add, command)

    def _add(self, command: Command | int) -> None:
        self._commands.append((self.n_received, command))
        self._wake()

    async def next(self, n_due: Callable[[], float]) -> Command | int | None:
        """Wait for the next command, or None when at least `n_due` samples are before it."""
        while self.n_ready < n_due():
            if self._commands:
                return self._commands[0][1]
            await self._changed.wait()
        return None

    def end_command(self) -> None:
        """Remove the command that was run; audio before it that was not taken joins the audio after it."""
        self._commands.popleft()
        self._wake()

    @contextmanager
    def taking(self, most: int) -> Iterator[Samples]:
        """Take samples before the next command, from any thread; they are processed at the end.

        (n,), or (n, n_sources).
        """
        with self._lock:
            n_taken = min(most, self.n_ready)
            waiting = np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.float32)
            self._pieces = [waiting[n_taken:]]
            self._n_taken += n_taken
        try:
            yield waiting[:n_taken]
        finally:
            self._n_processed += n_taken
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def drop(self) -> int:
        """Drop the samples before the next command; return their number."""
        with self.taking(self.n_ready) as dropped:
            return len(dropped)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def words_shifted(words: Sequence[Word], offset_s: float) -> tuple[Word, ...]:
    return tuple(replace(word, start=word.start + offset_s, end=word.end + offset_s) for word in words)


def shifted(event: Event, offset_s: float) -> Event:
    if not offset_s:
        return event
    names = (field.name for field in fields(event) if field.name in TIME_FIELDS)
    changes: dict[str, Any] = {name: getattr(event, name) + offset_s for name in names}
    if isinstance(event, Partial | Final):
        changes["words"] = words_shifted(event.words, offset_s)
    if isinstance(event, Final) and event.committed is not None:
        changes["committed"] = words_shifted(event.committed, offset_s)
    return replace(event, **changes)


@dataclass(slots=True, kw_only=True)
class QueuedTranslator(WhisperTranslator):
    """A translator whose work is queued behind live sessions."""

    worker: Worker
    caller: Caller

    def translate(self, source: SourceText) -> str:
        work = partial(WhisperTranslator.translate, self, source)
        return self.worker.submit(work, Priority.FILE, self.caller).result()


class SessionHandle:
    """One live session, for one call at a time, among those of a scheduler until `end`. queue: its audio.

    final: the model of the second pass; None: the same. on_finals: a command for when finals may be ready.
    replacements: besides those of the options. sources: names, if several share the session. worked_s: engine
    seconds for `audio_s` seconds of audio. fixed_interval_s: between updates; None: it depends on the load.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        options: LiveOptions,
        queue: InputQueue,
        final: Scheduler | None,
        replacements: Replacements | None,
        sources: Sequence[str],
    ) -> None:
        self.sources = sources
        self._scheduler = scheduler
        self._worker = scheduler.worker
        self._model = scheduler.model
        self._options = options
        self._replacements = replacements
        self._final = final
        self.on_finals: Command | None = None
        self.queue = queue
        self.worked_s = self.audio_s = 0.0
        self._is_processing = False
        self._active_s = time.monotonic()
        self._caller = self._worker.runtime.caller(on_work=self._add_work)
        self._numbers = EventNumbers(first=1, n_sources=len(sources) or 1)
        self._session: AnySession | None = None
        self._speakers: LiveSpeakers | None = None
        self._speakers_option = ""
        self._translator: QueuedTranslator | None = None
        self._n_processed = 0
        self._start_sample = 0
        self._opened_s = time.monotonic()
        self.fixed_interval_s: float | None = None

    @property
    def text_filters(self) -> tuple[TextFilter, ...]:
        return self._options.with_rules(self._replacements).text_filters

    @property
    def places(self) -> Fraction:
        return places_of(self._model, self._options, self.sources)

    @property
    def is_idle(self) -> bool:
        """Whether it has had no audio for `IDLE_S`."""
        return not self._is_processing and time.monotonic() - self._active_s > IDLE_S

    @property
    def interval_s(self) -> float:
        return self.fixed_interval_s or self._worker.interval_controller.interval_s

    @property
    def n_due(self) -> float:
        """Samples for an update; at the shortest interval the session itself decides on its updates."""
        return self.interval_s * SAMPLE_RATE if self.interval_s > INTERVALS_S[0] else 1

    @property
    def processed_s(self) -> float:
        return self._n_processed / SAMPLE_RATE

    @property
    def received_s(self) -> float:
        """Seconds of the audio before the next command, while no update is under way."""
        return (self._n_processed + self.queue.n_ready) / SAMPLE_RATE

    async def begin(self) -> None:
        """Make the session, so that invalid options fail before there is audio."""
        self._set_options(self._options, await self._speakers_for(self._options))
        await self._worker.result_of(self._current_session, Priority.LIVE)

    async def update(self) -> list[Event]:
        """Process the next audio; return the events that follow.

        Under load one update takes all waiting audio, also what arrives before it begins.
        """
        return await self._events_of(self._process())

    async def push(self, pcm: Samples) -> list[Event]:
        """Queue samples (n,) float32, mono, 16 kHz; return the events of the updates that are due."""
        await self.queue.put_audio(pcm)
        events: list[Event] = []
        while self.queue.n_ready >= self.n_due:
            events += await self.update()
        return events

    async def finalize(self) -> list[Event]:
        events = await self._events_of(self._finish(closes=False))
        return [*events, *await self._read_finals(lambda session: session.finals(self._options.final_wait_s))]

    async def voices(self, enrolled: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Enroll voices (D,) by name; return those of all speakers so far. Raises: OptionError without
        diarization.
        """
        return await self._worker.result_of(lambda: self._enroll(enrolled), Priority.LIVE)

    async def flush(self) -> list[Event]:
        """Emit the text of the audio so far; the session continues without context."""
        try:
            events = await self._events_of(self._finish(closes=True))
            events += await self._read_finals(lambda session: session.close())
        finally:
            self._session = None
        self._start_sample = self._n_processed
        return events

    def finals(self) -> list[Event]:
        """Return the finals of the second pass that are ready."""
        return [] if self._session is None else self._placed(self._session.finals())

    async def _read_finals(self, wait: Callable[[AnySession], list[Event]]) -> list[Event]:
        """Wait for the second pass, in no thread of the model."""
        session = self._session
        if session is None or self._options.finals != "read":
            return []
        return self._placed(await anyio.to_thread.run_sync(wait, session))

    async def configure(self, options: LiveOptions) -> list[Event]:
        """Continue with other options; the audio so far is emitted under the old ones.

        Raises: as `begin`, with the session unchanged.
        """
        speakers = await self._speakers_for(options)
        session = await self._worker.result_of(lambda: self._make_session(options, speakers), Priority.LIVE)
        events = await self.flush()
        self._set_options(options, speakers)
        self._session = session
        return events

    def translator(self) -> QueuedTranslator:
        """Return the translator of this session into English. Raises: OptionError."""
        caller = self._worker.runtime.caller()
        self._translator = QueuedTranslator(self._model, caller, worker=self._worker, caller=caller)
        return self._translator

    def reset(self) -> None:
        """Drop the session, and the audio before the next command."""
        if self._session is not None:
            self._session.discard()
        self._session = None
        self._n_processed += self.queue.drop()
        self._start_sample = self._n_processed

    def end(self) -> None:
        """Drop the audio so far and leave the model; may be repeated."""
        self.reset()
        self._scheduler.sessions.discard(self)

    @property
    def _priority(self) -> Priority:
        ahead_s = self.received_s - (time.monotonic() - self._opened_s)
        # A session that sends more than 20 s ahead of real time has the priority of recordings.
        return Priority.FILE if ahead_s > 20.0 else Priority.LIVE

    async def _events_of(self, request: Request[list[Event]]) -> list[Event]:
        self._is_processing = True
        try:
            events = await self._worker.answer(request, self._priority, self._caller)
        finally:
            self._is_processing = False
        return self._placed(events)

    def _placed(self, events: Sequence[Event]) -> list[Event]:
        """Return events of the session with times of the whole connection."""
        return [shifted(event, self._start_sample / SAMPLE_RATE) for event in events]

    def _process(self) -> Steps[list[Event]]:
        is_greedy = self._worker.interval_controller.is_greedy
        is_stretched = self.interval_s > INTERVALS_S[0]
        # Under load one update takes all waiting audio.
        most_s = 10.0 if is_stretched else 2.0
        with self.queue.taking(round(most_s * SAMPLE_RATE)) as pcm:
            try:
                return (
                    yield from self._current_session().push_request(
                        pcm.T,
                        newest_only=is_stretched,
                        greedy=is_greedy,
                        realtime=self._priority is Priority.LIVE,
                    )
                )
            finally:
                self._n_processed += len(pcm)
                self.audio_s += len(pcm) / SAMPLE_RATE
                self._active_s = time.monotonic()

    def _finish(self, *, closes: bool) -> Steps[list[Event]]:
        events: list[Event] = []
        while self.queue.n_ready:
            events += yield from self._process()
        session = self._session
        if session is not None:
            events += yield from session.end_request() if closes else session.finalize_request()
        return events

    def _add_work(self, seconds: float) -> None:
        self.worked_s += seconds

    def _enroll(self, enrolled: Mapping[str, Floats]) -> Mapping[str, Floats]:
        self._current_session()
        if not self._options.speakers or self._speakers is None:
            raise OptionError("voices: expected a session that tells speakers apart, got one that does not")
        self._speakers.add_voices(enrolled)
        return self._speakers.voices

    def _current_session(self) -> AnySession:
        if self._session is None:
            self._session = self._make_session(self._options, self._speakers)
        return self._session

    async def _speakers_for(self, options: LiveOptions) -> LiveSpeakers | None:
        """Return the speakers so far, or new ones if the options ask for others."""
        if not options.speakers or (self._speakers is not None and options.speakers == self._speakers_option):
            return self._speakers
        speakers = with_voices(parse_speakers(options.speakers), self._scheduler.voices)
        return await anyio.to_thread.run_sync(make_live_speakers, speakers)

    def _set_options(self, options: LiveOptions, speakers: LiveSpeakers | None) -> None:
        self._options, self._speakers = options, speakers
        self._speakers_option = options.speakers or self._speakers_option

    def _make_session(self, options: LiveOptions, speakers: LiveSpeakers | None) -> AnySession:
        final = self._final if options.finals == "read" else None
        model = self._model
        begin = partial(model.sources_session, self.sources) if self.sources else model.session
        session: AnySession = begin(
            options=options.with_rules(self._replacements),
            final_model=None if final is None else final.model,
            speakers=speakers if options.speakers else None,
            runtime=self._caller,
            final_runtime=(final.worker if final else self._worker).runtime.caller(Priority.FILE),
        )
        session.number_by(self._numbers)
        # Without time to spare the second pass would delay live words.
        controller = self._worker.interval_controller
        session.on_finals(self._call_on_finals, lambda: controller.has_spare_time)
        session.on_window(self._add_window)
        return session

    def _add_window(self, window: AudioWindow, source: str | None = None) -> None:
        if self._translator is not None:
            start_sample = self._start_sample + window.start_sample
            self._translator.add(replace(window, start_sample=start_sample), source)

    def _call_on_finals(self) -> None:
        if self.on_finals is not None:
            self.queue.put_from_thread(self.on_finals)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest:
    options: TranscribeOptions
    languages: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()


@dataclass(slots=True)
class FileJob:
    """One recording under transcription: iterate over its segments. n_prompt_tokens: of its prompt, without
    those that the model does not see.
    """

    _worker: Worker
    _caller: Caller
    _transcription: FileTranscription
    n_prompt_tokens: int
    _second: Caller | None = None

    def __aiter__(self) -> AsyncIterator[Segment]:
        return self

    async def __anext__(self) -> Segment:
        if self._second is not None:
            self._second.begin(Priority.FILE, time.monotonic())
        segment = await self._worker.result_of(
            lambda: next(self._transcription, None), Priority.FILE, self._caller
        )
        if segment is None:
            raise StopAsyncIteration
        return segment

    async def detect_language(self) -> LanguageDetection | None:
        """Read up to the first segment and return the detection of its language, or None."""
        await anext(self, None)
        return self._transcription.detection

    async def collect(self) -> Transcript:
        async for _ in self:
            pass
        return self._transcription.collect()  # at its end: no work is left

    def close(self) -> None:
        self._transcription.close()


def with_voices(
    speakers: SpeakerOptions | Diarizer, voices: Mapping[str, Samples]
) -> SpeakerOptions | Diarizer:
    """Add known voices, by name, to options that can have some; those that these name stay."""
    if not voices or not isinstance(speakers, SpeakerOptions) or speakers.engine != "own":
        return speakers
    return replace(speakers, known={**voices, **speakers.known})


class Scheduler:
    """Live sessions and recordings on one model.

    voices: of known speakers. on_live: called with seconds waited and worked.
    """

    def __init__(
        self,
        model: Recogniser,
        work: Work | None = None,
        *,
        beam_size: int | None = None,
        deferral: DeferralOptions | None = None,
        voices: Mapping[str, Samples] | None = None,
        on_live: Callable[[float, float], None] | None = None,
    ) -> None:
        self.model = model
        self.voices = voices or {}
        self._beam_size = beam_size or model.beam_size
        self._deferral = deferral or DeferralOptions()
        self._fusions = anyio.CapacityLimiter(1)
        self._fusion_of = lru_cache(maxsize=4)(lambda phrases: model.fusion(hotwords=phrases))
        work = work or Work()
        is_cpu = model.runtime.backend.device.type == "cpu"
        n_engines = work.engines or (min(work.threads or n_threads(), MOST_ENGINES) if is_cpu else 1)
        self._is_measured = work.forecast
        self.sessions: set[SessionHandle] = set()
        self.most_sessions: int | None = None
        """Sessions of a given language that the engines keep up with; None: unknown, and all are accepted."""
        self.worker = Worker(
            model.runtime.backend,
            n_engines=n_engines,
            on_live=on_live,
            interval_controller=UpdateIntervalController(time.monotonic(), work.longest_interval_s),
            n_threads=work.threads or n_threads(),
        )

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.model.languages)

    async def open(
        self,
        options: LiveOptions,
        queue: InputQueue | None = None,
        final: Scheduler | None = None,
        *,
        replacements: Replacements | None = None,
        sources: Sequence[str] = (),
    ) -> SessionHandle:
        """Begin a live session. queue: None: `push` alone adds audio. final: of the second pass.

        replacements, sources: see `SessionHandle`.

        Raises: ApiError 429 if it would delay others; OptionError.
        """
        self.check_capacity(places_of(self.model, options, sources))
        handle = SessionHandle(self, options, queue or InputQueue(), final, replacements, sources)
        self.sessions.add(handle)
        try:
            await handle.begin()
        except BaseException:
            handle.end()
            raise
        return handle

    @property
    def n_active(self) -> int:
        """Live sessions with audio; several sources are as many sessions."""
        return sum(len(session.sources) or 1 for session in self.sessions if not session.is_idle)

    def check_capacity(self, places: Fraction = Fraction(1)) -> None:
        """Raises: ApiError 429 if the engines do not keep up with one more session. places: that it takes."""
        taken = sum(session.places for session in self.sessions if not session.is_idle)
        # One session is always accepted by engines that keep up with one.
        most = FOLLOWING if self.most_sessions == 1 else self.most_sessions
        if most is not None and taken + places > most:
            raise overloaded(self.n_active)

    async def calibrate(self) -> None:
        if not self._is_measured:
            return
        try:
            self.most_sessions = await measured_capacity(self.open, len(self.worker.runtime.states))
        except Exception:
            logger.exception("what a live session costs could not be measured: all are taken")

    async def transcribe(
        self, source: AudioSource, request: TranscriptionRequest, second: Scheduler | None = None
    ) -> FileJob:
        """Begin a recording. second: reads uncertain parts again. Raises: AudioError, OptionError."""
        fusion = await anyio.to_thread.run_sync(self.fusion, request, limiter=self._fusions)
        prompt = self._n_tokens(request.options.initial_prompt)
        other: SecondModel | None = None
        caller: Caller | None = None
        if second is not None and self._can_retry(second, request):
            of_second = await anyio.to_thread.run_sync(second.fusion, request, limiter=self._fusions)
            caller = second.worker.runtime.caller()
            other = second.model.as_second(self._deferral, of_second, caller)
        calls, options = self.worker.runtime.caller(), request.options
        if options.speakers is not None:
            options = replace(options, speakers=with_voices(options.speakers, self.voices))
        if request.phrases and fusion is None:
            # A greedy search has no scores to add to: they go before the prompt.
            hotwords = ", ".join(request.phrases)
            options = replace(options, decoding=replace(options.decoding, hotwords=hotwords))
        begin = partial(
            self.model.transcribe,
            source,
            language=list(request.languages) or None,
            beam_size=self._beam_size_of(request),
            options=options,
            fusion=fusion,
            second=other,
            runtime=calls,
        )
        transcription = await self.worker.result_of(begin, Priority.FILE)
        return FileJob(self.worker, calls, transcription, prompt, caller)

    def _can_retry(self, second: Scheduler, request: TranscriptionRequest) -> bool:
        """A second model cannot read clips, and that of a single language only this."""
        if request.options.clip_timestamps:
            return False
        chosen = self.model.options(request.options, language=list(request.languages) or None)
        languages = second.model.languages
        return len(languages) > 1 or chosen.decoding.language in languages

    def close(self) -> None:
        self.worker.close()

    def join(self, timeout_s: float) -> None:
        self.worker.join(timeout_s)

    def _n_tokens(self, prompt: str | None) -> int:
        # as much as fits into Whisper's prompt
        return min(self.model.n_prompt_tokens(prompt), 223) if prompt else 0

    def _beam_size_of(self, request: TranscriptionRequest) -> int:
        return request.options.decoding.beam_size or self._beam_size

    def fusion(self, request: TranscriptionRequest) -> LanguageModels | None:
        """Return the fusion of boosted phrases, or None; it may take long to build."""
        if not request.phrases or self._beam_size_of(request) == 1:
            return None
        return self._fusion_of(request.phrases)
