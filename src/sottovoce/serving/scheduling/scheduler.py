"""The one seam to the model: live sessions and recordings go in, events and segments come out.

Whoever asks waits for a future; the model runs in the threads of a `Worker`, where executors put together
what live sessions and recordings ask for. How that is done is decided behind this seam, and nowhere else in
the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import anyio
import anyio.to_thread

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource
from sottovoce.engine.batching import ON_ACCELERATOR, ON_CPU, BatchingExecutor
from sottovoce.engine.calls import CallGenerator, OtherModelCall
from sottovoce.engine.relay import CallRelay
from sottovoce.engine.tasks import Priority
from sottovoce.engine.update_interval import UpdateIntervalController
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.offline.transcriber import SecondModel
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.fallback import DeferralOptions
from sottovoce.options.live import LiveOptions
from sottovoce.serving.scheduling.calibration import calibrate
from sottovoce.serving.scheduling.engine_thread import THREADS, EngineState
from sottovoce.serving.scheduling.load_forecast import LoadForecast
from sottovoce.serving.scheduling.model_work import ModelWork, TranscriptionRequest
from sottovoce.serving.scheduling.session_handle import SessionHandle
from sottovoce.serving.scheduling.worker import Worker
from sottovoce.serving.settings import MOST_ENGINES, Work
from sottovoce.types import Segment, Transcript

T = TypeVar("T")
logger = logging.getLogger(__name__)

MAX_PROMPT_TOKENS = 223
KEPT_FUSIONS = 4
"""Lists of phrases that are kept ready for the next recording with the same ones."""


class FileJob:
    """One recording being transcribed: iterate over its segments as they are found.

    second: does the calls of the second model, so that nothing else waits for them. n_prompt_tokens: of its
    prompt, as far as the model sees it.
    """

    def __init__(
        self,
        worker: Worker,
        start: Callable[[], FileTranscription],
        n_prompt_tokens: int,
        second: Worker | None = None,
    ) -> None:
        self._worker = worker
        self._start = start
        self._second = second
        self._is_closed = False
        self.n_prompt_tokens = n_prompt_tokens
        self._running: FileTranscription | None = None

    async def begin(self) -> None:
        """Look at the options and open the recording.

        Raises: AudioError, OptionError.
        """
        self._running = await self._worker.result_of(self._start, Priority.FILE)

    def __aiter__(self) -> AsyncIterator[Segment]:
        return self

    async def __anext__(self) -> Segment:
        running = self._running
        assert running is not None, "begin() first"
        segment = await self._done(running.next_segment())
        if segment is None:
            raise StopAsyncIteration
        return segment

    async def _done(self, calls: CallGenerator[Segment | None]) -> Segment | None:
        """Have calls done, each by its own model's engines."""
        first = self._relayed(calls)
        while isinstance(found := await in_turn(self._worker, first), OtherModelCall):
            assert self._second is not None
            try:
                first.answer(await in_turn(self._second, self._relayed(found.calls)))
            except Exception as error:
                first.fail(error)
        return found

    def _relayed(self, calls: CallGenerator[T]) -> CallRelay[T]:
        return CallRelay(calls, lambda: self._is_closed)

    async def collect(self) -> Transcript:
        """Return what was found, with what is left to find."""
        running = self._running
        assert running is not None, "begin() first"
        async for _ in self:
            pass
        return running.collect()  # at its end: no work is left

    def close(self) -> None:
        """Stop; harmless at the end."""
        self._is_closed = True
        if self._running is not None:
            self._running.close()


async def in_turn(worker: Worker, calls: CallRelay[T]) -> T | OtherModelCall | None:
    """Have calls of a recording done up to one of another model."""
    return await asyncio.wrap_future(worker.submit_calls(calls.until_other(), Priority.FILE))


