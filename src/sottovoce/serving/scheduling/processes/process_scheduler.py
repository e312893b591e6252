"""One model in several processes: sessions go where most room is, and a process that ends is replaced.

Everything else of the server is in the process that listens, so that what it counts, keeps and refuses is
that of all.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import BinaryIO

import anyio
import anyio.to_thread

from sottovoce.api import Model
from sottovoce.options.live import LiveOptions
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.scheduling.engine_thread import THREADS, EngineState
from sottovoce.serving.scheduling.load_forecast import ROOM, no_room
from sottovoce.serving.scheduling.model_work import ModelWork, TranscriptionRequest
from sottovoce.serving.scheduling.processes.messages import ProcessState
from sottovoce.serving.scheduling.processes.model_process import ProcessOptions
from sottovoce.serving.scheduling.processes.process_link import ProcessLink, process_ended
from sottovoce.serving.scheduling.processes.remote_work import RemoteFile, RemoteSession
from sottovoce.serving.settings import ServerSettings

logger = logging.getLogger(__name__)

LIVED_S = 60.0
"""After which the end of a process is no sign that the next one ends too."""
MOST_PAUSE_S = 30.0
"""Between two starts of a process that ends again and again."""


@dataclass(frozen=True, slots=True)
class ModelProcesses:
    """A model that is loaded in several processes. start: another process, at a place, in a thread."""

    links: tuple[ProcessLink, ...]
    start: Callable[[int], ProcessLink]

    @property
    def languages(self) -> tuple[str, ...]:
        """Of the model, by their codes."""
        return self.links[0].hello.languages

    @property
    def n_bytes(self) -> int:
        """Of the weights, which every process has for itself."""
        return sum(link.hello.n_bytes for link in self.links)


def start_processes(
    open_model: Callable[[str], Model], name: str, settings: ServerSettings, begin: Callable[[], None]
) -> ModelProcesses:
    """Load a model in as many processes as the settings say, which share the threads of the processor.

    begin: called first in each of them.
    Raises: what keeps one of them from it.
    """
    n_processes = settings.work.processes
    threads = max(1, (settings.work.threads or THREADS) // n_processes)
    options = ProcessOptions(
        name,
        replace(settings.work, threads=threads),
        settings.models.beam_size,
        0,
        settings.limits.stall_s,
        begin,
    )

    def start(place: int) -> ProcessLink:
        return ProcessLink.start(open_model, replace(options, place=place))

    with ThreadPoolExecutor(n_processes) as threads_of_starts:
        starts = [threads_of_starts.submit(start, place) for place in range(n_processes)]
    errors = [error for done in starts if (error := done.exception()) is not None]
    if errors:
        for done in starts:
            if done.exception() is None:
                done.result().close()
        raise errors[0]
    return ModelProcesses(tuple(done.result() for done in starts), start)


class ProcessScheduler:
    """All that is asked of one model in several processes: a `ModelWork`.

    on_live: told seconds waited and worked of live work. on_restart: called for each that is replaced.
    """

    def __init__(
        self,
        processes: ModelProcesses,
        *,
        on_live: Callable[[float, float], None],
        on_restart: Callable[[], None],
    ) -> None:
        self.languages = processes.languages
        self._start = processes.start
        self._links: dict[int, ProcessLink] = dict(enumerate(processes.links))
        self._on_live = on_live
        self._on_restart = on_restart
        self._items = itertools.count(1)
        self._is_closed = threading.Event()
        self._restarts: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> list[ProcessLink]:
        """Processes that can be asked."""
        return [link for link in self._links.values() if link.is_alive]

    @property
    def forecast(self) -> ProcessScheduler:
        """Whether there is room: of all processes together."""
        return self

    @property
    def part(self) -> float:
        """The part of all engines' time that the sessions will take, if all speak."""
        return sum(link.state.part for link in self.alive) / max(1, len(self.alive))

    def check(self) -> None:
        """Check that there is room somewhere. Raises: ApiError 429, with a time to come back."""
        if not any(has_room(link) for link in self.alive):
            raise no_room(sum(link.n_sessions for link in self.alive))

    @property
    def engines(self) -> Sequence[EngineState]:
        """What each engine of each process is at."""
        return [state for link in self.alive for state in link.state.engines]

    @property
    def n_waiting(self) -> int:
        """Pieces of work that wait."""
        return sum(link.state.n_waiting for link in self.alive)

    @property
    def live_wait_s(self) -> float:
        """How long live work waits for its turn, where it waits least."""
        return min((link.state.live_wait_s for link in self.alive), default=0.0)

    def trouble(self, stall_s: float) -> str | None:
        """Return what keeps the model from working: that there is no process. One in trouble is replaced."""
        return None if self.alive or self._is_closed.is_set() else "no process of the model is there"

    async def calibrate(self) -> None:
        """Begin to listen to the processes, and have each measure what a session costs, all at once."""
        await asyncio.gather(*(self._begin(place, link) for place, link in self._links.items()))

    async def open(self, options: LiveOptions) -> RemoteSession:
        """Begin a live session where most time is left. Raises: ApiError, 429 where no process has room."""
        fault = process_ended()
        for link in sorted(self.alive, key=load_of_live):
            item = next(self._items)
            session = RemoteSession(link, item)
            try:
                await link.call(item, "open", options)
            except ApiError as error:
                session.end()
                if error.retry_s is None:
                    raise
                fault = error
            except BaseException:
                session.end()
                raise
            else:
                return session
        raise fault

    async def transcribe(
        self, source: BinaryIO, request: TranscriptionRequest, second: ModelWork | None = None
    ) -> RemoteFile:
        """Begin with a recording where fewest are. Raises: ApiError."""
        assert second is None, "settings have no second model beside processes"
        if not self.alive:
            raise process_ended()
        link = min(self.alive, key=load_of_files)
        file = RemoteFile(link, next(self._items))
        try:
            await file.begin(source, request)
        except BaseException:
            file.close()
            raise
        return file

    def close(self) -> None:
        """End all processes; from any thread."""
        self._is_closed.set()
        for link in self._links.values():
            link.close()

    def join(self, timeout_s: float) -> None:
        """Wait for their end."""
        end_s = time.monotonic() + timeout_s
        for link in self._links.values():
            link.join(max(0.0, end_s - time.monotonic()))

    async def _begin(self, place: int, link: ProcessLink) -> None:
        await link.connect(lambda: self._replace_soon(place, link), lambda state: self._note(link, state))
        await link.call(0, "calibrate")

    def _note(self, link: ProcessLink, state: ProcessState) -> None:
        for waited_s, worked_s in state.live_work:
            self._on_live(waited_s, worked_s)
        if state.trouble is not None:
            logger.error("a process of the model is ended", extra={"cause": state.trouble})
            link.close()

    def _replace_soon(self, place: int, gone: ProcessLink) -> None:
        if not self._is_closed.is_set() and self._links[place] is gone:
            task = asyncio.create_task(self._replace(place, gone))
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)

    async def _replace(self, place: int, gone: ProcessLink) -> None:
        """Start another process in the place of one that has gone, until one stays."""
        await anyio.to_thread.run_sync(gone.join, 1.0)
        code = gone.process.exitcode
        logger.error("a process of the model has ended", extra={"place": place, "code": code})
        pause_s = 0.0 if time.monotonic() - gone.began_s > LIVED_S else 1.0
        while not self._is_closed.is_set():
            await anyio.sleep(pause_s)
            try:
                link = await anyio.to_thread.run_sync(self._start, place)
                if self._is_closed.is_set():
                    link.close()
                    return
                await self._begin(place, link)
            except Exception:
                logger.exception("a process of the model does not start", extra={"place": place})
                pause_s = min(MOST_PAUSE_S, 2 * pause_s + 1.0)
            else:
                self._links[place] = link
                self._on_restart()
                return


def load_of_live(link: ProcessLink) -> tuple[float, int]:
    """Return how much live work a process has: the part of its time, with those that it has not told of."""
    state = link.state
    return state.part + (link.n_sessions - state.n_open) * state.cost, link.n_sessions


def has_room(link: ProcessLink) -> bool:
    """Return whether a process can take another session, as far as it has told.

    One alone it always can, and any where no cost was measured.
    """
    return not (link.n_sessions and link.state.cost) or load_of_live(link)[0] + link.state.cost <= ROOM


def load_of_files(link: ProcessLink) -> tuple[int, int]:
    """Return how many recordings a process has, and how many sessions."""
    return link.n_files, link.n_sessions
