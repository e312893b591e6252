"""What the parts of a running server share."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import cast

import anyio
import anyio.to_thread
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import HTTPConnection

from sottovoce.formats.document import Json
from sottovoce.serving.access.api_keys import ApiKey, KeyRing
from sottovoce.serving.access.client_secrets import ClientSecrets
from sottovoce.serving.access.key_limits import KeyLimits
from sottovoce.serving.captions import CaptionRegistry
from sottovoce.serving.jobs.job_runner import JobRunner
from sottovoce.serving.jobs.transcription_job import JOB_STATES
from sottovoce.serving.metrics import Metrics
from sottovoce.serving.parsing.faults import busy, leaving
from sottovoce.serving.recordings.decode_pool import DecodePool
from sottovoce.serving.scheduling.engine_thread import EngineState
from sottovoce.serving.scheduling.model_registry import WORK_ENDS_WITHIN_S, ModelRegistry
from sottovoce.serving.scheduling.model_work import ModelWork
from sottovoce.serving.scheduling.overload import LOOK_EVERY_S, OverloadWatch
from sottovoce.serving.settings import UPLOADS_A_PLACE, ServerSettings
from sottovoce.serving.tracing import make_tracing

UNLOAD_EVERY_S = 5.0
REQUESTS_A_JOB = 4
"""Recordings that may be answered at once, for each job that may be under way beside them."""
LOOK_AT_KEYS_EVERY_S = 1.0


class Services(Collector):
    """Settings, models and counts of a server, and who is being served.

    Raises: OptionError for a file of keys that is none, and a folder of jobs that cannot be had.
    """

    def __init__(self, settings: ServerSettings, registry: ModelRegistry, metrics: Metrics) -> None:
        self.settings = settings
        self.registry = registry
        self.metrics = metrics
        self._lags: dict[int, Callable[[], float]] = {}
        """How far behind each live session is."""
        self._lag_numbers = itertools.count()
        self.n_requests = 0
        self.n_uploads = 0
        self.upload_bytes = 0
        """Of all recordings that are here or on their way."""
        self.decoding = DecodePool()
        self.inference_model = settings.models.model
        """Of whisper.cpp's `/inference`, which names none."""
        self.captions = CaptionRegistry(sessions=settings.limits.sessions, readers=settings.limits.readers)
        self.overload = OverloadWatch(settings.limits.wait_s)
        self.tracing = make_tracing(settings.traces)
        self.is_ready = not settings.models.preload
        self.secrets = ClientSecrets(settings.access.secret_key)
        self.keys = KeyRing(settings.access)
        self.key_limits = KeyLimits(metrics)
        self.jobs: JobRunner | None = None
        if settings.jobs is not None:
            n_at_once = max(1, settings.limits.requests // REQUESTS_A_JOB)
            self.jobs = JobRunner(
                settings.jobs,
                registry,
                self.decoding,
                metrics,
                self.keys,
                n_at_once=n_at_once,
                tracing=self.tracing,
            )
        self.preload_error: Exception | None = None
        """Why a model that the server begins with could not be loaded."""
        self._leaving = anyio.Event()
        self._cut = anyio.Event()
        self.ends_process = False
        """Whether threads that are at work when the server ends need not be waited for."""
        metrics.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield what is so at this moment, for Prometheus."""
        now = {
            "sessions": ("Live sessions now.", self.n_sessions),
            "behind_s": (
                "Seconds of received audio that no event accounts for yet, in the session furthest behind.",
                self.behind_s,
            ),
            "caption_readers": ("Readers of captions that are shared.", self.captions.n_readers),
            "recordings": ("Recordings being transcribed or waiting.", self.n_requests),
            "upload_bytes": ("Bytes of recordings that are here.", self.upload_bytes),
            "failing": ("Whether a model cannot work any more.", int(self.trouble is not None)),
            "models_loaded": ("Models in memory.", len(self.registry.schedulers)),
            "model_bytes": ("Bytes of models' weights in memory, by their size.", self.registry.n_bytes),
            "work_waiting": (
                "Pieces of work that wait for a model.",
                sum(scheduler.n_waiting for scheduler in self.registry.schedulers),
            ),
        }
        for name, (meaning, value) in now.items():
            yield GaugeMetricFamily(f"sottovoce_{name}", meaning, value)
        if self.jobs is not None:
            jobs = GaugeMetricFamily("sottovoce_jobs_here", "Jobs by what they are at.", labels=("status",))
            for status in JOB_STATES:
                jobs.add_metric((status,), self.jobs.count(status))
            yield jobs
            yield GaugeMetricFamily(
                "sottovoce_job_bytes", "Of jobs' recordings and results.", self.jobs.n_bytes
            )
        labels = ("model", "engine")
        busy = GaugeMetricFamily(
            "sottovoce_engine_busy", "The part of the time that an engine is at work.", labels=labels
        )
        updates = GaugeMetricFamily(
            "sottovoce_engine_updates", "Updates of live sessions under way in an engine.", labels=labels
        )
        for place, state in engines_of(self.registry):
            busy.add_metric(place, state.busy)
            updates.add_metric(place, state.n_live)
        forecast = GaugeMetricFamily(
            "sottovoce_load_forecast",
            "The part of the engines' time that live sessions take if all speak.",
            labels=labels[:1],
        )
        for name, scheduler in self.registry.running.items():
            forecast.add_metric((name,), scheduler.forecast.part)
        yield from (busy, updates, forecast)

    @property
    def trouble(self) -> str | None:
        """What keeps a model from working, which no other request will mend; None: nothing does."""
        stall_s = self.settings.limits.stall_s
        found = [scheduler.trouble(stall_s) for scheduler in self.registry.schedulers]
        return next((what for what in found if what is not None), None)

    @property
    def n_sessions(self) -> int:
        """Live sessions that have a place."""
        return len(self._lags)

    @property
    def behind_s(self) -> float:
        """Seconds of received audio that no event accounts for yet, in the session furthest behind."""
        return max((lag() for lag in self._lags.values()), default=0.0)

    @property
    def is_leaving(self) -> bool:
        """Whether the server goes down: nobody new is served."""
        return self._leaving.is_set()

    def leave(self) -> None:
        """Let live sessions come to their end, and take nobody new."""
        self._leaving.set()

    @property
    def is_serving(self) -> bool:
        """Whether anybody is being served."""
        return self.n_sessions + self.n_requests + self.n_uploads > 0

    def cut(self) -> None:
        """Let requests end with what there is to say of that."""
        self._cut.set()

    async def until_cut(self) -> None:
        """Wait until the server cannot wait any longer."""
        await self._cut.wait()

    async def until_leaving(self) -> None:
        """Wait until the server goes down."""
        await self._leaving.wait()

    @contextmanager
    def upload(self, *, is_for_later: bool = False) -> Iterator[None]:
        """Take a place for a recording while it comes.

        Raises: ApiError as `recording`, also where that would be raised now, if it is not for later.
        """
        if self.is_leaving:
            raise leaving()
        if not is_for_later:
            with self.recording():
                pass
        most = UPLOADS_A_PLACE * self.settings.limits.requests
        if self.n_uploads >= most:
            raise busy(f"{most} recordings are being sent: try again later", retry_s=10.0)
        self.n_uploads += 1
        try:
            yield
        finally:
            self.n_uploads -= 1

    @contextmanager
    def uploaded_bytes(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of one upload, by what is yielded, as long as it is kept.

        Raises: ApiError 429 from that, where all uploads together are too large.
        """
        taken = 0

        def take(n_bytes: int) -> None:
            nonlocal taken
            limits = self.settings.limits
            if self.upload_bytes + n_bytes > limits.uploads_bytes:
                raise busy(f"{limits.uploads_mb:g} MB of recordings are here: try again later", retry_s=10.0)
            taken += n_bytes
            self.upload_bytes += n_bytes

        try:
            yield take
        finally:
            self.upload_bytes -= taken

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Take a place for one recording.

        Raises: ApiError 429 when there is none, 503 when the server goes down.
        """
        if self.is_leaving:
            raise leaving()
        most = self.settings.limits.requests
        if self.n_requests >= most:
            raise busy(f"{most} recordings are being transcribed: try again later", retry_s=10.0)
        self.n_requests += 1
        try:
            yield
        finally:
            self.n_requests -= 1

    @contextmanager
    def session(self, behind_s: Callable[[], float] = float) -> Iterator[None]:
        """Take a place for one live session. behind_s: how late it is.

        Raises: ApiError as `recording`.
        """
        if self.is_leaving:
            raise leaving()
        most = self.settings.limits.sessions
        if self.n_sessions >= most:
            raise busy(f"{most} live sessions are open: try again later", retry_s=10.0)
        number = next(self._lag_numbers)
        self._lags[number] = behind_s
        try:
            yield
        finally:
            del self._lags[number]

    def check_room(self, name: str) -> None:
        """Check that a model, where it is there, has room for a session. Raises: ApiError 429."""
        if (scheduler := self.registry.running.get(name)) is not None:
            self.check_wait(scheduler)
            scheduler.forecast.check()

    def check_wait(self, scheduler: ModelWork) -> None:
        """Check the load. Raises: ApiError 429 where live work waits too long to take on more of it."""
        waits_s, most_s = scheduler.live_wait_s, self.settings.limits.wait_s
        if waits_s > most_s:
            raise busy(f"live audio waits {waits_s:.1f} s for the model: try again later", retry_s=waits_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the default model beside what else goes on, unload idle ones, and end them all."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._unload_idle)
                if self.settings.work.forecast:
                    tasks.start_soon(self._look_after_sessions)
                if self.jobs is not None:
                    tasks.start_soon(self._run_jobs, self.jobs)
                if self.keys.has_file:
                    tasks.start_soon(self._refresh_keys)
                if self.settings.models.preload:
                    tasks.start_soon(self._preload)
                yield
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()

    async def _end(self) -> None:
        """End jobs, threads and models."""
        if self.jobs is not None:
            self.jobs.close()
        within_s = 0.0 if self.ends_process else WORK_ENDS_WITHIN_S
        await anyio.to_thread.run_sync(self.decoding.close, not self.ends_process)
        await anyio.to_thread.run_sync(self.registry.close, within_s)
        await anyio.to_thread.run_sync(self.tracing.close)

    async def _preload(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                for name in self.settings.models.at_start:
                    await stack.enter_async_context(self.registry.use(name))
                self.is_ready = True
        except Exception as error:
            self.preload_error = error

    async def _run_jobs(self, jobs: JobRunner) -> None:
        """Work jobs off until the server goes down: then what somebody waits for has the model alone."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(jobs.run)
            await self.until_leaving()
            tasks.cancel_scope.cancel()

    async def _refresh_keys(self) -> None:
        while True:
            await anyio.sleep(LOOK_AT_KEYS_EVERY_S)
            await anyio.to_thread.run_sync(self.keys.refresh)

    async def _look_after_sessions(self) -> None:
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            self.overload.look()

    async def _unload_idle(self) -> None:
        while True:
            await anyio.sleep(UNLOAD_EVERY_S)
            self.registry.unload_idle()
            await self.registry.free()


def engines_of(registry: ModelRegistry) -> list[tuple[tuple[str, str], EngineState]]:
    """List every engine: its model and number, and what it is at."""
    return [
        ((name, str(number)), state)
        for name, scheduler in registry.running.items()
        for number, state in enumerate(scheduler.engines)
    ]


def engine_states(services: Services) -> list[dict[str, Json]]:
    """Render what every engine is at."""
    return [
        {
            "model": model,
            "engine": int(number),
            "live_updates": state.n_live,
            "recording": state.has_recording,
            "busy": round(state.busy, 2),
        }
        for (model, number), state in engines_of(services.registry)
    ]


def services_of(connection: HTTPConnection) -> Services:
    """Return the services of the server that a request or socket belongs to."""
    return cast(Services, connection.app.state.services)


def key_of(connection: HTTPConnection) -> ApiKey | None:
    """Return the key that a request or socket came in with; None: with none."""
    return cast("ApiKey | None", connection.scope["state"].get("key"))
