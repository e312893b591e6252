"""The Wyoming protocol on a port of its own: Home Assistant's voice satellites, and others that speak it.

A client sends `transcribe`, `audio-start`, `audio-chunk`s and `audio-stop`, and gets the text piece by piece
and as a whole. Speech that comes live ends with a pause, whether or not `audio-stop` has come; a recording
that is sent faster than it was spoken is heard to its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from socket import socket as Socket

import anyio
import numpy as np

from sottovoce.audio.vad_stream import VadStreamOptions
from sottovoce.formats.document import Json
from sottovoce.serving.faults import ApiError, fault_of
from sottovoce.serving.fields import wrong
from sottovoce.serving.inbox import Inbox
from sottovoce.serving.listen_wish import checked_terms, code_of
from sottovoce.serving.pcm import PcmReader
from sottovoce.serving.protocol import list_of, whole_of
from sottovoce.serving.scheduler import Live, LiveOptions
from sottovoce.serving.state import Services
from sottovoce.serving.told import Told
from sottovoce.serving.wyoming_frames import MOST_LINE, Frame, frame_bytes, read_frame
from sottovoce.types import SAMPLE_RATE, Partial, Samples, SpeechEnded, SpeechStarted

logger = logging.getLogger(__name__)

PAUSES_MS = {"default": 700.0, "relaxed": 1_250.0, "aggressive": 250.0}
"""That end a command, by `vad_sensitivity`."""
AHEAD_S = 2.0
"""Audio that comes earlier than this before its time is a recording."""
MOST_UNREAD = 1024 * 1024
"""Bytes that a client may leave unread: it may well read only when it has said all."""
CONNECTIONS_PER_SESSION = 4
LINGER_S = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a `transcribe` asks for."""

    model: str | None = None
    language: str | None = None
    terms: tuple[str, ...] = ()
    pause_ms: float = PAUSES_MS["default"]

    @property
    def options(self) -> LiveOptions:
        """As the library's session takes it."""
        vad = VadStreamOptions(hangover_ms=self.pause_ms)
        return LiveOptions((self.language,) if self.language else (), terms=self.terms, vad=vad)


@dataclass(frozen=True, slots=True)
class Begin:
    """Audio begins."""

    wish: Wish


@dataclass(frozen=True, slots=True)
class Stop:
    """No more audio. is_last: nor anything else."""

    is_last: bool = False


