"""The shared state of a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar, cast

import anyio
import anyio.to_thread
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import HTTPConnection

from sottovoce.server.auth import ApiKey, ClientSecrets, KeyLimits, KeyRing
from sottovoce.server.errors import ApiError, shutting_down, too_many_requests
from sottovoce.server.models import JOIN_TIMEOUT_S, ModelRegistry
from sottovoce.server.scheduler import Scheduler
from sottovoce.server.settings import UPLOADS_PER_REQUEST, ServerSettings
from sottovoce.server.telemetry import Metrics, Tracing, make_provider
from sottovoce.server.worker import DecodePool

T = TypeVar("T")


CHECK_KEYS_EVERY_S = 1.0
ENGINE_LABELS = ("model", "engine")


class Services(Collector):
    """Settings, models, counts and limits of a server.

    Raises: OptionError for an invalid key file.
    """

    def __init__(self, settings: ServerSettings, registry: ModelRegistry, metrics: Metrics) -> None:
        self.settings = settings
        self.registry = registry
        self.metrics = metrics
        self._lags: list[Callable[[], float]] = []
        self.n_requests = 0
        self.n_uploads = 0
        self.upload_bytes = 0
        """Of all recordings received or being received."""
        self.decoding = DecodePool()
        self.inference_model = settings.models.model
        """Of whisper.cpp's `/inference`."""
        self.tracing = Tracing(make_provider() if settings.traces else None)
        self.is_ready = not settings.models.preload
        self.secrets = ClientSecrets(settings.access.secret_key)
        self.keys = KeyRing(settings.access)
        self.key_limits = KeyLimits(metrics)
        self.preload_error: Exception | None = None
        self.draining = anyio.Event()
        """Set at the shutdown: live sessions end, and new requests are refused."""
        self.aborted = anyio.Event()
        """Set when requests are cut short."""
        self.ends_process = False
        """The process ends with the server: working threads are not waited for."""
        metrics.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        now = {
            "sessions": ("Live sessions now.", self.n_sessions),
            "behind_s": (
                "Seconds of received audio that no event accounts for yet, in the session furthest behind.",
                self.behind_s,
            ),
            "recordings": ("Recordings being transcribed or waiting.", self.n_requests),
            "upload_bytes": ("Bytes of recordings that are here.", self.upload_bytes),
            "failing": ("Whether a model cannot work any more.", int(self.health_error is not None)),
            "models_loaded": ("Models in memory.", len(self.registry.schedulers)),
            "model_bytes": ("Bytes of models' weights in memory, by their size.", self.registry.n_bytes),
            "work_waiting": (
                "Pieces of work that wait for a model.",
                sum(scheduler.worker.n_waiting for scheduler in self.registry.schedulers),
            ),
        }
        for name, (meaning, value) in now.items():
            yield GaugeMetricFamily(f"sottovoce_{name}", meaning, value)
        engines = self.registry.engines
        busy = [((name, str(number)), state.busy) for name, number, state in engines]
        yield gauges("engine_busy", "The part of the time that an engine is at work.", ENGINE_LABELS, busy)
        updates = [((name, str(number)), state.n_live) for name, number, state in engines]
        meaning = "Updates of live sessions under way in an engine."
        yield gauges("engine_updates", meaning, ENGINE_LABELS, updates)
        most = [((name,), scheduler.most_sessions or 0) for name, scheduler in self.registry.running.items()]
        meaning = "Live sessions that the engines of a model keep up with; 0: not measured."
        yield gauges("most_sessions", meaning, ENGINE_LABELS[:1], most)

    @property
    def health_error(self) -> str | None:
        stall_s = self.settings.limits.stall_s
        errors = [scheduler.worker.health_error(stall_s) for scheduler in self.registry.schedulers]
        return next((error for error in errors if error is not None), None)

    @property
    def n_sessions(self) -> int:
        return len(self._lags)

    @property
    def behind_s(self) -> float:
        """Largest seconds of received audio that no event covers."""
        return max((lag() for lag in self._lags), default=0.0)

    @property
    def is_serving(self) -> bool:
        return self.n_sessions + self.n_requests + self.n_uploads > 0

    @contextmanager
    def upload(self, *, is_queued: bool = False) -> Iterator[None]:
        """is_queued: of a job, which needs no free slot for a recording. Raises: ApiError 429, 503."""
        limits = self.settings.limits
        if not is_queued:
            self._require_free(self.n_requests, limits.requests, "recordings are being transcribed")
        most = UPLOADS_PER_REQUEST * limits.requests
        self._require_free(self.n_uploads, most, "recordings are being sent")
        self.n_uploads += 1
        try:
            yield
        finally:
            self.n_uploads -= 1

    @contextmanager
    def uploaded_bytes(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes of one upload until the context ends. Raises: ApiError 429."""
        taken = 0

        def take(n_bytes: int) -> None:
            nonlocal taken
            limits = self.settings.limits
            if self.upload_bytes + n_bytes > limits.uploads_bytes:
                raise too_many_requests(f"{limits.uploads_mb:g} MB of recordings are here: try again later")
            taken += n_bytes
            self.upload_bytes += n_bytes

        try:
            yield take
        finally:
            self.upload_bytes -= taken

    @contextmanager
    def recording(self) -> Iterator[None]:
        limit = self.settings.limits.requests
        self._require_free(self.n_requests, limit, "recordings are being transcribed")
        self.n_requests += 1
        try:
            yield
        finally:
            self.n_requests -= 1

    @contextmanager
    def session(self, behind_s: Callable[[], float] = float) -> Iterator[None]:
        """behind_s: delay of the session. Raises: ApiError 429, 503."""
        self._require_free(self.n_sessions, self.settings.limits.sessions, "live sessions are open")
        self._lags.append(behind_s)
        try:
            yield
        finally:
            self._lags.remove(behind_s)

    def _require_free(self, n: int, limit: int, what: str) -> None:
        if self.draining.is_set():
            raise shutting_down()
        if n >= limit:
            raise too_many_requests(f"{limit} {what}: try again later")

    def check_capacity(self, name: str) -> None:
        if (scheduler := self.registry.running.get(name)) is not None:
            self.check_live_wait(scheduler)
            scheduler.check_capacity()

    def check_live_wait(self, scheduler: Scheduler) -> None:
        waits_s, most_s = scheduler.worker.live_wait_s, self.settings.limits.wait_s
        if waits_s > most_s:
            raise too_many_requests(
                f"live audio waits {waits_s:.1f} s for the model: try again later", retry_s=waits_s
            )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(repeat, 5.0, self._unload_idle)
                if self.keys.has_file:
                    refresh = partial(anyio.to_thread.run_sync, self.keys.refresh)
                    tasks.start_soon(repeat, CHECK_KEYS_EVERY_S, refresh)
                if self.settings.models.preload:
                    tasks.start_soon(self._preload)
                yield
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()

    async def _end(self) -> None:
        within_s = 0.0 if self.ends_process else JOIN_TIMEOUT_S
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

    async def _unload_idle(self) -> None:
        self.registry.unload_idle()
        await self.registry.free()


def gauges(
    name: str, meaning: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"sottovoce_{name}", meaning, labels=labels)
    for place, value in values:
        family.add_metric(place, value)
    return family


async def repeat(every_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await anyio.sleep(every_s)
        await work()


async def run_until_first(*tasks: Callable[[], Awaitable[object]]) -> None:
    """Run tasks until the first one ends, and cancel the others. Raises: its error."""
    failed: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def run(task: Callable[[], Awaitable[object]]) -> None:
            try:
                await task()
            except Exception as error:
                failed.append(error)
            group.cancel_scope.cancel()

        for task in tasks:
            group.start_soon(run, task)
    if failed:
        raise failed[0]


async def cancel_when(ended: Callable[[], Awaitable[object]], work: Awaitable[T], error: ApiError) -> T:
    """Return the result of work, which is cancelled with the error when `ended` returns first."""
    results: list[T] = []

    async def run() -> None:
        results.append(await work)

    await run_until_first(run, ended)
    if not results:
        raise error
    return results[0]


def services_of(connection: HTTPConnection) -> Services:
    return cast(Services, connection.app.state.services)


def key_of(connection: HTTPConnection) -> ApiKey | None:
    return cast("ApiKey | None", connection.scope["state"].get("key"))
