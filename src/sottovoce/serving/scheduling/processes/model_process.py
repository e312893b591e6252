"""A process of a model: does what the server asks, in threads of its own (`scheduler`), until it has gone."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import numpy as np
import torch

from sottovoce.api import Model
from sottovoce.errors import cause_of
from sottovoce.options.live import LiveOptions
from sottovoce.serving.parsing.faults import ApiError, logged_fault
from sottovoce.serving.scheduling.model_memory import weight_bytes
from sottovoce.serving.scheduling.model_work import TranscriptionRequest
from sottovoce.serving.scheduling.processes.messages import (
    STATE_EVERY_S,
    Answer,
    Cancel,
    Hello,
    OneWayMessage,
    ProcessCall,
    ProcessState,
    SessionProgress,
    packed,
    received,
)
from sottovoce.serving.scheduling.scheduler import FileJob, Scheduler
from sottovoce.serving.scheduling.session_handle import QueuedTranslator, SessionHandle
from sottovoce.serving.settings import Work
from sottovoce.speakers.base import Floats
from sottovoce.translation.live_translator import SourceText
from sottovoce.types import SAMPLE_RATE, Event, Samples, Segment, Transcript

IN_MEMORY_BYTES = 1_000_000
"""Of a recording; a larger one lies in a temporary file."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What a process is told. place: its number among those of the model, by which it takes a card.

    stall_s: see `ServerLimits`. begin: called first.
    """

    name: str
    work: Work
    beam_size: int
    place: int
    stall_s: float
    begin: Callable[[], None]


def run(pipe: socket.socket, open_model: Callable[[str], Model], options: ProcessOptions) -> None:
    """Load the model and serve it until the other end of the pipe has gone: the main function of a process.

    Signals are for the server, which lets everybody finish before it lets go of the pipe.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    options.begin()
    torch.set_num_threads(options.work.threads or 1)
    if torch.cuda.is_available():
        torch.cuda.set_device(options.place % torch.cuda.device_count())
    try:
        model = open_model(options.name)
        hello = packed(Hello(tuple(model.languages), weight_bytes(model)))
    except Exception as error:
        with suppress(OSError):
            pipe.sendall(packed(Hello(error=sendable(error))))
        return
    with suppress(OSError):
        pipe.sendall(hello)
        asyncio.run(ModelProcess(model, options).serve(pipe))
    os._exit(0)  # its threads may be in the model