class Scheduler:
    """All that is asked of one model.

    beam_size: of recordings; 1 is greedy. deferral: what of them a second model reads, where there is one.
    on_live: told seconds waited and worked of live work.
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
        self._on_live = on_live
        self._fusions = anyio.CapacityLimiter(1)
        self._fusion_of = lru_cache(KEPT_FUSIONS)(lambda phrases: model.fusion(hotwords=phrases))
        work = work or Work()
        engines = engines_for(model, work)
        self._is_forecast = work.forecast
        self.forecast = LoadForecast(len(engines), work.longest_interval_s)
        self._worker = Worker(
            self._note,
            engines,
            interval_controller=UpdateIntervalController(time.monotonic(), work.longest_interval_s),
            n_threads=work.threads or THREADS,
            # A thread that waits for an accelerator may sleep: its processor time says nothing of the work.
            work_clock=time.thread_time if model.backend.device.type == "cpu" else time.monotonic,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """Of the model, by their codes."""
        return tuple(self.model.languages)

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
            self.forecast.begin(await calibrate(self.open, len(self.engines)))
        except Exception:
            logger.exception("what a live session costs could not be measured: all are taken")

    async def transcribe(
        self, source: AudioSource, request: TranscriptionRequest, second: ModelWork | None = None
    ) -> FileJob:
        """Begin with a recording, which stays open until the job is closed.

        second: a `Scheduler` whose model reads what this one is not sure of, where it can; see `_can_read`.
        Raises: AudioError, OptionError.
        """
        fusion = await anyio.to_thread.run_sync(self._fusion, request, limiter=self._fusions)
        prompt = self._n_tokens(request.options.initial_prompt)
        other = await self._second_model(request, second)
        worker = second._worker if isinstance(second, Scheduler) else None
        job = FileJob(self._worker, lambda: self._begin(source, request, fusion, other), prompt, worker)
        await job.begin()
        return job

    async def _second_model(
        self, request: TranscriptionRequest, second: ModelWork | None
    ) -> SecondModel | None:
        """Return what reads a recording beside this model; None where nothing does."""
        if second is None:
            return None
        assert isinstance(second, Scheduler), "settings have it in this process"
        if not self._can_read(second, request):
            return None
        fusion = await anyio.to_thread.run_sync(second._fusion, request, limiter=self._fusions)
        return second.model.as_second(self._deferral, fusion)

    def _can_read(self, second: Scheduler, request: TranscriptionRequest) -> bool:
        """Whether a second model can read what is asked for: no clips, and in English alone only English."""
        if request.options.clip_timestamps:
            return False
        chosen = self.model.options(list(request.languages) or None, None, None, None, request.options)
        is_english = not self.model.tokenizer.is_multilingual or chosen.decoding.language == "en"
        return second.model.tokenizer.is_multilingual or is_english

    def close(self) -> None:
        """End the thread after the work at hand."""
        self._worker.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._worker.join(timeout_s)

    def _n_tokens(self, prompt: str | None) -> int:
        """Count the tokens of a prompt that the model sees."""
        tokens = self.model.tokenizer.encode(" " + prompt.strip()) if prompt else []
        return min(len(tokens), MAX_PROMPT_TOKENS)

    def _beam_size_of(self, request: TranscriptionRequest) -> int:
        return request.options.decoding.beam_size or self._beam_size

    def _fusion(self, request: TranscriptionRequest) -> ShallowFusion | None:
        """Make what boosts phrases in a beam; many take a while, which no thread of the model spends."""
        if not request.phrases or self._beam_size_of(request) == 1:
            return None
        return self._fusion_of(request.phrases)

    def _begin(
        self,
        source: AudioSource,
        request: TranscriptionRequest,
        fusion: ShallowFusion | None,
        second: SecondModel | None,
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
            second=second,
        )

    def _note(self, priority: Priority, waited_s: float, worked_s: float) -> None:
        if priority is Priority.LIVE and self._on_live is not None:
            self._on_live(waited_s, worked_s)


def engines_for(model: Model, work: Work) -> list[BatchingExecutor]:
    """Engines of a model, that share its weights."""
    backend = model.backend
    is_cpu = backend.device.type == "cpu"
    n_engines = work.engines or (min(work.threads or THREADS, MOST_ENGINES) if is_cpu else 1)
    limits = ON_CPU if is_cpu else ON_ACCELERATOR
    batching = replace(
        limits,
        encoder_frames=work.encoder_frames or limits.encoder_frames,
        rows=work.rows or limits.rows,
    )
    return [BatchingExecutor(backend, batching, file_share=work.file_share) for _ in range(n_engines)]