class Wyoming:
    """All connections of a port."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._n_open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        most = CONNECTIONS_PER_SESSION * self._services.settings.limits.sessions
        talk = WyomingTalk(reader, writer, self._services)
        self._n_open += 1
        began = time.monotonic()
        try:
            if self._n_open > most:
                await talk.tell_fault(ApiError(f"{most} connections are open", code="rate_limit_exceeded"))
            else:
                await talk.run()
        except OSError:
            pass  # the client has gone
        finally:
            self._n_open -= 1
            await closed(reader, writer, self._services.settings.limits.send_s)
            seconds = round(time.monotonic() - began, 3)
            logger.info("wyoming", extra={"request_id": talk.request_id, "seconds": seconds})


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, within_s: float) -> None:
    """Close a connection; one whose client does not take what it was sent is cut.

    What it still says is read for a moment: closing before that would take back what it was sent.
    """
    with anyio.move_on_after(LINGER_S), suppress(OSError):
        writer.write_eof()
        while await reader.read(MOST_LINE):
            pass
    writer.close()
    with anyio.move_on_after(within_s, shield=True) as waiting, suppress(OSError):
        await writer.wait_closed()
    if waiting.cancelled_caught:
        writer.transport.abort()


class WyomingTalk:
    """One client."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, services: Services
    ) -> None:
        self.request_id = f"req_{uuid.uuid4().hex}"
        self._frames = reader
        self._writer = writer
        self._services = services
        self._limits = services.settings.limits
        self._inbox: Inbox[Begin | Stop] = Inbox(round(self._limits.pending_s * SAMPLE_RATE))
        self._wish = Wish()
        self._pcm: PcmReader | None = None
        self._n_channels = 1

    async def run(self) -> None:
        """Until the client goes, breaks the rules, or the server goes down."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            tasks.start_soon(self._leave)
            try:
                await self._work()
            except Exception as error:
                fault = fault_of(error)
                if fault.status >= 500 and not isinstance(error, ApiError | OSError):
                    logger.error("session failed", exc_info=error, extra={"request_id": self.request_id})
                await self.tell_fault(fault)
            tasks.cancel_scope.cancel()

    async def tell(self, kind: str, data: dict[str, Json] | None = None) -> None:
        """Send one event; a client need not read it yet.

        Raises: ApiError where it has left too much unread.
        """
        self._writer.write(frame_bytes(kind, data or {}))
        if self._writer.transport.get_write_buffer_size() > MOST_UNREAD:
            raise ApiError("client: expected to take what it is sent", code="slow_reader")

    async def tell_fault(self, fault: ApiError) -> None:
        """The last word."""
        await self.tell("error", {"text": fault.message, "code": fault.code})
        with anyio.move_on_after(self._limits.send_s):
            await self._writer.drain()

    async def _leave(self) -> None:
        await self._services.until_leaving()
        await self._inbox.put(Stop(is_last=True))

    async def _listen(self) -> None:
        """Read what the client says; what is no event is the last that is read."""
        try:
            while (frame := await self._next()) is not None:
                await self._take(frame)
        except ApiError as fault:
            await self.tell_fault(fault)
        except OSError:
            pass  # it has gone
        await self._inbox.put(Stop(is_last=True))

    async def _next(self) -> Frame | None:
        """Raises: ApiError."""
        with anyio.move_on_after(self._limits.idle_s):
            return await read_frame(self._frames, self._limits.message_kb * 1024)
        raise ApiError(f"client: expected something within {self._limits.idle_s:g} s", code="idle_timeout")

    async def _take(self, frame: Frame) -> None:
        """Act on an event; of those that are not known there may be any.

        Raises: ApiError.
        """
        if frame.kind == "describe":
            await self.tell("info", info(self._services))
        elif frame.kind == "ping":
            text = frame.data.get("text")
            await self.tell("pong", {"text": text if isinstance(text, str) else None})
        elif frame.kind == "transcribe":
            self._wish = wish_of(frame)
        elif frame.kind == "audio-start":
            self._pcm, self._n_channels = format_of(frame)
            await self._inbox.put(Begin(replace(self._wish)))
        elif frame.kind == "audio-chunk" and self._pcm is not None:
            await self._inbox.put_audio(self._pcm.read(mono(frame.payload, self._n_channels)))
        elif frame.kind == "audio-stop" and self._pcm is not None:
            await self._inbox.put_audio(self._pcm.flush())
            self._pcm = None
            await self._inbox.put(Stop())

    async def _work(self) -> None:
        """Raises: ApiError, OptionError."""
        while True:
            item = await self._inbox.take()
            if isinstance(item, Begin):
                async with AsyncExitStack() as stack:
                    is_last = await self._command(await self._opened(item.wish, stack))
                if is_last:
                    return
            elif isinstance(item, Stop) and item.is_last:
                return

    async def _opened(self, wish: Wish, stack: AsyncExitStack) -> Command:
        """Raises: ApiError, OptionError."""
        stack.enter_context(self._services.session())
        name = self._services.shelf.name_of(wish.model)
        scheduler = await stack.enter_async_context(self._services.shelf.use(name))
        self._services.check_wait(scheduler)
        session = await scheduler.open(wish.options)
        stack.callback(session.discard)
        return Command(session)

    async def _command(self, command: Command) -> bool:
        """Hear one command, and say what it was; whether nothing may follow."""
        while True:
            item = await self._inbox.take()
            if isinstance(item, Begin):
                raise wrong("audio-start", "an audio-stop before it", "none")
            if isinstance(item, Stop):
                if not command.is_done:
                    await self._tell_text(command, await command.session.close(), is_done=True)
                return item.is_last
            if command.is_done:
                continue  # it was said what was heard; what comes late is not of this command
            told = await command.session.push(item)
            self._services.metrics.live_seconds.add(len(item) / SAMPLE_RATE)
            if command.session.received_s > self._limits.session_s:
                raise ApiError(
                    f"audio: expected at most {self._limits.session_s:g} s", code="session_too_long"
                )
            if command.hears_its_end(told, self._inbox.n_samples / SAMPLE_RATE):
                told = [*told, *await command.session.close()]
            await self._tell_text(command, told, is_done=command.is_done)

    async def _tell_text(self, command: Command, told: list[Told], *, is_done: bool) -> None:
        words = [one.event for one in told if isinstance(one.event, Partial)]
        for event in words:
            if not command.text:
                command.language = event.language
                await self.tell("transcript-start", {"language": event.language})
            text = event.text if command.text else event.text.lstrip()
            command.text += text
            await self.tell("transcript-chunk", {"text": text})
        if is_done:
            await self.tell("transcript", {"text": command.text.strip(), "language": command.language})
            if command.text:
                await self.tell("transcript-stop")


class Command:
    """What is said from `audio-start` on."""

    def __init__(self, session: Live) -> None:
        self.session = session
        self.text = ""
        self.language: str | None = None
        self.is_done = False
        self._has_words = False
        self._is_speech = False
        self._began = time.monotonic()

    def hears_its_end(self, told: list[Told], waiting_s: float) -> bool:
        """Whether somebody has spoken and stopped, live; waiting_s: of audio that was not heard yet."""
        for one in told:
            self._has_words = self._has_words or isinstance(one.event, Partial)
            if isinstance(one.event, SpeechStarted | SpeechEnded):
                self._is_speech = isinstance(one.event, SpeechStarted)
        is_live = self.session.received_s + waiting_s <= time.monotonic() - self._began + AHEAD_S
        heard = any(isinstance(one.event, SpeechEnded) for one in told)
        self.is_done = heard and is_live and self._has_words and not self._is_speech
        return self.is_done


def wish_of(frame: Frame) -> Wish:
    """What a `transcribe` asks for. Raises: ApiError."""
    data = frame.data
    language, name = data.get("language"), data.get("name")
    sensitivity = data.get("vad_sensitivity") or "default"
    if not isinstance(sensitivity, str) or sensitivity not in PAUSES_MS:
        raise wrong("vad_sensitivity", f"one of {', '.join(PAUSES_MS)}", f"'{str(sensitivity)[:50]}'")
    terms = [
        term
        for field in ("transcript_names", "transcript_terms")
        for term in list_of(field, data.get(field) or [])
    ]
    return Wish(
        model=name if isinstance(name, str) else None,
        language=code_of("language", str(language)) if language else None,
        terms=checked_terms(terms),
        pause_ms=PAUSES_MS[sensitivity],
    )


def format_of(frame: Frame) -> tuple[PcmReader, int]:
    """What reads the audio, and how many channels it has. Raises: ApiError, OptionError."""
    rate, width, channels = (whole_of(name, frame.data.get(name)) for name in ("rate", "width", "channels"))
    if width != 2:
        raise wrong("width", "2 bytes", f"{width}")
    if channels not in (1, 2):
        raise wrong("channels", "1 or 2", f"{channels}")
    try:
        return PcmReader("s16le", rate), channels
    except Exception as error:
        raise fault_of(error, param="rate") from error


def mono(audio: bytes, n_channels: int) -> bytes:
    """16-bit audio of one channel; half a frame at its end is left out."""
    if n_channels == 1:
        return audio
    whole = len(audio) - len(audio) % (2 * n_channels)
    frames: Samples = np.frombuffer(audio[:whole], "<i2").reshape(-1, n_channels).mean(axis=1)
    return frames.astype("<i2").tobytes()


def info(services: Services) -> dict[str, Json]:
    """What is offered here."""
    about: dict[str, Json] = {
        "attribution": {"name": "sottovoce", "url": ""},
        "installed": True,
        "version": None,
    }
    models: list[Json] = []
    for name in services.shelf.offer.names:
        languages: list[Json] = list(services.shelf.languages(name))
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


async def start_wyoming(services: Services, listening: Socket) -> asyncio.Server:
    """Serve the connections of a socket that listens."""
    return await asyncio.start_server(Wyoming(services).serve, sock=listening, limit=MOST_LINE)