def sendable(error: Exception) -> Exception:
    """Return an error that outlives the way to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(cause_of(error))
    return error


@dataclass(slots=True)
class HeldSession:
    """A session, audio that came while it was at work, and what translates it."""

    handle: SessionHandle
    fed: list[Samples] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    translator: QueuedTranslator | None = None

    def take(self) -> Samples:
        """Take what came meanwhile, (n,); from any thread."""
        with self.lock:
            fed, self.fed = self.fed, []
        return np.concatenate([np.zeros(0, np.float32), *fed])


@dataclass(slots=True)
class HeldFile:
    """A recording, as it comes and when it is there, for `audio.io`; job: None until it is transcribed."""

    file: BinaryIO
    job: FileJob | None = None
    name: str = ""

    def read(self, n_bytes: int = -1) -> bytes:
        return self.file.read(n_bytes)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if self.job is not None:
            self.job.close()
        self.file.close()


class ModelProcess:
    """Does what the server asks for: calls, each in a task of its own, and what needs no answer."""

    def __init__(self, model: Model, options: ProcessOptions) -> None:
        self._scheduler = Scheduler(
            model, options.work, beam_size=options.beam_size, on_live=self._note_live_work
        )
        self._stall_s = options.stall_s
        self._sessions: dict[int, HeldSession] = {}
        self._files: dict[int, HeldFile] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._live_work: deque[tuple[float, float]] = deque()  # threads append, the event loop takes
        self._methods: Mapping[str, Callable[..., Awaitable[object]]] = {
            "calibrate": self._calibrate,
            "open": self._open,
            "push": self._push,
            "finalize": lambda item: self._emitted(item, lambda handle: handle.finalize()),
            "flush_and_reset": lambda item: self._emitted(item, lambda handle: handle.flush_and_reset()),
            "close": lambda item: self._emitted(item, lambda handle: handle.close()),
            "configure": self._configure,
            "voices": self._voices,
            "translate": self._translate,
            "transcribe": self._transcribe,
            "segment": self._segment,
            "collect": self._collect,
        }
        self._tellings: Mapping[str, Callable[..., None]] = {
            "feed": self._feed,
            "translator_audio": self._feed_translator,
            "discard": self._discard,
            "recording": self._take_recording,
            "end": self._end,
        }

    async def serve(self, pipe: socket.socket) -> None:
        """Do what comes, until the other end has gone."""
        reader, self._writer = await asyncio.open_connection(sock=pipe)
        states = asyncio.create_task(self._report())
        with suppress(EOFError):
            while True:
                self._take(await received(reader))
        states.cancel()

    def _take(self, message: ProcessCall | Cancel | OneWayMessage) -> None:
        if isinstance(message, ProcessCall):
            self._calls[message.number] = asyncio.create_task(self._answer(message))
        elif isinstance(message, OneWayMessage):
            self._tellings[message.method](message.item, *message.arguments)
        elif (call := self._calls.get(message.number)) is not None:
            call.cancel()

    async def _answer(self, call: ProcessCall) -> None:
        answer = Answer(call.number, fault=ApiError("cancelled", status=499))
        try:
            answer = Answer(call.number, await self._methods[call.method](call.item, *call.arguments))
        except Exception as error:
            answer = Answer(call.number, fault=logged_fault(error, f"item {call.item}"))
        finally:
            del self._calls[call.number]
            self._send(answer)

    def _send(self, message: object) -> None:
        if not self._writer.is_closing():
            self._writer.write(packed(message))

    async def _report(self) -> None:
        """OneWayMessage what this process is at, for ever."""
        while True:
            live_work = [self._live_work.popleft() for _ in range(len(self._live_work))]
            scheduler = self._scheduler
            state = ProcessState(
                tuple(scheduler.engines),
                scheduler.n_waiting,
                scheduler.live_wait_s,
                len(self._sessions),
                scheduler.forecast.part,
                scheduler.forecast.cost,
                scheduler.trouble(self._stall_s),
                tuple(live_work),
            )
            self._send(state)
            await asyncio.sleep(STATE_EVERY_S)

    def _note_live_work(self, waited_s: float, worked_s: float) -> None:
        self._live_work.append((waited_s, worked_s))

    async def _calibrate(self, _: int) -> None:
        await self._scheduler.calibrate()

    async def _open(self, item: int, options: LiveOptions) -> None:
        handle = await self._scheduler.open(options)
        held = self._sessions[item] = HeldSession(handle)
        handle.poll_newer_audio = held.take

    async def _push(self, item: int, pcm: Samples) -> SessionProgress:
        held = self._sessions[item]
        events = await held.handle.push(np.concatenate([held.take(), pcm]))
        return self._progress(held, events)

    async def _emitted(
        self, item: int, work: Callable[[SessionHandle], Awaitable[list[Event]]]
    ) -> SessionProgress:
        """Do something with all audio that has come."""
        held = self._sessions[item]
        rest = held.take()
        events = await held.handle.push(rest) if len(rest) else []
        return self._progress(held, events + await work(held.handle))

    async def _configure(self, item: int, options: LiveOptions) -> SessionProgress:
        return await self._emitted(item, lambda handle: handle.configure(options))

    def _progress(self, held: HeldSession, events: list[Event]) -> SessionProgress:
        return SessionProgress(events, round(held.handle.behind_s * SAMPLE_RATE) + sum(map(len, held.fed)))

    async def _voices(self, item: int, enrolled: Mapping[str, Floats]) -> dict[str, Floats]:
        return dict(await self._sessions[item].handle.voices(enrolled))

    def _feed(self, item: int, pcm: Samples) -> None:
        if (held := self._sessions.get(item)) is not None:
            with held.lock:
                held.fed.append(pcm)

    def _discard(self, item: int) -> None:
        if (held := self._sessions.get(item)) is not None:
            held.take()
            held.handle.discard()

    def _feed_translator(self, item: int, pcm: Samples, worked_s: float) -> None:
        if (held := self._sessions.get(item)) is not None:
            held.translator = held.translator or held.handle.translator()
            held.translator.push(pcm, worked_s)

    async def _translate(self, item: int, source: SourceText) -> str:
        translator = self._sessions[item].translator
        assert translator is not None, "audio first"
        return await asyncio.to_thread(translator.translate, source)

    def _take_recording(self, item: int, data: bytes) -> None:
        if item not in self._files:
            made = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
            self._files[item] = HeldFile(cast(BinaryIO, made))
        self._files[item].file.write(data)

    async def _transcribe(self, item: int, name: str, request: TranscriptionRequest) -> int:
        held = self._files[item]
        held.name = name
        held.seek(0)
        held.job = await self._scheduler.transcribe(cast(BinaryIO, held), request)
        return held.job.n_prompt_tokens

    def _job(self, item: int) -> FileJob:
        job = self._files[item].job
        assert job is not None, "transcribe first"
        return job

    async def _segment(self, item: int) -> Segment | None:
        return await anext(self._job(item), None)

    async def _collect(self, item: int) -> Transcript:
        return await self._job(item).collect()

    def _end(self, item: int) -> None:
        """Forget a session or a recording."""
        if (session := self._sessions.pop(item, None)) is not None:
            session.handle.end()
        if (file := self._files.pop(item, None)) is not None:
            file.close()
