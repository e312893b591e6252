"""The models of a server: loaded at the first request, unloaded when idle or for another one."""

from __future__ import annotations

import gc
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import anyio
import anyio.to_thread

from sottovoce.errors import OptionError
from sottovoce.models.devices import empty_cache
from sottovoce.models.load import expected_bytes, expected_languages
from sottovoce.models.sources import REPOSITORIES, published_repository
from sottovoce.recogniser import Recogniser
from sottovoce.runtime.batching import EngineState
from sottovoce.server.errors import RETRY_S, ApiError
from sottovoce.server.scheduler import FileJob, Scheduler, TranscriptionRequest
from sottovoce.server.settings import ModelSettings
from sottovoce.server.telemetry import MODEL_LOADED

HOSTED = re.compile(
    r"whisper(-1)?"
    r"|gpt-[a-z0-9.-]{0,40}(transcribe|whisper|realtime|audio)[a-z0-9.-]{0,40}"
    r"|(nova|enhanced|flux)(-[a-z0-9-]{0,40})?|base-[a-z0-9-]{1,40}"
)
"""Ids of OpenAI's and Deepgram's services."""
logger = logging.getLogger(__name__)
NO_MEMORY = "model_memory"
JOIN_TIMEOUT_S = 60.0
"""Longer than a window of a large model on a slow processor."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """is_stand_in: the requested id names other weights."""

    name: str
    is_stand_in: bool = False


def resolve_model_id(requested: str, settings: ModelSettings) -> ResolvedModel | None:
    """Return the model that an id means, or None.

    Tried in order: a name or alias of the server; the same published weights under another program's id; the
    multilingual model of an English-only one; for hosted services, and other ids of published weights, the
    default model. A name of this library (`large-v3`) never means other weights.
    """
    known = dict.fromkeys(settings.names) | settings.all_aliases
    by_case = {name.lower(): name for name in reversed(known)}
    exact = requested if requested in known else by_case.get(requested.lower())
    if exact is not None:
        return ResolvedModel(known[exact] or exact)
    here = {published_repository(name): name for name in reversed(settings.names)}
    weights = published_repository(requested)
    if weights is not None and weights in here:
        return ResolvedModel(here[weights])
    if weights is not None and (multilingual := weights.removesuffix(".en")) in here:
        return ResolvedModel(here[multilingual], is_stand_in=True)
    is_hosted = HOSTED.fullmatch(requested.lower().rpartition("/")[2]) is not None
    if is_hosted or (weights is not None and requested.lower() not in REPOSITORIES):
        return ResolvedModel(settings.model, is_stand_in=weights is not None)
    return None


@dataclass(slots=True)
class _Slot:
    """languages, n_bytes: by the name of a model until it is loaded. is_loading: memory is reserved."""

    languages: tuple[str, ...]
    n_bytes: int
    scheduler: Scheduler | None = None
    n_users: int = 0
    used_s: float = 0.0
    is_loading: bool = False
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class ModelRegistry:
    """The models that may be requested, and the loaded ones.

    Raises: OptionError if the models of the start need more memory than allowed, by their names.
    """

    def __init__(
        self,
        settings: ModelSettings,
        open_model: Callable[[str], Recogniser],
        make: Callable[[Recogniser], Scheduler],
        size_of: Callable[[Recogniser], int] = lambda model: model.n_bytes,
    ) -> None:
        self.settings = settings
        self._open_model = open_model
        self._make = make
        self._size_of = size_of
        self._most_bytes = settings.memory_bytes
        self._unloaded: list[Scheduler] = []
        self._freeing = anyio.Lock()
        names = dict.fromkeys((*settings.names, *settings.at_start))
        self._slots = {name: _Slot(expected_languages(name), expected_bytes(name)) for name in names}
        promised = sum(map(expected_bytes, settings.at_start))
        if self._most_bytes is not None and promised > self._most_bytes:
            wanted, most = promised / 1e6, self._most_bytes / 1e6
            which = "' and '".join(settings.at_start)
            raise OptionError(f"model memory: expected {wanted:g} MB or more for '{which}', got {most:g}")
        self.created = round(time.time())

    def resolve(self, requested: str | None) -> str:
        """Return the model of a client's id (`resolve_model_id`); None: the default.

        Raises: ApiError 404.
        """
        if not requested:
            return self.settings.model
        resolved = resolve_model_id(requested, self.settings)
        if resolved is None:
            names = ", ".join((*self.settings.names, *self.settings.all_aliases))
            message = f"model '{requested[:100]}': expected one of {names} (--also-model adds names)"
            raise ApiError(message, status=404, param="model", code="model_not_found")
        return resolved.name

    def ignored(self, requested: str | None, others: Sequence[str] = ()) -> tuple[str, ...]:
        resolved = resolve_model_id(requested, self.settings) if requested else None
        return (*others, "model") if resolved is not None and resolved.is_stand_in else tuple(others)

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Scheduler]:
        """Load a model if necessary, and hold it until the context ends. Raises: ApiError 503 without memory
        for it.
        """
        slot = self._slots[name]
        slot.n_users += 1
        try:
            yield await self._loaded(name)
        finally:
            slot.n_users -= 1
            slot.used_s = time.monotonic()

    @asynccontextmanager
    async def transcribing(
        self, name: str, source: BinaryIO, request: TranscriptionRequest
    ) -> AsyncIterator[FileJob]:
        """Begin to transcribe a recording; its models stay loaded until the context ends."""
        async with AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(self.use(name))
            second = None
            if self.settings.second not in (None, name):
                second = await stack.enter_async_context(self.use(self.settings.second))
            work = await scheduler.transcribe(source, request, second)
            stack.callback(work.close)
            yield work

    def languages(self, name: str) -> tuple[str, ...]:
        return self._slots[name].languages

    @property
    def running(self) -> dict[str, Scheduler]:
        schedulers = {name: slot.scheduler for name, slot in self._slots.items()}
        return {name: scheduler for name, scheduler in schedulers.items() if scheduler is not None}

    @property
    def schedulers(self) -> list[Scheduler]:
        return list(self.running.values())

    @property
    def engines(self) -> list[tuple[str, int, EngineState]]:
        """The engines by model and number."""
        return [
            (name, number, state)
            for name, scheduler in self.running.items()
            for number, state in enumerate(scheduler.worker.runtime.states)
        ]

    def unload_idle(self) -> None:
        after_s = self.settings.unload_s
        for name, slot in self._slots.items():
            idle_s = time.monotonic() - slot.used_s
            if after_s is None or slot.scheduler is None or slot.n_users or idle_s < after_s:
                continue
            self._unload(name)

    async def free(self) -> None:
        async with self._freeing:
            unloaded, self._unloaded = self._unloaded, []
            if unloaded:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(free_memory, unloaded)

    def close(self, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        for scheduler in self.schedulers:
            scheduler.close()
        for scheduler in self.schedulers:
            scheduler.join(timeout_s)

    async def _loaded(self, name: str) -> Scheduler:
        slot = self._slots[name]
        async with slot.lock:
            if slot.scheduler is None:
                self._evict_for(name)
                slot.is_loading = True  # its memory is taken from here until it is unloaded
                try:
                    slot.scheduler = await self._load(name)
                finally:
                    slot.is_loading = False
                slot.languages = slot.scheduler.languages
            return slot.scheduler

    async def _load(self, name: str) -> Scheduler:
        began = time.monotonic()
        await self.free()
        model = await anyio.to_thread.run_sync(self._open_model, name)
        await anyio.to_thread.run_sync(model.prepare)
        scheduler = self._make(model)
        try:
            self._record_size(name, model)
            await self.free()
            if name in self.settings.names:
                await scheduler.calibrate()
        except BaseException:
            scheduler.close()
            self._unloaded.append(scheduler)
            raise
        await anyio.to_thread.run_sync(collect_garbage)
        seconds = round(time.monotonic() - began, 3)
        about = {"model": name, "seconds": seconds, "runtime": model.runtime.backend.runtime}
        logger.info(MODEL_LOADED, extra=about)
        return scheduler

    @property
    def n_bytes(self) -> int:
        return sum(slot.n_bytes for slot in self._slots.values() if slot.scheduler or slot.is_loading)

    def is_loaded(self, name: str) -> bool:
        return self._slots[name].scheduler is not None

    def _idle_models(self) -> list[str]:
        idle = [name for name, slot in self._slots.items() if slot.scheduler and not slot.n_users]
        return sorted(idle, key=lambda name: self._slots[name].used_s)

    def _evict_for(self, name: str) -> None:
        if self._most_bytes is None:
            return
        wanted, idle = self._slots[name].n_bytes, self._idle_models()
        if wanted > self._most_bytes:
            message = f"model '{name}': expected one that fits into the memory for models of this server"
            raise ApiError(message, status=503, param="model", code=NO_MEMORY)
        if self.n_bytes - sum(self._slots[other].n_bytes for other in idle) + wanted > self._most_bytes:
            message = f"model '{name}': the memory for models is in use: try again later"
            raise ApiError(message, status=503, param="model", code=NO_MEMORY, retry_s=RETRY_S)
        while self.n_bytes + wanted > self._most_bytes:
            self._unload(idle.pop(0))

    def _record_size(self, name: str, model: Recogniser) -> None:
        if self._most_bytes is None:
            return
        self._slots[name].n_bytes = self._size_of(model)
        idle = self._idle_models()
        while self.n_bytes > self._most_bytes and idle:
            self._unload(idle.pop(0))
        if self.n_bytes > self._most_bytes:
            logger.warning("models take more memory than they are to", extra={"bytes": self.n_bytes})

    def _unload(self, name: str) -> None:
        slot = self._slots[name]
        assert slot.scheduler is not None
        slot.scheduler.close()
        self._unloaded.append(slot.scheduler)
        slot.scheduler = None
        logger.info("model unloaded", extra={"model": name})


def free_memory(unloaded: list[Scheduler]) -> None:
    """Wait for the threads of models, and release their weights, also from CUDA's cache."""
    while unloaded:
        unloaded.pop().join(JOIN_TIMEOUT_S)
    gc.unfreeze()
    collect_garbage()  # a model and its parts refer to each other
    empty_cache()


N_YOUNG = 10_000
"""Objects that are made between two collections; with 700, Python's default, 64 sessions took 0.10 ms for two
updates of each, with so many 0.015. Source: docs/accelerators.md.
"""


def collect_garbage() -> None:
    """Collect garbage, and leave what remains out of later collections: they would stop all live sessions for
    the time that it takes to visit every object of modules and models.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(N_YOUNG)
