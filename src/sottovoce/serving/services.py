"""The shared state of a running server."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TypeVar, cast

import anyio
import anyio.to_thread
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import HTTPConnection

from sottovoce.engine.batching import EngineState
from sottovoce.formats.document import Json
from sottovoce.serving.access.api_keys import ApiKey, KeyLimits, KeyRing
from sottovoce.serving.access.gate import ClientSecrets
from sottovoce.serving.captions import CaptionRegistry
from sottovoce.serving.jobs import JOB_STATUSES, JobRunner
from sottovoce.serving.parsing.faults import ApiError, busy, leaving
from sottovoce.serving.recordings.decode_pool import DecodePool
from sottovoce.serving.scheduling.model_registry import WORK_ENDS_WITHIN_S, ModelRegistry
from sottovoce.serving.scheduling.overload import LOOK_EVERY_S, OverloadWatch
from sottovoce.serving.scheduling.scheduler import Scheduler
from sottovoce.serving.settings import UPLOADS_A_PLACE, ServerSettings
from sottovoce.serving.telemetry import Metrics, Tracing, make_provider

T = TypeVar("T")


UNLOAD_EVERY_S = 5.0
REQUESTS_A_JOB = 4
"""Recordings that may be answered at once, for each job that may be under way at the same time."""
LOOK_AT_KEYS_EVERY_S = 1.0
ENGINE_LABELS = ("model", "engine")


class Services(Collector):
    """Settings, models, counts and limits of a server.

    Raises: OptionError for an invalid file of keys, or a folder of jobs that cannot be used.
    """

    def __init__(self, settings: ServerSettings, registry: ModelRegistry, metrics: Metrics) -> None:
        self.settings = settings
        self.registry = registry
        self.metrics = metrics
        self._lags: dict[int, Callable[[], float]] = {}
        """Functions that return the lag of each live session, in seconds."""
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
        self.tracing = Tracing(make_provider() if settings.traces else None)
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
        """The process ends with the server: threads that are at work are not waited for."""
        metrics.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield current values for Prometheus."""
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
            counts = [((status,), self.jobs.count(status)) for status in JOB_STATUSES]
            yield gauges("jobs_here", "Jobs by what they are at.", ("status",), counts)
            yield GaugeMetricFamily(
                "sottovoce_job_bytes", "Of jobs' recordings and results.", self.jobs.n_bytes
            )
        engines = engines_of(self.registry)
        busy = [(place, state.busy) for place, state in engines]
        yield gauges("engine_busy", "The part of the time that an engine is at work.", ENGINE_LABELS, busy)
        updates = [(place, state.n_live) for place, state in engines]
        meaning = "Updates of live sessions under way in an engine."
        yield gauges("engine_updates", meaning, ENGINE_LABELS, updates)
        forecasts = [((name,), one.forecast.part) for name, one in self.registry.running.items()]
        meaning = "The part of the engines' time that live sessions take if all speak."
        yield gauges("load_forecast", meaning, ENGINE_LABELS[:1], forecasts)

    @property
    def trouble(self) -> str | None:
        """The reason why a model does not work, or None."""
        stall_s = self.settings.limits.stall_s
        found = [scheduler.trouble(stall_s) for scheduler in self.registry.schedulers]
        return next((what for what in found if what is not None), None)

    @property
    def n_sessions(self) -> int:
        return len(self._lags)

    @property
    def behind_s(self) -> float:
        """Largest delay of a session: seconds of received audio that no event covers yet."""
        return max((lag() for lag in self._lags.values()), default=0.0)

    @property
    def is_leaving(self) -> bool:
        return self._leaving.is_set()

    def leave(self) -> None:
        """Begin the shutdown: live sessions end, and new requests are refused."""
        self._leaving.set()

    @property
    def is_serving(self) -> bool:
        return self.n_sessions + self.n_requests + self.n_uploads > 0

    def cut(self) -> None:
        self._cut.set()

    async def until_cut(self) -> None:
        await self._cut.wait()

    async def until_leaving(self) -> None:
        await self._leaving.wait()

    @contextmanager
    def upload(self, *, is_for_later: bool = False) -> Iterator[None]:
        """Take a place for an upload.

        Raises: ApiError as `recording`, which is checked too unless the recording is for later.
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
        """Yield a function that counts the bytes of one upload until the context ends.

        The function raises ApiError 429 if all uploads together are too large.
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
        """Take a place for a recording.

        Raises: ApiError 429 without a place, 503 during the shutdown.
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
        """Take a place for a live session. behind_s: its delay.

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
        """Check that a loaded model has room for a session. Raises: ApiError 429."""
        if (scheduler := self.registry.running.get(name)) is not None:
            self.check_wait(scheduler)
            scheduler.forecast.check()

    def check_wait(self, scheduler: Scheduler) -> None:
        """Check that live work does not wait too long. Raises: ApiError 429."""
        waits_s, most_s = scheduler.live_wait_s, self.settings.limits.wait_s
        if waits_s > most_s:
            raise busy(f"live audio waits {waits_s:.1f} s for the model: try again later", retry_s=waits_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run background tasks, and end models and threads at the exit."""
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
        """Run jobs until the shutdown, when the model is left to clients that wait."""
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


def gauges(
    name: str, meaning: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"sottovoce_{name}", meaning, labels=labels)
    for place, value in values:
        family.add_metric(place, value)
    return family


async def unless(ends: Callable[[], Awaitable[object]], work: Awaitable[T], fault: ApiError) -> T:
    """Return the result of an awaitable; if the other ends first, it is cancelled.

    Raises: the fault then; the error of the work.
    """
    found: list[T] = []

    async def wait() -> None:
        found.append(await work)
        tasks.cancel_scope.cancel()

    async def look() -> None:
        await ends()
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(look)
    except BaseException as error:  # a group's; one alone says what it is about
        while (inner := getattr(error, "exceptions", None)) is not None and len(inner) == 1:
            error = inner[0]
        raise error from None
    if not found:
        raise fault
    return found[0]


def engines_of(registry: ModelRegistry) -> list[tuple[tuple[str, str], EngineState]]:
    return [
        ((name, str(number)), state)
        for name, scheduler in registry.running.items()
        for number, state in enumerate(scheduler.engines)
    ]


def engine_states(services: Services) -> list[dict[str, Json]]:
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
    """Return the services of the server of a request or socket."""
    return cast(Services, connection.app.state.services)


def key_of(connection: HTTPConnection) -> ApiKey | None:
    """Return the key of a request or socket, or None."""
    return cast("ApiKey | None", connection.scope["state"].get("key"))


def given_keys_of(connection: HTTPConnection) -> list[str]:
    """Return the keys and client secrets that a client has sent."""
    return cast("list[str]", connection.scope["state"]["given_keys"])
