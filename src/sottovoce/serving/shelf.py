"""The models of a server by name: loaded when they are first asked for, put away when nobody does.

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
from sottovoce.serving.settings import Offer
from sottovoce.text.languages import language_codes

logger = logging.getLogger(__name__)

WORK_ENDS_WITHIN_S = 60.0
"""One piece of work at most: a window of a large model on a slow processor."""


@dataclass(slots=True)
class _Place:
    """A model's place: empty, or with it. languages: those it had when it was here."""

    languages: tuple[str, ...]
    scheduler: Scheduler | None = None
    n_users: int = 0
    used_s: float = 0.0


class Shelf:
    """Which models may be asked for, and those that are loaded.

    open_model: loads one by its name; called in a thread, once at a time for each. make: gives it a
    scheduler.
    """

    def __init__(
        self,
        offer: Offer,
        open_model: Callable[[str], Model],
        make: Callable[[Model], Scheduler],
    ) -> None:
        self.offer = offer
        self._open_model = open_model
        self._make = make
        self._places = {name: _Place(usual_languages(name)) for name in offer.names}
        self._locks = {name: anyio.Lock() for name in offer.names}
        self.began = round(time.time())

    def name_of(self, wish: str | None) -> str:
        """The model that a client's name means; None: the default one.

        Raises: ApiError 404.
        """
        if not wish:
            return self.offer.model
        name = self.offer.all_aliases.get(wish, wish)
        if name not in self._places:
            known = ", ".join((*self.offer.names, *self.offer.all_aliases))
            message = f"model '{wish[:100]}': expected one of {known}"
            raise ApiError(message, status=404, param="model", code="model_not_found")
        return name

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Scheduler]:
        """A model for as long as it is used; loads it where it is not there.

        Raises: ModelNotFoundError, CheckpointError, OptionError.
        """
        place = self._places[name]
        place.n_users += 1
        try:
            yield await self._loaded(name)
        finally:
            place.n_users -= 1
            place.used_s = time.monotonic()

    def loaded(self, name: str) -> Scheduler | None:
        """The model where it is in memory."""
        return self._places[name].scheduler

    def languages(self, name: str) -> tuple[str, ...]:
        """Languages of a model: its own once it was loaded, those that its name promises before."""
        return self._places[name].languages

    @property
    def running(self) -> dict[str, Scheduler]:
        """All models in memory, by their names."""
        found = {name: place.scheduler for name, place in self._places.items()}
        return {name: scheduler for name, scheduler in found.items() if scheduler is not None}

    @property
    def schedulers(self) -> list[Scheduler]:
        """Of all models in memory."""
        return list(self.running.values())

    def put_away_idle(self) -> None:
        """Let go of models that were not used for so long as the offer says."""
        after_s = self.offer.unload_s
        for name, place in self._places.items():
            idle_s = time.monotonic() - place.used_s
            if after_s is None or place.scheduler is None or place.n_users or idle_s < after_s:
                continue
            place.scheduler.close()
            place.scheduler = None
            logger.info("model unloaded", extra={"model": name})

    def close(self, timeout_s: float = WORK_ENDS_WITHIN_S) -> None:
        """End the threads of all models, after the work that they are at."""
        for scheduler in self.schedulers:
            scheduler.close()
        for scheduler in self.schedulers:
            scheduler.join(timeout_s)

    async def _loaded(self, name: str) -> Scheduler:
        async with self._locks[name]:
            place = self._places[name]
            if place.scheduler is None:
                began = time.monotonic()
                model = await anyio.to_thread.run_sync(self._open_model, name)
                place.scheduler, place.languages = self._make(model), tuple(model.languages)
                seconds = round(time.monotonic() - began, 3)
                logger.info("model loaded", extra={"model": name, "seconds": seconds})
            return place.scheduler


def usual_languages(name: str) -> tuple[str, ...]:
    """Languages of a model by its name: the bundled one's, English, or all of Whisper's vocabulary."""
    if name == "nano":
        return compact_languages() or language_codes()
    if re.search(r"\.en\b", name):
        return ("en",)
    return language_codes(100 if re.search(r"large-v3|turbo", name) else 99)
