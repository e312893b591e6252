"""Sessions and recordings in a process of a model, as the server asks for them (`model_work`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import anyio.to_thread

from sottovoce.options.live import LiveOptions
from sottovoce.serving.scheduling.model_work import OwnTranslator, TranscriptionRequest
from sottovoce.serving.scheduling.processes.messages import SessionProgress
from sottovoce.serving.scheduling.processes.process_link import ProcessLink
from sottovoce.speakers.base import Floats
from sottovoce.translation.live_translator import SourceText
from sottovoce.translation.whisper_translate import TARGET
from sottovoce.types import SAMPLE_RATE, Event, Samples, Segment, Transcript

FEED_EVERY_S = 0.1
"""While an update is awaited, what comes meanwhile follows it, so that it may still be part of it."""
MOST_FED_S = 10.0
"""Of audio that no update has heard: from there on it waits here, and its sender with it."""
CHUNK_BYTES = 1_000_000


class RemoteSession:
    """A live session in a process: a `LiveWork`. item: its number there."""

    def __init__(self, link: ProcessLink, item: int) -> None:
        self._link = link
        self._item = item
        self._is_over = False
        link.n_sessions += 1
        self._n_samples = 0
        self._n_waiting = 0
        self.poll_newer_audio: Callable[[], Samples] | None = None

    @property
    def received_s(self) -> float:
        """Seconds of audio so far."""
        return self._n_samples / SAMPLE_RATE

    @property
    def behind_s(self) -> float:
        """Seconds of audio so far that no update has heard."""
        return self._n_waiting / SAMPLE_RATE

    @property
    def live_wait_s(self) -> float:
        """How long live work waits for its turn there, of late."""
        return self._link.state.live_wait_s

    @property
    def place(self) -> object:
        """The process that does the work of this session and of others."""
        return self._link

    async def push(self, pcm: Samples) -> list[Event]:
        """Take samples (n,); see `SessionHandle.push`. Raises: ApiError."""
        self._n_samples += len(pcm)
        self._n_waiting += len(pcm)
        answer = self._link.begin(self._item, "push", pcm)
        try:
            while not answer.done():
                await asyncio.wait({answer}, timeout=FEED_EVERY_S)
                if not answer.done():
                    self._feed()
            return self._noted(answer.result())
        finally:
            answer.cancel()

    async def finalize(self) -> list[Event]:
        """Say now what was heard so far. Raises: ApiError."""
        return await self._emitted("finalize")

    async def flush_and_reset(self) -> list[Event]:
        """Say what was heard so far, and forget it. Raises: ApiError."""
        return await self._emitted("flush_and_reset")

    async def configure(self, options: LiveOptions) -> list[Event]:
        """Go on with other options. Raises: ApiError, with the session as it was."""
        return await self._emitted("configure", options)

    async def close(self) -> list[Event]:
        """Finish what is being said, and end. Raises: ApiError."""
        return await self._emitted("close")

    async def voices(self, enrolled: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Know speakers of an earlier session; the speakers so far. Raises: ApiError."""
        voices: Mapping[str, Floats] = await self._link.call(self._item, "voices", dict(enrolled))
        return voices

    def translator(self) -> OwnTranslator:
        """Make what translates this session, there too."""
        return RemoteTranslator(self._link, self._item)

    def discard(self) -> None:
        """Forget what was heard so far, without saying it."""
        self._link.tell(self._item, "discard")
        self._n_waiting = 0

    def end(self) -> None:
        """Make room for another session; harmless a second time."""
        if not self._is_over:
            self._is_over = True
            self._link.tell(self._item, "end")
            self._link.n_sessions -= 1

    async def _emitted(self, method: str, *arguments: object) -> list[Event]:
        return self._noted(await self._link.call(self._item, method, *arguments))

    def _noted(self, progress: SessionProgress) -> list[Event]:
        self._n_waiting = progress.n_waiting
        return progress.events

    def _feed(self) -> None:
        """Send what came meanwhile after what is being heard."""
        if self.poll_newer_audio is None or self.behind_s > MOST_FED_S:
            return
        newer = self.poll_newer_audio()
        if len(newer):
            self._n_samples += len(newer)
            self._n_waiting += len(newer)
            self._link.tell(self._item, "feed", newer)


@dataclass(frozen=True, slots=True)
class RemoteTranslator:
    """The translator of a session in a process: an `OwnTranslator`. Whisper translates into English alone."""

    link: ProcessLink
    item: int
    target: str = TARGET

    def push(self, pcm: Samples, worked_s: float) -> None:
        """Take samples (n,); see `OwnTranslator`."""
        self.link.tell(self.item, "translator_audio", pcm, worked_s)

    def translate(self, source: SourceText) -> str:
        """Translate; called in a thread that may wait. Raises: ApiError."""
        text: str = self.link.call_from_thread(self.item, "translate", source)
        return text


class RemoteFile(AsyncIterator[Segment]):
    """A recording in a process: a `FileWork`. item: its number there."""

    def __init__(self, link: ProcessLink, item: int) -> None:
        self.n_prompt_tokens = 0
        self._link = link
        self._item = item
        self._is_over = False
        link.n_files += 1

    async def begin(self, source: BinaryIO, request: TranscriptionRequest) -> None:
        """Send the recording, and begin with it. Raises: ApiError."""
        source.seek(0)
        while data := await anyio.to_thread.run_sync(source.read, CHUNK_BYTES):
            self._link.tell(self._item, "recording", data)
            await self._link.drain()
        name = getattr(source, "name", "the upload")
        self.n_prompt_tokens = await self._link.call(self._item, "transcribe", name, request)

    async def __anext__(self) -> Segment:
        segment: Segment | None = await self._link.call(self._item, "segment")
        if segment is None:
            raise StopAsyncIteration
        return segment

    async def collect(self) -> Transcript:
        """Return what was found, with what is left to find. Raises: ApiError."""
        transcript: Transcript = await self._link.call(self._item, "collect")
        return transcript

    def close(self) -> None:
        """Stop; harmless at the end."""
        if not self._is_over:
            self._is_over = True
            self._link.tell(self._item, "end")
            self._link.n_files -= 1
