"""The interface to a model: live sessions and recordings go in, events and segments come out.

The model runs in the threads of a `Worker`, whose runtime batches calls. The cost of a live session is
measured when a model is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeAlias

import anyio
import anyio.to_thread
import numpy as np

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.offline.transcriber import SecondModel
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.fallback import DeferralOptions
from sottovoce.options.live import LiveOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import THREADS, Caller, Priority
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.server.admission import FORECAST_INTERVAL_S, LoadForecast
from sottovoce.server.session_handle import SessionHandle
from sottovoce.server.settings import MOST_ENGINES, Work
from sottovoce.server.worker import Worker
from sottovoce.types import SAMPLE_RATE, Samples, Segment, Transcript

SPEECH_FACTOR = 1.75
"""Cost of speech relative to the sound: words cost 1.4 times as much, and more in batches (base)."""
SOUND_S, WARM_UP_S, PIECE_S = 4.0, 1.0, 0.5
CALIBRATION_TIMEOUT_S = 5.0
OpenSession: TypeAlias = Callable[[LiveOptions], Awaitable[SessionHandle]]
PITCH_HZ, SYLLABLES_HZ, N_HARMONICS = 120.0, 3.0, 20
logger = logging.getLogger(__name__)
MAX_PROMPT_TOKENS = 223
MAX_CACHED_FUSIONS = 4


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    options: TranscribeOptions
    languages: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()


async def calibrate(open_session: OpenSession, n_engines: int) -> float:
    """Measure the cost of a live session, with one session for each engine.

    Returns engine seconds per second of speech at `FORECAST_INTERVAL_S`; 0: unknown.
    """
    options = LiveOptions(vad=False)
    handles = [await open_session(options) for _ in range(n_engines)]
    try:
        costs = await asyncio.gather(*(measure_cost(handle, voice_like_sound()) for handle in handles))
    finally:
        for handle in handles:
            handle.end()
    measured = [cost for cost in costs if cost > 0]
    return SPEECH_FACTOR * sum(measured) / len(measured) if measured else 0.0


async def measure_cost(handle: SessionHandle, sound: Samples) -> float:
    """Return the engine seconds per second of a sound (n,), its first second excepted; 0: unknown."""
    handle.fixed_interval_s = FORECAST_INTERVAL_S
    ends_s = time.monotonic() + CALIBRATION_TIMEOUT_S
    step, n_warm_up = round(PIECE_S * SAMPLE_RATE), round(WARM_UP_S * SAMPLE_RATE)
    await handle.push(sound[:n_warm_up])
    worked_s, audio_s = handle.load.worked_s, handle.load.audio_s
    for start in range(n_warm_up, len(sound), step):
        await handle.push(sound[start : start + step])
        if time.monotonic() > ends_s and handle.load.audio_s > audio_s:
            break
    new_audio_s = handle.load.audio_s - audio_s
    return (handle.load.worked_s - worked_s) / new_audio_s if new_audio_s > 0 else 0.0


def voice_like_sound(seconds: float = SOUND_S) -> Samples:
    """Return a sound (n,) float32 with the pitch, harmonics and syllables of a voice."""
    at_s = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitch_hz = PITCH_HZ * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * at_s))
    phase = 2 * np.pi * np.cumsum(pitch_hz) / SAMPLE_RATE
    harmonics = np.sum([np.sin(k * phase) / k for k in range(1, N_HARMONICS)], axis=0)
    sound = 0.2 * harmonics * np.clip(np.sin(2 * np.pi * SYLLABLES_HZ * at_s), 0, 1)
    noise = 0.01 * np.random.default_rng(0).standard_normal(len(at_s))
    made: Samples = (sound + noise).astype(np.float32)
    return made


class FileJob:
    """One recording under transcription: iterate over its segments as they are found.

    caller, second: through which it calls the model, and a second one or None. n_prompt_tokens: of its
    prompt, truncated to what the model sees.
    """

    def __init__(
        self,
        worker: Worker,
        caller: Caller,
        transcription: FileTranscription,
        n_prompt_tokens: int,
        second: Caller | None = None,
    ) -> None:
        self._worker = worker
        self._caller = caller
        self._transcription = transcription
        self._second = second
        self.n_prompt_tokens = n_prompt_tokens

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

    async def collect(self) -> Transcript:
        async for _ in self:
            pass
        return self._transcription.collect()  # at its end: no work is left

    def close(self) -> None:
        self._transcription.close()


class Scheduler:
    """Live sessions and recordings on one model.

    beam_size: of recordings; 1 is greedy. deferral: parts that a second model reads again. on_live: called
    with seconds waited and worked of live work.
    """

    def __init__(
        self,
        model: Model,
        work: Work | None = None,
        *,
        beam_size: int = 5,
        deferral: DeferralOptions | None = None,
        on_live: Callable[[float, float], None] | None = None,
    ) -> None:
        self.model = model
        self._beam_size = beam_size
        self._deferral = deferral or DeferralOptions()
        self._fusions = anyio.CapacityLimiter(1)
        self._fusion_of = lru_cache(MAX_CACHED_FUSIONS)(lambda phrases: model.fusion(hotwords=phrases))
        work = work or Work()
        n_engines = engines_for(model, work)
        self._is_forecast = work.forecast
        self.forecast = LoadForecast(n_engines)
        self.worker = Worker(
            model.backend,
            n_engines=n_engines,
            on_live=on_live,
            interval_controller=UpdateIntervalController(time.monotonic(), work.longest_interval_s),
            n_threads=work.threads or THREADS,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.model.languages)

    async def open(self, options: LiveOptions) -> SessionHandle:
        """Begin a live session. Raises: ApiError 429 if it would delay others; OptionError."""
        load = self.forecast.enter()
        handle = SessionHandle(self.worker, self.model, options, load=load, on_end=self.forecast.leave)
        try:
            await handle.begin()
        except BaseException:
            handle.end()
            raise
        return handle

    async def calibrate(self) -> None:
        if not self._is_forecast:
            return
        try:
            self.forecast.set_cost(await calibrate(self.open, len(self.worker.runtime.states)))
        except Exception:
            logger.exception("what a live session costs could not be measured: all are taken")

    async def transcribe(
        self, source: AudioSource, request: TranscriptionRequest, second: Scheduler | None = None
    ) -> FileJob:
        """Begin a recording, which stays open until the job is closed.

        second: reads uncertain parts again where it can. Raises: AudioError, OptionError.
        """
        fusion = await anyio.to_thread.run_sync(self.fusion, request, limiter=self._fusions)
        prompt = self._n_tokens(request.options.initial_prompt)
        other: SecondModel | None = None
        caller: Caller | None = None
        if second is not None and self._can_retry(second, request):
            of_second = await anyio.to_thread.run_sync(second.fusion, request, limiter=self._fusions)
            caller = second.worker.runtime.caller()
            other = second.model.as_second(self._deferral, of_second, caller)
        own = self.worker.runtime.caller()
        begin = partial(self._begin, source, request, fusion, other, own)
        transcription = await self.worker.result_of(begin, Priority.FILE)
        return FileJob(self.worker, own, transcription, prompt, caller)

    def _can_retry(self, second: Scheduler, request: TranscriptionRequest) -> bool:
        """Whether a second model can read a request: not with clips, and an English-only one only English."""
        if request.options.clip_timestamps:
            return False
        chosen = self.model.options(list(request.languages) or None, None, None, None, request.options)
        is_english = not self.model.tokenizer.is_multilingual or chosen.decoding.language == "en"
        return second.model.tokenizer.is_multilingual or is_english

    def close(self) -> None:
        self.worker.close()

    def join(self, timeout_s: float) -> None:
        self.worker.join(timeout_s)

    def _n_tokens(self, prompt: str | None) -> int:
        tokens = self.model.tokenizer.encode(" " + prompt.strip()) if prompt else []
        return min(len(tokens), MAX_PROMPT_TOKENS)

    def _beam_size_of(self, request: TranscriptionRequest) -> int:
        return request.options.decoding.beam_size or self._beam_size

    def fusion(self, request: TranscriptionRequest) -> ShallowFusion | None:
        """Return the fusion of boosted phrases, or None; it may take long to build."""
        if not request.phrases or self._beam_size_of(request) == 1:
            return None
        return self._fusion_of(request.phrases)

    def _begin(
        self,
        source: AudioSource,
        request: TranscriptionRequest,
        fusion: ShallowFusion | None,
        second: SecondModel | None,
        caller: Caller,
    ) -> FileTranscription:
        options, beam_size = request.options, self._beam_size_of(request)
        if request.phrases and fusion is None:
            # A greedy search has no scores to add to: they go before the prompt.
            hotwords = ", ".join(request.phrases)
            options = replace(options, decoding=replace(options.decoding, hotwords=hotwords))
        return self.model.transcribe(
            source,
            language=list(request.languages) or None,
            beam_size=beam_size,
            options=options,
            fusion=fusion,
            second=second,
            runtime=caller,
        )


def engines_for(model: Model, work: Work) -> int:
    is_cpu = model.backend.device.type == "cpu"
    return work.engines or (min(work.threads or THREADS, MOST_ENGINES) if is_cpu else 1)
