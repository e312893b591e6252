"""The Wyoming protocol on its own port, for Home Assistant's voice satellites and similar clients.

Live speech ends with a pause, also before `audio-stop`; audio sent faster than real time is transcribed to
its end. The `wyoming` package is not used, since it accepts any length that a client claims.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import anyio

from sottovoce.formats.document import Json, json_text
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.server import fields
from sottovoce.server.errors import ApiError, invalid_value
from sottovoce.server.live import LiveConnection, PcmReader
from sottovoce.server.services import Services
from sottovoce.server.settings import ServerLimits
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.types import Event, Final, Partial, SpeechEnded, SpeechStarted

MAX_LINE = 64 * 1024
MAX_DATA = 256 * 1024
VALUE_BYTES, VALUE_MARKS = 64, (b",", b":", b"[", b"{")
"""Memory of an empty object of JSON, the largest value for its length, and marks that come with values."""
MAX_UNREAD = 1024 * 1024
"""Bytes that a client may leave unread: some read only after sending everything."""
logger = logging.getLogger(__name__)
PAUSES_MS = {"default": 700.0, "relaxed": 1_250.0, "aggressive": 250.0}
FORMAT = ("rate", "width", "channels")
EVENTS = "transcribe, audio-start, audio-chunk, audio-stop, describe or ping"
AHEAD_S = 2.0
"""Audio further ahead of real time is a recording."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An event. n_bytes: of memory, at most."""

    kind: str
    data: Mapping[str, object] = field(default_factory=dict)
    payload: bytes = b""
    n_bytes: int = 0


async def read_frame(reader: asyncio.StreamReader, max_payload: int) -> Frame | None:
    """Read the next event; None at the end of the stream.

    max_payload: bytes of audio. Raises: ApiError for an invalid or too large event, after which nothing can
    be read.
    """
    try:
        line = await reader.readline()
    except ValueError:
        raise invalid_value("event", f"a line of at most {MAX_LINE} bytes", "more") from None
    if not line:
        return None
    header = fields.read_typed_message(line, "a JSON object with a type")
    n_data = read_length("data_length", header.get("data_length"), MAX_DATA)
    n_payload = read_length("payload_length", header.get("payload_length"), max_payload)
    try:
        more = await reader.readexactly(n_data)
        payload = await reader.readexactly(n_payload)
    except asyncio.IncompleteReadError:
        return None
    data = fields.read_object("data", header.get("data"), optional=True)
    further = fields.read_object("data", fields.read_json(more)) if more else {}
    text = line + more
    n_bytes = len(text) + VALUE_BYTES * sum(map(text.count, VALUE_MARKS)) + len(payload)
    return Frame(str(header["type"]), {**data, **further}, payload, n_bytes)


def frame_bytes(document: Mapping[str, Json]) -> bytes:
    data = {name: value for name, value in document.items() if name != "type"}
    more = json_text(data).encode() if data else b""
    header: dict[str, Json] = {"type": document["type"], "version": "1.8.0"}
    if more:
        header["data_length"] = len(more)
    return json_text(header).encode() + b"\n" + more


class FrameTransport:
    """A TCP connection, as a `Transport` of frames."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: ServerLimits
    ) -> None:
        self.request_id = f"req_{uuid.uuid4().hex}"
        self._reader = reader
        self._writer = writer
        self.limits = limits
        peer = writer.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.last_frame_s = time.monotonic()

    async def receive(self) -> Frame | None:
        try:
            frame = await read_frame(self._reader, self.limits.message_kb * 1024)
        except OSError:
            return None
        self.last_frame_s = time.monotonic()
        return frame

    def has_disconnected(self) -> bool:
        """A client that has closed its side may still read."""
        return False

    async def send(self, document: dict[str, Json]) -> None:
        self._writer.write(frame_bytes(document))
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD:
            raise ApiError("client: expected to take what it is sent", code="slow_reader")

    async def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection, or abort it if the client does not read.

        Input is drained first: unread input would discard the last messages.
        """
        if self._writer.is_closing():
            return
        with anyio.move_on_after(1.0), suppress(OSError):  # a client that does not close its side
            self._writer.write_eof()
            while await self._reader.read(MAX_LINE):
                pass
        self._writer.close()
        with anyio.move_on_after(self.limits.send_s, shield=True) as waiting, suppress(OSError):
            await self._writer.wait_closed()
        if waiting.cancelled_caught:
            self._writer.transport.abort()

    def drop(self, document: dict[str, Json]) -> None:
        self._writer.write(frame_bytes(document))
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def fail(self, fault: ApiError, document: dict[str, Json]) -> None:
        self._writer.write(frame_bytes(document))
        await self.close()


