"""The server's end of one process of a model: it is started, asked, and known to have gone."""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import pickle
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

from sottovoce.api import Model
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.scheduling.processes.messages import (
    LENGTH,
    Answer,
    Cancel,
    Hello,
    OneWayMessage,
    ProcessCall,
    ProcessState,
    packed,
    received,
)
from sottovoce.serving.scheduling.processes.model_process import ProcessOptions, run

logger = logging.getLogger(__name__)

RETRY_S = 1.0


def process_ended() -> ApiError:
    """Make the fault of work whose process has gone: another one does it again."""
    message = "the process that was at this has ended: try again"
    return ApiError(message, status=503, kind="server_error", code="process_ended", retry_s=RETRY_S)


class ProcessLink:
    """A process, from `start` until it ends, and what is under way there.

    state: what it told last. n_sessions, n_files: that it has under way.
    """

    def __init__(self, process: BaseProcess, pipe: socket.socket, hello: Hello) -> None:
        self.process = process
        self.hello = hello
        self.state = ProcessState()
        self.n_sessions = self.n_files = 0
        self.is_alive = True
        self.began_s = time.monotonic()
        self._pipe = pipe
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    @classmethod
    def start(cls, open_model: Callable[[str], Model], options: ProcessOptions) -> ProcessLink:
        """Start a process, and wait until its model is loaded.

        Raises: what kept it from that; OptionError for a process that ended before.
        """
        ours, theirs = socket.socketpair()
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=run, args=(theirs, open_model, options), name=f"model-{options.place}", daemon=True
        )
        with theirs:
            process.start()
        try:
            hello = first_message(ours)
        except EOFError:
            process.join()
            ours.close()
            message = f"a process of the model ended with code {process.exitcode} before it was loaded"
            raise RuntimeError(message) from None
        if hello.error is not None:
            ours.close()
            process.join()
            raise hello.error
        return cls(process, ours, hello)

    async def connect(self, on_end: Callable[[], None], on_state: Callable[[ProcessState], None]) -> None:
        """Begin to take what the process says. on_end: called once, when it has gone."""
        self._loop = asyncio.get_running_loop()
        reader, self._writer = await asyncio.open_connection(sock=self._pipe)
        self._reading = asyncio.create_task(self._read(reader, on_end, on_state))

    def begin(self, item: int, method: str, *arguments: object) -> asyncio.Future[Any]:
        """Ask for something; a future that is cancelled ends it.

        Raises: ApiError where the process has gone.
        """
        if not self.is_alive:
            raise process_ended()
        number = next(self._numbers)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = future
        future.add_done_callback(lambda done: self._forget(number, done))
        self._writer.write(packed(ProcessCall(number, item, method, arguments)))
        return future

    async def call(self, item: int, method: str, *arguments: object) -> Any:
        """Ask for something, and return the answer. Raises: ApiError."""
        return await self.begin(item, method, *arguments)

    def call_from_thread(self, item: int, method: str, *arguments: object) -> Any:
        """Ask for something in a thread that may wait. Raises: ApiError."""
        return asyncio.run_coroutine_threadsafe(self.call(item, method, *arguments), self._loop).result()

    def tell(self, item: int, method: str, *arguments: object) -> None:
        """OneWayMessage something that is not answered; harmless where the process has gone."""
        if self.is_alive:
            self._writer.write(packed(OneWayMessage(item, method, arguments)))

    async def drain(self) -> None:
        """Wait until little is on its way to the process. Raises: ApiError where it has gone."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise process_ended() from error

    def close(self) -> None:
        """End the process; from any thread. Nothing is lost by that but what is under way."""
        self.process.kill()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self.process.join(timeout_s)

    async def _read(
        self,
        reader: asyncio.StreamReader,
        on_end: Callable[[], None],
        on_state: Callable[[ProcessState], None],
    ) -> None:
        with suppress(EOFError):
            while True:
                message = await received(reader)
                if isinstance(message, ProcessState):
                    self.state = message
                    on_state(message)
                else:
                    self._take(message)
        self.is_alive = False
        self._writer.close()
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(process_ended())
        on_end()

    def _take(self, answer: Answer) -> None:
        future = self._waiting.get(answer.number)
        if future is None or future.done():
            return
        if answer.fault is not None:
            future.set_exception(answer.fault)
        else:
            future.set_result(answer.value)

    def _forget(self, number: int, done: asyncio.Future[Any]) -> None:
        self._waiting.pop(number, None)
        if done.cancelled() and self.is_alive:
            self._writer.write(packed(Cancel(number)))


def first_message(pipe: socket.socket) -> Hello:
    """Wait for the first message of a process. Raises: EOFError where it ends before."""
    (length,) = LENGTH.unpack(exactly(pipe, LENGTH.size))
    hello: Hello = pickle.loads(exactly(pipe, length))
    return hello


def exactly(pipe: socket.socket, n_bytes: int) -> bytes:
    """Wait for so many bytes. Raises: EOFError."""
    data = bytearray()
    while len(data) < n_bytes:
        try:
            piece = pipe.recv(n_bytes - len(data))
        except OSError:
            piece = b""
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
