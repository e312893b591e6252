"""One live client: its messages are read, audio and commands processed in order, and events sent.

No task of the event loop runs the model.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Generic, Protocol, TypeVar

import anyio
import anyio.to_thread
import numpy as np
from starlette.status import (
    WS_1000_NORMAL_CLOSURE,
    WS_1008_POLICY_VIOLATION,
    WS_1011_INTERNAL_ERROR,
    WS_1012_SERVICE_RESTART,
    WS_1013_TRY_AGAIN_LATER,
)
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sottovoce.audio.container import LiveContainer
from sottovoce.audio.io import Source, load_audio
from sottovoce.audio.samples import FloatMixer, check_floats
from sottovoce.errors import AudioError
from sottovoce.formats.document import Json, json_text
from sottovoce.server.api import error_answer
from sottovoce.server.auth import ApiKey
from sottovoce.server.errors import UNAVAILABLE, ApiError, invalid_value, logged_api_error, to_api_error
from sottovoce.server.fields import MAX_RATE, MIN_RATE
from sottovoce.server.scheduler import InputQueue, Scheduler, SessionHandle
from sottovoce.server.services import Services, key_of, run_until_first, services_of
from sottovoce.server.settings import ServerLimits
from sottovoce.streaming.options import LiveOptions
from sottovoce.types import SAMPLE_RATE, Event, Samples

SAMPLE_BYTES: dict[str, int] = {"s16le": 2, "f32le": 4, "mulaw": 1, "alaw": 1}


class PcmReader:
    """Decodes bytes into samples (n,) float32 at 16 kHz, mixed to one channel, or (n, n_channels).

    Raises: ApiError 400 for an unknown encoding or rate.
    """

    def __init__(
        self,
        encoding: str = "s16le",
        sample_rate: int = SAMPLE_RATE,
        n_channels: int = 1,
        *,
        keep_channels: bool = False,
    ) -> None:
        if encoding not in SAMPLE_BYTES:
            raise invalid_value("encoding", f"one of {', '.join(SAMPLE_BYTES)}", f"'{encoding[:50]}'")
        if not MIN_RATE <= sample_rate <= MAX_RATE:
            raise invalid_value("sample_rate", f"{MIN_RATE} to {MAX_RATE} Hz", str(sample_rate))
        self._encoding = encoding
        self._n_channels = n_channels
        self._n_bytes = SAMPLE_BYTES[encoding] * n_channels
        self._rest = b""
        self._keeps_channels = keep_channels
        self._mixer = FloatMixer(sample_rate, n_channels, "live audio", keep_channels=keep_channels)

    def read(self, piece: bytes) -> Samples:
        """Return the complete samples; an incomplete frame waits for the next piece."""
        data = self._rest + piece
        whole = len(data) - len(data) % self._n_bytes
        self._rest = data[whole:]
        if not whole:
            return np.zeros(0, np.float32)
        channels = self._floats(data[:whole]).reshape(-1, self._n_channels).T
        return self._shaped(self._mixer.push(channels))

    def flush(self) -> Samples:
        """Return the last samples; nothing may be read after it."""
        return self._shaped(self._mixer.flush())

    def _shaped(self, rows: Samples) -> Samples:
        return rows.T if self._keeps_channels else np.ravel(rows)

    def _floats(self, data: bytes) -> Samples:
        if self._encoding == "f32le":
            return np.frombuffer(data, "<f4").astype(np.float32)
        if self._encoding == "s16le":
            return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
        return g711_table(self._encoding)[np.frombuffer(data, np.uint8)]


@cache
def g711_table(encoding: str) -> Samples:
    """Return the samples (256,) of the bytes of mulaw or alaw (ITU-T G.711)."""
    return load_audio(Source(bytes(range(256)), input_format=f"{encoding}:{SAMPLE_RATE}"))


M_co = TypeVar("M_co", covariant=True)


HAS_HUNG_UP = "has_hung_up"


class ClientDisconnectedError(Exception): ...


class Transport(Protocol[M_co]):
    """The messages of one client. request_id: for the log.

    Every method raises ClientDisconnectedError when the client has gone.
    """

    request_id: str
    limits: ServerLimits

    async def receive(self) -> M_co | None:
        """Return the next message; None at the end of input, when the client may still read.

        Raises: ApiError for an invalid message.
        """

    def has_disconnected(self) -> bool:
        """Return whether the client is known to have gone, also while nothing is read."""

    async def send(self, document: dict[str, Json]) -> None:
        """Raises: ApiError if the client does not read."""

    async def close(self, code: int, reason: str = "") -> None:
        """code: of WebSockets."""

    async def fail(self, fault: ApiError, document: dict[str, Json]) -> None:
        """Close after an error. document: the last message."""


class WebSocketTransport:
    def __init__(self, socket: WebSocket, limits: ServerLimits) -> None:
        self.request_id: str = socket.scope["state"]["request_id"]
        self._socket = socket
        self.limits = limits
        self.has_disconnected: Callable[[], bool] = socket.scope["state"].get(HAS_HUNG_UP, bool)

    async def accept(self, subprotocol: str | None) -> None:
        offered = self._socket.scope["subprotocols"]
        with noticing_the_end():
            await self._socket.accept(subprotocol=subprotocol if subprotocol in offered else None)

    async def receive(self) -> bytes | str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise ClientDisconnectedError
        data: bytes | None = message.get("bytes")
        return (message.get("text") or "") if data is None else data

    async def send(self, document: dict[str, Json]) -> None:
        await self.send_text(json_text(document))

    async def send_text(self, text: str) -> None:
        with anyio.move_on_after(self.limits.send_s), noticing_the_end():
            await self._socket.send_text(text)
            return
        message = f"client: expected to take what it is sent within {self.limits.send_s:g} s"
        raise ApiError(message, code="slow_reader")

    async def close(self, code: int, reason: str = "") -> None:
        with noticing_the_end():
            await self._socket.close(code, reason)

    async def fail(self, fault: ApiError, document: dict[str, Json]) -> None:
        """An open handshake is refused with an HTTP status."""
        with noticing_the_end():
            if self._socket.application_state == WebSocketState.CONNECTING:
                await deny(self._socket, fault)
                return
            await self._socket.send_text(json_text(document))
            code = WS_1008_POLICY_VIOLATION
            if fault.retry_s is not None:
                code = WS_1013_TRY_AGAIN_LATER
            elif fault.status >= 500:
                code = WS_1011_INTERNAL_ERROR
            # A control frame has 125 bytes.
            reason = fault.message.encode()[:120].decode("utf-8", "ignore")
            await self._socket.close(code, reason)


@contextmanager
def noticing_the_end() -> Iterator[None]:
    """Raises: ClientDisconnectedError in place of what Starlette and the system raise."""
    try:
        yield
    except (WebSocketDisconnect, RuntimeError, OSError) as error:
        raise ClientDisconnectedError from error


async def deny(socket: WebSocket, fault: ApiError) -> None:
    await socket.send_denial_response(error_answer(socket, fault))


def silent_too_long(most_s: float) -> ApiError:
    return ApiError(f"session: expected a message within {most_s:g} s", code="idle_timeout")


def live_error(fault: ApiError) -> dict[str, Json]:
    return {"type": "error", "error": fault.live_details}


async def serve_client(
    transport: Transport[object],
    work: Callable[[], Awaitable[None]],
    error_document: Callable[[ApiError], dict[str, Json]] = live_error,
    what: str = "session failed",
) -> None:
    """Serve a client to the end of the work; an error is logged, and is the last message."""
    try:
        await work()
    except ClientDisconnectedError:
        return
    except Exception as error:
        fault = logged_api_error(error, transport.request_id, what)
        with anyio.move_on_after(transport.limits.send_s), suppress(ClientDisconnectedError):
            await transport.fail(fault, error_document(fault))


M = TypeVar("M")
T = TypeVar("T")
SLICE_BYTES = 64 * 1024
"""About 1 ms of work."""


class MessageQueue(Generic[M]):
    """Messages that were received and not handled, for one producer and one consumer; None: the last one.

    max_bytes: above it the producer waits.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._messages: deque[tuple[M | None, int]] = deque()
        self._n_bytes = 0
        self._changed = anyio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._messages

    async def put(self, message: M | None, n_bytes: int = 0) -> None:
        self._messages.append((message, n_bytes))
        self._add(n_bytes)
        while self._n_bytes > self._max_bytes:
            await self._changed.wait()

    async def first(self) -> M | None:
        """Return the first message, which stays until `remove`."""
        while not self._messages:
            await self._changed.wait()
        return self._messages[0][0]

    def remove(self) -> None:
        self._add(-self._messages.popleft()[1])

    def clear(self) -> None:
        self._messages.clear()
        self._add(-self._n_bytes)

    def _add(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        self._changed.set()
        self._changed = anyio.Event()


class LiveConnection(ABC, Generic[M]):
    """A client with messages of type M, and its session.

    Messages are read while audio waits, up to the size of the largest message: only then the client is not
    read, and its pings wait too. idle_s: longest time without a message and without work.
    """

    def __init__(self, transport: Transport[M], services: Services) -> None:
        self.transport = transport
        self.services = services
        self.limits = services.settings.limits
        self.key: ApiKey | None = None
        self.queue = InputQueue(round(self.limits.pending_s * SAMPLE_RATE))
        self.messages: MessageQueue[M] = MessageQueue(self.limits.message_kb * 1024)
        self.idle_s = self.limits.idle_s
        self._last_active_s = time.monotonic()
        self._is_working = False
        self._session: SessionHandle | None = None
        self.exit_stack = AsyncExitStack()
        self._is_closing = False
        self._close_code = WS_1000_NORMAL_CLOSURE
        self._last_audio_s = math.inf
        """Monotonic time of the last audio; infinite without a slot."""
        self._counted_s = 0.0

    @abstractmethod
    async def begin(self) -> None:
        """Prepare for the first message. Errors end the connection."""

    @abstractmethod
    async def on_message(self, message: M) -> None:
        """Handle a message with `queue_audio` or `queue.put`. An ApiError ends the connection."""

    @abstractmethod
    def size_of(self, message: M) -> int:
        """Return the bytes of memory that a message takes."""

    async def answer_at_once(self, message: M) -> bool:
        """Answer a message that need not wait for the audio before it; return whether it was one."""
        return False

    @abstractmethod
    def render(self, events: Sequence[Event]) -> Iterable[dict[str, Json]]:
        """Yield the messages of events."""

    def error_document(self, fault: ApiError) -> dict[str, Json]:
        return live_error(fault)

    async def on_audio(self) -> None:
        """Process the audio of one update."""
        await self.emit(await self.session.update())

    async def on_close(self) -> None:
        await self.emit(await self.session.flush())

    async def background(self) -> None:
        """A task of the protocol."""

    async def report(self) -> None:
        """Report the delay of the session; called every second."""

    async def serve(self) -> None:
        async def work() -> None:
            async with self.exit_stack:
                await self.begin()
                await self._run()

        await serve_client(self.transport, work, self.error_document)

    def acquire_slot(self, n_sessions: int = 1) -> None:
        """Count live sessions of the server and of the key, until `release`. Raises: ApiError 429, 503."""
        for _ in range(n_sessions):
            self.exit_stack.enter_context(self.services.key_limits.session(self.key))
            self.exit_stack.enter_context(self.services.session(lambda: self.behind_s))
        self._last_audio_s = time.monotonic()

    async def open(self, model: str, options: LiveOptions, sources: Sequence[str] = ()) -> Scheduler:
        """Open the session, until `release`; return its scheduler. sources: names, of several.

        Raises: ApiError 429 without room on the model.
        """
        registry, final_name = self.services.registry, self.services.settings.models.final
        scheduler = await self.exit_stack.enter_async_context(registry.use(model))
        final: Scheduler | None = None
        if final_name not in (None, model):
            final = await self.exit_stack.enter_async_context(registry.use(final_name))
        self.services.check_live_wait(scheduler)
        rules = None if self.key is None else self.key.replacements
        self._session = session = await scheduler.open(
            options, self.queue, final, replacements=rules, sources=sources
        )
        session.on_finals = self._emit_finals
        self.exit_stack.callback(session.end)
        return scheduler

    async def release(self) -> None:
        self._session, self._counted_s = None, 0.0
        self._last_audio_s = math.inf
        await self.exit_stack.aclose()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def session(self) -> SessionHandle:
        assert self._session is not None, "open() first"
        return self._session

    @property
    def processed_s(self) -> float:
        return self._session.processed_s if self._session else 0.0

    @property
    def received_s(self) -> float:
        return self._session.received_s if self._session else 0.0

    @property
    def behind_s(self) -> float:
        return self.queue.n_samples / SAMPLE_RATE

    async def send(self, *documents: dict[str, Json]) -> None:
        for document in documents:
            await self.transport.send(document)

    async def emit(self, events: Sequence[Event]) -> None:
        await self.send(*self.render(events))

    async def _emit_finals(self) -> None:
        if self._session is not None and (events := self._session.finals()):
            await self.emit(events)

    async def queue_audio(self, samples: Samples) -> None:
        """Queue audio (n,); wait for room. Raises: ApiError as `check_floats`."""
        require_valid(samples)
        self._mark_audio()
        await self.queue.put_audio(samples)
        self._mark_audio()

    async def queue_bytes(self, reader: PcmReader, data: bytes) -> None:
        """Decode and queue audio in slices, which do not block other clients."""
        for piece in slices_of(data):
            await self.queue_audio(await in_thread_if_large(len(data), partial(reader.read, piece)))

    async def queue_container(self, container: LiveContainer, data: bytes) -> None:
        """b"" ends the container. Raises: AudioError."""
        for piece in slices_of(data) if data else (b"",):
            container.feed(piece) if piece else container.end()
            is_more = True
            while is_more:
                samples, is_more = await anyio.to_thread.run_sync(container.take)
                await self.queue_audio(samples)

    async def request_close(self, code: int = WS_1000_NORMAL_CLOSURE) -> None:
        """Process the queue, then close with the code; further messages are dropped."""
        if not self._is_closing:
            self._is_closing = True
            self.messages.clear()
            await self.queue.put(code)

    def count(self, audio_s: float) -> None:
        """Count the audio of the session so far. Raises: ApiError if it is too long."""
        new_s, self._counted_s = audio_s - self._counted_s, audio_s
        self.services.metrics.live_seconds.inc(new_s)
        self.services.key_limits.count_audio(self.key, new_s)
        if audio_s > self.limits.session_s:
            message = f"session: expected at most {self.limits.session_s:g} s of audio"
            raise ApiError(message, code="session_too_long")

    def logged(self, error: Exception) -> ApiError:
        return logged_api_error(error, self.transport.request_id, "session failed")

    async def attempt(self, change: Awaitable[None]) -> ApiError | None:
        """Change the session; return the error of an invalid change, which has no effect."""
        try:
            await change
        except Exception as error:
            fault = to_api_error(error)
            if fault.status >= 500 and fault.code != UNAVAILABLE:
                raise
            return self.logged(error)
        return None

    async def _run(self) -> None:
        async def keep_running(task: Callable[[], Awaitable[None]]) -> None:
            await task()
            await anyio.sleep_forever()

        others = (self._receive, self._handle, self._drain, self._report, self.background)
        await run_until_first(self._process_queue, *(partial(keep_running, task) for task in others))
        reason = "the server is shutting down" if self._close_code == WS_1012_SERVICE_RESTART else ""
        await self.transport.close(self._close_code, reason)

    async def _receive(self) -> None:
        while (message := await self.transport.receive()) is not None:
            self._last_active_s = time.monotonic()
            if not (self._is_closing or await self.answer_at_once(message)):
                await self.messages.put(message, self.size_of(message))
        await self.messages.put(None)

    async def _handle(self) -> None:
        while not self._is_closing and (message := await self.messages.first()) is not None:
            await self.on_message(message)
            if not self._is_closing:
                self.messages.remove()
        await self.request_close()

    async def _drain(self) -> None:
        await self.services.draining.wait()
        await self.request_close(WS_1012_SERVICE_RESTART)

    def _mark_audio(self) -> None:
        if math.isfinite(self._last_audio_s):
            self._last_audio_s = time.monotonic()

    async def _report(self) -> None:
        """The client is not read once `messages` are full, so that `receive` may not see it go."""
        most_s = self.limits.keepalive_s
        while True:
            await anyio.sleep(min(1.0, most_s, self.idle_s))
            if self.transport.has_disconnected():
                raise ClientDisconnectedError
            await self.report()
            if self._is_working:
                continue
            now_s = time.monotonic()
            if now_s - self._last_active_s > self.idle_s:
                raise silent_too_long(self.idle_s)
            if now_s - self._last_audio_s > most_s:
                text = f"session: expected audio within {most_s:g} s, whatever keeps it alive"
                raise ApiError(text, code="idle_timeout")

    async def _process_queue(self) -> None:
        while True:
            self._is_working, self._last_active_s = False, time.monotonic()
            command = await self.queue.next(lambda: self._session.n_due if self._session else 1)
            self._is_working = True
            if command is None:
                await self.on_audio()
                self._mark_audio()
                self.count(self.processed_s)
                continue
            self.count(self.received_s)
            if isinstance(command, int):  # the close code, the last item
                await self.on_close()
                self._close_code = command
                return
            await command()
            self.queue.end_command()


class WebSocketConnection(LiveConnection[bytes | str]):
    def __init__(self, socket: WebSocket) -> None:
        services = services_of(socket)
        self.socket = socket
        self.websocket = WebSocketTransport(socket, services.settings.limits)
        super().__init__(self.websocket, services)
        self.key = key_of(socket)

    def size_of(self, message: bytes | str) -> int:
        return sys.getsizeof(message)

    @classmethod
    async def at(cls, socket: WebSocket) -> None:
        await cls(socket).serve()


def slices_of(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), SLICE_BYTES):
        yield data[start : start + SLICE_BYTES]


async def in_thread_if_large(size: int, read: Callable[[], T]) -> T:
    return read() if size <= SLICE_BYTES else await anyio.to_thread.run_sync(read)


def require_valid(samples: Samples) -> None:
    try:
        check_floats(samples, "audio")
    except AudioError as error:
        raise ApiError(str(error), code="invalid_audio") from error