def read_length(name: str, value: object, limit: int) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise invalid_value(name, f"0 to {limit} bytes", fields.quoted(value))
    return value


def error_document(fault: ApiError) -> dict[str, Json]:
    return {"type": "error", "text": fault.message, "code": fault.code}


class WyomingServer:
    """The connections of a port.

    At the limit, the address with the most idle connections loses its longest silent one.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: set[WyomingConnection] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limits = self._services.settings.limits
        most = 4 * limits.sessions  # clients also ask for `describe`, or are idle
        transport = FrameTransport(reader, writer, limits)
        connection = WyomingConnection(transport, self._services)
        began = time.monotonic()
        try:
            if len(self._open) >= most and not self._evict_for():
                fault = ApiError(f"{most} connections are open", code="rate_limit_exceeded")
                await transport.fail(fault, error_document(fault))
            else:
                self._open.add(connection)
                await connection.serve()
        finally:
            self._open.discard(connection)
            await transport.close()
            seconds = round(time.monotonic() - began, 3)
            logger.info("wyoming", extra={"request_id": transport.request_id, "seconds": seconds})

    def _evict_for(self) -> bool:
        idle = [connection for connection in self._open if connection.is_idle]
        if not idle:
            return False
        n_of = Counter(connection.frames.address for connection in idle)
        dropped = max(
            idle, key=lambda connection: (n_of[connection.frames.address], -connection.frames.last_frame_s)
        )
        self._open.discard(dropped)
        fault = ApiError("connection: expected a command before others needed its place", code="idle_timeout")
        dropped.frames.drop(error_document(fault))
        return True


class WyomingConnection(LiveConnection[Frame]):
    error_document = staticmethod(error_document)

    def __init__(self, transport: FrameTransport, services: Services) -> None:
        super().__init__(transport, services)
        self.frames = transport
        self.idle_s = min(self.limits.head_s, self.limits.idle_s)
        self._wanted = command_options(Frame("transcribe"))
        self._pcm: PcmReader | None = None
        self._format: dict[str, object] = {}
        self._command: SpokenCommand | None = None

    @property
    def is_idle(self) -> bool:
        is_silent = self.messages.is_empty and self.queue.is_empty
        return self._command is None and self._pcm is None and is_silent

    def size_of(self, message: Frame) -> int:
        return message.n_bytes

    async def begin(self) -> None:
        """A client may describe the server first."""

    async def answer_at_once(self, message: Frame) -> bool:
        self.idle_s = self.limits.idle_s
        if message.kind == "describe":
            await self.send({"type": "info", **info_document(self.services)})
        elif message.kind == "ping":
            text = message.data.get("text")
            await self.send({"type": "pong", "text": text if isinstance(text, str) else None})
        else:
            return False
        return True

    async def on_message(self, message: Frame) -> None:
        if message.kind == "transcribe":
            self._wanted = command_options(message)
        elif message.kind == "audio-start":
            await self._begin_command(message, is_announced=True)
        elif message.kind == "audio-chunk":
            pcm = self._pcm or await self._begin_command(message, is_announced=False)
            for name, begun in self._format.items():
                if message.data.get(name, begun) != begun:
                    raise invalid_value(name, f"{begun} as before", fields.quoted(message.data[name]))
            await self.queue_bytes(pcm, message.payload)
        elif message.kind == "audio-stop":
            if self._pcm is not None:
                await self.queue_audio(self._pcm.flush())
            self._pcm = None
            await self.queue.put(self._answer)
        else:
            await self.send(error_document(invalid_value("event", EVENTS, fields.quoted(message.kind))))

    async def on_audio(self) -> None:
        command = self._command
        if command is None or command.is_done:
            self.queue.drop()
            return
        events = await self.session.update()
        if command.detect_end(events, self.processed_s + self.behind_s):
            self.queue.drop()
            events = [*events, *await self.session.flush()]
        await self.emit(events)

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        return self._command.render(events) if self._command else iter(())

    async def on_close(self) -> None:
        if self._command is not None:
            await self._stop(self._command)

    async def _begin_command(self, message: Frame, *, is_announced: bool) -> PcmReader:
        self._pcm = reader_of(message)
        self._format = {name: message.data[name] for name in FORMAT}
        await self.queue.put(partial(self._start, *self._wanted, is_announced=is_announced))
        return self._pcm

    async def _start(self, model: str | None, options: LiveOptions, *, is_announced: bool) -> None:
        if self._command is not None:
            if self._command.is_announced:
                raise invalid_value("audio-start", "an audio-stop before it", "none")
            await self.release()
        self.acquire_slot()
        await self.open(self.services.registry.resolve(model), options)
        self._command = SpokenCommand(is_announced)

    async def _answer(self) -> None:
        """Answer an `audio-stop`, also one without audio, for which the client waits."""
        if self._command is None:
            await self.send({"type": "transcript", "text": "", "language": None})
        else:
            await self._stop(self._command)

    async def _stop(self, command: SpokenCommand) -> None:
        if not command.is_done:
            command.is_done = True
            await self.emit(await self.session.flush())
        self._command = None
        await self.release()

    async def _receive(self) -> None:
        if await self._has_failed(super()._receive):
            await self.messages.put(None)

    async def _handle(self) -> None:
        if await self._has_failed(super()._handle):
            await self.request_close()

    async def _report(self) -> None:
        if await self._has_failed(super()._report):
            await self.request_close()

    async def _has_failed(self, task: Callable[[], Awaitable[None]]) -> bool:
        """Report the error of a task; the text of the audio before it follows."""
        try:
            await task()
        except ApiError as fault:
            await self.send(error_document(fault))
            return True
        return False


class SpokenCommand:
    """is_announced: by `audio-start`; without it the first `audio-chunk` begins one."""

    def __init__(self, is_announced: bool) -> None:
        self.is_announced = is_announced
        self.is_done = False
        self._text = ""
        self._finals: list[str] = []
        """Of a second pass."""
        self._language: str | None = None
        self._has_words = False
        self._is_speech = False
        self._began = time.monotonic()

    def detect_end(self, events: Sequence[Event], received_s: float) -> bool:
        """Return whether live speech has begun and ended. received_s: audio, processed and queued."""
        for event in events:
            self._has_words = self._has_words or isinstance(event, Partial)
            if isinstance(event, SpeechStarted | SpeechEnded):
                self._is_speech = isinstance(event, SpeechStarted)
        is_live = received_s <= time.monotonic() - self._began + AHEAD_S
        has_ended = any(isinstance(event, SpeechEnded) for event in events)
        self.is_done = has_ended and is_live and self._has_words and not self._is_speech
        return self.is_done

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        for event in events:
            if isinstance(event, Final) and event.committed is not None:
                self._finals.append(event.text)
            if not isinstance(event, Partial):
                continue
            if not self._text:
                self._language = event.language
                yield {"type": "transcript-start", "language": event.language}
            text = event.text if self._text else event.text.lstrip()
            self._text += text
            yield {"type": "transcript-chunk", "text": text}
        if self.is_done:
            text = " ".join(filter(None, self._finals)) if self._finals else self._text.strip()
            yield {"type": "transcript", "text": text, "language": self._language}
            if self._text:
                yield {"type": "transcript-stop"}


def command_options(transcribe: Frame) -> tuple[str | None, LiveOptions]:
    data = transcribe.data
    language, name = data.get("language"), data.get("name")
    sensitivity = fields.one_of(*PAUSES_MS)("vad_sensitivity", data.get("vad_sensitivity") or "default")
    terms = fields.check_terms(
        [
            term
            for field in ("transcript_names", "transcript_terms")
            for term in fields.read_list(field, data.get(field) or [])
        ]
    )
    options = LiveOptions(
        finals=fields.read_finals("finals", data.get("finals") or "committed"),
        languages=(fields.read_code("language", str(language)),) if language else (),
        stream=StreamOptions(static_prompt=", ".join(terms)),
        vad=VadStreamOptions(hangover_ms=PAUSES_MS[sensitivity]),
    )
    return name if isinstance(name, str) else None, options


def reader_of(frame: Frame) -> PcmReader:
    rate, width, channels = (fields.read_int(name, frame.data.get(name)) for name in FORMAT)
    if width != 2:
        raise invalid_value("width", "2 bytes", f"{width}")
    if channels not in (1, 2):
        raise invalid_value("channels", "1 or 2", f"{channels}")
    return PcmReader("s16le", rate, channels)


def info_document(services: Services) -> dict[str, Json]:
    about: dict[str, Json] = {
        "attribution": {"name": "sottovoce", "url": ""},
        "installed": True,
        "version": None,
    }
    models: list[Json] = []
    for name in services.registry.settings.names:
        languages: list[Json] = list(services.registry.languages(name))
        models.append({"name": name, "description": name, "languages": languages, **about})
    program: dict[str, Json] = {
        "name": "sottovoce",
        "description": "Speech to text that follows the speaker across languages",
        "models": models,
        "supports_transcript_streaming": True,
        "requires_external_vad": False,
        "prefers_auto_gain_enabled": False,
        "prefers_noise_reduction_enabled": False,
        **about,
    }
    others: dict[str, Json] = {name: [] for name in ("tts", "handle", "intent", "wake", "mic", "snd")}
    return {"asr": [program], **others}
