"""The models of a server by name: loaded when they are first requested, unloaded when nobody uses them.

Loading runs in a thread of its own, so that a model that is fetched for minutes holds up nobody else.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread

from sottovoce.api import Model
from sottovoce.models.nano import compact_languages
from sottovoce.serving.faults import ApiError
from sottovoce.serving.scheduler import Scheduler
from sottovoce.serving.settings import ModelSettings
from sottovoce.text.languages import language_codes

logger = logging.getLogger(__name__)

WORK_ENDS_WITHIN_S = 60.0
"""One piece of work at most: a window of a large model on a slow processor."""


@dataclass(slots=True)
class _Slot:
    """The place of a model, which is empty until it is loaded. languages: those it has, or had."""

    languages: tuple[str, ...]
    scheduler: Scheduler | None = None
    n_users: int = 0
    used_s: float = 0.0


class ModelRegistry:
    """Which models may be requested, and those that are loaded.

    open_model: loads one by its name; called in a thread, once at a time for each. make: gives it a
    scheduler.
    """

    def __init__(
        self,
        settings: ModelSettings,
        open_model: Callable[[str], Model],
        make: Callable[[Model], Scheduler],
    ) -> None:
        self.settings = settings
        self._open_model = open_model
        self._make = make
        self._slots = {name: _Slot(usual_languages(name)) for name in settings.names}
        self._locks = {name: anyio.Lock() for name in settings.names}
        self.began = round(time.time())

    def resolve(self, requested: str | None) -> str:
        """Return the model that a client's name means; None: the default one.

        Raises: ApiError 404.
        """
        if not requested:
            return self.settings.model
        name = self.settings.all_aliases.get(requested, requested)
        if name not in self._slots:
            names = ", ".join((*self.settings.names, *self.settings.all_aliases))
            message = f"model '{requested[:100]}': expected one of {names}"
            raise ApiError(message, status=404, param="model", code="model_not_found")
        return name

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Scheduler]:
        """Hold a model for as long as it is used; loads it where it is not there.

        Raises: ModelNotFoundError, CheckpointError, OptionError.
        """
        slot = self._slots[name]
        slot.n_users += 1
        try:
            yield await self._loaded(name)
        finally:
            slot.n_users -= 1
            slot.used_s = time.monotonic()

    def languages(self, name: str) -> tuple[str, ...]:
        """Return the languages of a model: those that its name promises until it was loaded."""
        return self._slots[name].languages

    @property
    def running(self) -> dict[str, Scheduler]:
        """All models in memory, by their names."""
        found = {name: slot.scheduler for name, slot in self._slots.items()}
        return {name: scheduler for name, scheduler in found.items() if scheduler is not None}

    @property
    def schedulers(self) -> list[Scheduler]:
        """Of all models in memory."""
        return list(self.running.values())

    def unload_idle(self) -> None:
        """Unload models that nobody has used for `ModelSettings.unload_s`."""
        after_s = self.settings.unload_s
        for name, slot in self._slots.items():
            idle_s = time.monotonic() - slot.used_s
            if after_s is None or slot.scheduler is None or slot.n_users or idle_s < after_s:
                continue
            slot.scheduler.close()
            slot.scheduler = None
            logger.info("model unloaded", extra={"model": name})

    def close(self, timeout_s: float = WORK_ENDS_WITHIN_S) -> None:
        """End the threads of all models, after the work that they are at."""
        for scheduler in self.schedulers:
            scheduler.close()
        for scheduler in self.schedulers:
            scheduler.join(timeout_s)

    async def _loaded(self, name: str) -> Scheduler:
        async with self._locks[name]:
            slot = self._slots[name]
            if slot.scheduler is None:
                began = time.monotonic()
                model = await anyio.to_thread.run_sync(self._open_model, name)
                scheduler = self._make(model)
                try:
                    await scheduler.calibrate()
                except BaseException:
                    scheduler.close()
                    raise
                slot.scheduler, slot.languages = scheduler, tuple(model.languages)
                seconds = round(time.monotonic() - began, 3)
                logger.info("model loaded", extra={"model": name, "seconds": seconds})
            return slot.scheduler


def usual_languages(name: str) -> tuple[str, ...]:
    """Return the languages that a model's name promises: nano's, English, or all of Whisper's vocabulary."""
    if name == "nano":
        return compact_languages() or language_codes()
    if re.search(r"\.en\b", name):
        return ("en",)
    return language_codes(100 if re.search(r"large-v3|turbo", name) else 99)
