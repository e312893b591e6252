"""Live transcription of a file, standard input or the microphone, for `sottovoce stream`."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import wave
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import click
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from sottovoce.api import Model
from sottovoce.audio.io import check_reading, load_audio, open_audio, read_live
from sottovoce.audio.microphone import Microphone
from sottovoce.cli.flags import Given, given_as, value_of
from sottovoce.cli.invocation import Interrupts
from sottovoce.cli.options import (
    FusionOptions,
    ModelOptions,
    StreamFlags,
    Translation,
    TranslationOptions,
    fusion_of,
    live_speakers_of,
    open_model,
    translation_of,
)
from sottovoce.errors import OptionError, TranslationError, cause_of
from sottovoce.evaluation.latency import LogLine
from sottovoce.formats.document import event_line, json_text
from sottovoce.formats.output import label_of
from sottovoce.models.backend import EXACT, EncoderMode
from sottovoce.options.schema import made
from sottovoce.options.vad import VadStreamOptions
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.streaming.options import SessionOptions, StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator, mark_newest
from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator
from sottovoce.types import SAMPLE_RATE, Event, Final, LanguageChanged, Partial, Samples, Unstable, Word

Show = Callable[[Sequence[Event]], None]
MOST_WAITING = 2048
"""Limit of a queue of audio from a pipe."""
LATE_S, JOINED_S = 0.5, 10.0


def transcribe_live(source: str | None, given: Given, interrupts: Interrupts) -> int:
    """Transcribe one live recording; return the exit code. Raises: SottovoceError."""
    flags = given_as(StreamFlags, given)
    fusion = given_as(FusionOptions, given)
    check(source, flags, fusion)
    translation = translation_of(given_as(TranslationOptions, given), flags.task)
    live_speakers_of(flags.speakers, given)
    chunk_samples = round(flags.chunk_ms * SAMPLE_RATE / 1000)
    with ExitStack() as stack:
        pieces = source_pieces(
            source, chunk_samples, realtime=flags.realtime, input_format=flags.input_format
        )
        comes_in_time = not flags.unaware and (flags.realtime or source is None or is_pipe(source))
        controller = UpdateIntervalController(time.monotonic()) if comes_in_time else None
        if controller is not None:
            pieces = caught_up(pieces, controller)
        if flags.save_audio:
            recorder = stack.enter_context(WaveRecorder(Path(flags.save_audio)))
            pieces = recorder.through(pieces)
        model = open_model(given_as(ModelOptions, given))
        translator, pieces = live_translator(translation, model, pieces)
        session = open_session(model, given, flags, fusion)
        show = sink(stack, translator, as_json=flags.jsonl)
        emitted = run(session, pieces, show, interrupts, controller)
    if flags.log_path:
        append_log(Path(flags.log_path), emitted, source or "microphone")
    return interrupts.exit_code if emitted.is_polite_end else 0


def check(source: str | None, flags: StreamFlags, fusion: FusionOptions) -> None:
    """Check a live call before its model is loaded.

    Raises: OptionError; AudioError for an unreadable recording, except a pipe.
    """
    if bool(source) == flags.mic:
        raise OptionError("stream: expected one of FILE, - or --mic")
    fusion.check(flags.beam_size)
    copy = flags.save_audio
    if copy and source and os.path.realpath(copy) == os.path.realpath(source):
        raise OptionError(f"--save-audio '{copy}': expected another file than the recording")
    if flags.log_path:
        log = Path(flags.log_path)
        is_file = log.is_file() or (not log.exists() and log.parent.is_dir())
        if not is_file or not os.access(log if log.exists() else log.parent, os.W_OK):
            raise OptionError(f"--log '{log}': cannot be written")
    check_reading(None, flags.input_format)
    if source and not is_pipe(source):
        with open_audio(source, input_format=flags.input_format):
            pass


def open_session(model: Model, given: Given, flags: StreamFlags, fusion: FusionOptions) -> Session:
    hangover_ms = value_of(given, "hangover_ms", float)
    post_roll_ms = 100.0 if hangover_ms is None else min(100.0, hangover_ms)
    vad = made(VadStreamOptions, given, post_roll_ms=post_roll_ms)
    terms = [value_of(given, "static_prompt", str), fusion.prompt]
    stream = given_as(
        StreamOptions,
        given,
        chunk_s=flags.chunk_ms / 1000,
        static_prompt=" ".join(term for term in terms if term),
        encoder=_encoder_mode(model, flags.encoder),
        fusion=fusion_of(model, fusion),
    )
    return model.session(
        flags.languages,
        switching=flags.switching,
        following=SessionOptions(switch_certainty=flags.switch_certainty),
        vad=False if flags.no_vad else vad,
        captions=flags.captions,
        unstable=flags.unstable,
        stream=stream,
        speakers=live_speakers_of(flags.speakers, given),
    )


def _encoder_mode(model: Model, name: str) -> EncoderMode | None:
    return {"auto": None, "whole": model.backend.encoder_mode.whole(), "exact": EXACT}[name]


def is_pipe(source: str) -> bool:
    return source == "-" or Path(source).is_fifo()


def source_pieces(
    source: str | None, n_samples: int, *, realtime: bool, input_format: str | None = None
) -> Iterator[Samples]:
    chunk_s = n_samples / SAMPLE_RATE
    if source is None:
        with Microphone(chunk_s=chunk_s) as microphone:
            yield from (chunk.samples for chunk in microphone)
    elif source == "-":
        # Unbuffered: a buffered read waits until it is full.
        stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        for chunk in read_live(stream, input_format=input_format, chunk_s=chunk_s):
            yield chunk.samples
    elif is_pipe(source):
        with open(source, "rb", buffering=0) as stream:
            for chunk in read_live(stream, input_format=input_format, chunk_s=chunk_s, name=source):
                yield chunk.samples
    else:
        yield from file_pieces(load_audio(source, input_format=input_format), n_samples, realtime=realtime)


def file_pieces(audio: Samples, n_samples: int, *, realtime: bool) -> Iterator[Samples]:
    """Yield a recording in pieces; realtime: each at the time of its last sample."""
    began = time.monotonic()
    for start in range(0, len(audio), n_samples):
        piece = audio[start : start + n_samples]
        if realtime:
            due = began + (start + len(piece)) / SAMPLE_RATE
            time.sleep(max(0.0, due - time.monotonic()))
        yield piece


def caught_up(
    pieces: Iterator[Samples], controller: UpdateIntervalController | None = None
) -> Generator[Samples, None, None]:
    """Yield pieces of audio; those that arrived in real time during the previous step are joined.

    A thread reads ahead. controller: chooses from the delays how much is joined.
    """
    came: queue.Queue[tuple[Samples, float] | BaseException | None] = queue.Queue(MOST_WAITING)
    is_left = threading.Event()

    def give(item: tuple[Samples, float] | BaseException | None) -> None:
        while not is_left.is_set():
            with suppress(queue.Full):
                came.put(item, timeout=0.5)
                return

    def read() -> None:
        came_s = 0.0
        try:
            for piece in pieces:
                if is_left.is_set():
                    break
                # Pieces that wait for a slot arrived faster than they are processed.
                came_s = came_s if came.full() else time.monotonic()
                give((piece, came_s))
            give(None)
        except BaseException as error:  # raised again in the main thread
            give(error)

    reader = threading.Thread(target=read, name="sottovoce-source", daemon=True)
    reader.start()
    waiting: deque[tuple[Samples, float]] = deque()
    end: BaseException | None = None
    is_open = True
    pace = RealTime()

    def is_due() -> bool:
        if not waiting or controller is None or not controller.is_stretched:
            return bool(waiting)
        return sum(len(piece) for piece, _ in waiting) >= controller.interval_s * SAMPLE_RATE

    try:
        while is_open or waiting:
            while is_open and len(waiting) < MOST_WAITING and not (is_due() and came.empty()):
                try:
                    received = came.get(timeout=0.5)  # a limit lets Ctrl-C through on every platform
                except queue.Empty:
                    continue
                if isinstance(received, tuple):
                    waiting.append(received)
                else:
                    is_open, end = False, received
            if waiting:
                now_s, came_s = time.monotonic(), waiting[0][1]
                least_s = controller.interval_s if controller is not None and controller.is_stretched else 0.0
                joined = [waiting.popleft()[0] for _ in range(n_joined(waiting, now_s, least_s))]
                audio = np.concatenate(joined)
                is_live = pace.add(came_s, len(audio))
                yield audio
                if controller is not None and is_live:
                    controller.note_wait(now_s - came_s)
                    controller.note_work(time.monotonic() - now_s, time.monotonic())
        if end is not None:
            raise end
    finally:
        is_left.set()
        reader.join(1.0)  # the thread closes a microphone; a pipe may block for long


class RealTime:
    """Whether audio has arrived at no more than twice real time."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._n_samples = 0

    def add(self, came_s: float, n_samples: int) -> bool:
        """Add a piece; return whether all before it came in real time."""
        self._first_s = came_s if self._first_s is None else self._first_s
        is_live = self._n_samples > 0 and came_s - self._first_s >= self._n_samples / SAMPLE_RATE / 2
        self._n_samples += n_samples
        return is_live


def n_joined(waiting: Sequence[tuple[Samples, float]], now_s: float, least_s: float = 0.0) -> int:
    """Return how many of the waiting pieces, with their times of arrival, are processed as one.

    Pieces of least_s seconds; if the first one is late and they arrived at no more than twice real time,
    pieces of `JOINED_S`. Faster input (`cat FILE |`) is never joined, so its result does not depend on the
    machine.
    """
    _, first_s = waiting[0]
    _, last_s = waiting[-1]
    seconds = np.cumsum([len(piece) for piece, _ in waiting]) / SAMPLE_RATE
    if now_s - first_s <= LATE_S or last_s - first_s < (seconds[-1] - seconds[0]) / 2:
        return min(len(waiting), 1 + int(np.searchsorted(seconds, least_s)))
    return max(1, int(np.searchsorted(seconds, JOINED_S, side="right")))


def sink(stack: ExitStack, translator: LiveTranslator | None, *, as_json: bool) -> Show:
    if translator is not None:
        return TranslatedView(translator, None if as_json else stack.enter_context(LiveView()).show)
    return write_lines if as_json else stack.enter_context(LiveView()).show


def write_lines(events: Sequence[Event]) -> None:
    for event in events:
        sys.stdout.write(event_line(event))
    sys.stdout.flush()


class EmittedWords:
    def __init__(self) -> None:
        self.words: list[tuple[Word, float, float]] = []
        self.n_samples = 0
        self.is_polite_end = False

    def take(self, events: Sequence[Event], elapsed_s: float) -> None:
        for event in events:
            if isinstance(event, Partial):
                self.words += [(word, event.emission_time, elapsed_s) for word in event.words]


def run(
    session: Session,
    pieces: Iterator[Samples],
    show: Show,
    interrupts: Interrupts,
    controller: UpdateIntervalController | None = None,
) -> EmittedWords:
    """Push every piece and show the events; an interrupt ends the recording and finalises it.

    controller: drops late updates of real-time audio; None: every update is done.
    """
    emitted = EmittedWords()
    began = time.monotonic()
    try:
        for piece in pieces:
            interrupts.check()
            with interrupts.deferred():  # an interrupt half-way would lose committed text
                emitted.n_samples += len(piece)
                events = session.push(
                    np.ascontiguousarray(piece),
                    newest_only=controller is not None,
                    greedy=controller is not None and controller.is_greedy,
                )
                emitted.take(events, time.monotonic() - began)
                show(events)
    except KeyboardInterrupt:
        interrupts.take()
        emitted.is_polite_end = interrupts.is_polite_end
        click.echo(f"{interrupts.word}: transcribing the rest", err=True)
    events = session.close()
    emitted.take(events, time.monotonic() - began)
    show(events)
    return emitted


def append_log(path: Path, emitted: EmittedWords, source: str) -> None:
    try:
        index = len(path.read_bytes().splitlines()) if path.exists() else 0
        line = LogLine(
            index,
            tuple(word.word.strip() for word, _, _ in emitted.words),
            tuple(delay for _, delay, _ in emitted.words),
            tuple(elapsed for _, _, elapsed in emitted.words),
            emitted.n_samples / SAMPLE_RATE,
            label_of(source),
        )
        with path.open("a", encoding="utf-8") as file:
            file.write(line.to_json() + "\n")
    except OSError as error:
        raise OptionError(f"--log '{path}': cannot be written ({cause_of(error)})") from error


class WaveRecorder:
    """Writes 16-bit mono audio; a context manager. Interrupted recordings are valid files.

    Existing content stays until the first piece arrives. If the disk is full, the error comes at the end.
    Raises: OptionError for a path that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: wave.Wave_write | None = None
        self._raw: BinaryIO | None = None
        self._fault: OptionError | None = None
        was_there = path.exists()
        with self._named():
            path.open("ab").close()
            if not was_there:
                path.unlink()

    def __enter__(self) -> WaveRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._fault_deferred(), ExitStack() as stack:
            if self._raw is not None:
                stack.callback(self._raw.close)
            if self._file is not None:
                self._file.close()
        if kind is None and self._fault is not None:
            raise self._fault

    def through(self, pieces: Iterator[Samples]) -> Iterator[Samples]:
        for piece in pieces:
            if self._fault is None:
                with self._fault_deferred():
                    self._file = self._file or self._begun()
                    self._file.writeframes((np.clip(piece, -1.0, 1.0) * 32767).astype("<i2").tobytes())
            yield piece

    def _begun(self) -> wave.Wave_write:
        self._raw = self._path.open("wb")
        file = wave.open(self._raw, "wb")  # noqa: SIM115
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        return file

    @contextmanager
    def _fault_deferred(self) -> Iterator[None]:
        try:
            with self._named():
                yield
        except OptionError as error:
            self._fault = self._fault or error

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OptionError(f"recording '{self._path}': cannot be written ({cause_of(error)})") from error


COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


class LiveView:
    def __init__(self, console: Console | None = None) -> None:
        # with FORCE_COLOR rich treats a pipe as a terminal, and redraws lines
        self._console = console or Console(force_terminal=sys.stdout.isatty())
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._line = Text()
        self._unstable = Text()
        self._colours: dict[str, str] = {}

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, events: Sequence[Event]) -> None:
        for event in events:
            self._take(event)
        if self._console.is_terminal:
            self._live.update(self._line + self._unstable, refresh=True)

    def _take(self, event: Event) -> None:
        if isinstance(event, Partial):
            self._line.append(event.text, style=self._colour(event.language))
            self._unstable = Text()
        elif isinstance(event, Unstable):
            self._unstable = Text(event.text, style=f"dim {self._colour(event.language)}")
        elif isinstance(event, Final):
            tag = f"[{event.language} {event.start:7.2f}-{event.end:7.2f}] "
            self._line, self._unstable = Text(), Text()
            if self._console.is_terminal:
                self._live.update(self._line)
            self._console.print(Text.assemble((tag, "dim"), self._spoken(event)), soft_wrap=True)
        elif isinstance(event, LanguageChanged) and event.source is not None:
            self._unstable = Text()

    def _spoken(self, event: Final) -> Text:
        style = self._colour(event.language)
        if not any(word.speaker for word in event.words):
            return Text(event.text, style)
        parts = [
            f"{speaker or '?'}: {''.join(word.word for word in words).strip()}"
            for speaker, words in groupby(event.words, key=lambda word: word.speaker)
        ]
        return Text("  ".join(parts), style)

    def _colour(self, language: str) -> str:
        if language not in self._colours:
            self._colours[language] = COLOURS[len(self._colours) % len(COLOURS)]
        return self._colours[language]


def live_translator(
    translation: Translation | None, model: Model, pieces: Iterator[Samples]
) -> tuple[LiveTranslator | None, Iterator[Samples]]:
    if translation is None:
        return None, pieces
    if translation.translator is not None:
        return LiveTranslator(translation.translator), pieces
    own = WhisperTranslator(model)
    return LiveTranslator(own, N_NEW_WORDS), own.tee(pieces)


@dataclass(slots=True)
class TranslatedView:
    """Shows events at once, and their translations later. show: None writes JSON lines.

    A failed translation is one line on standard error.
    """

    translator: LiveTranslator
    show: Show | None
    _seq: int = field(default=0, init=False)

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            if self.show is None:
                sys.stdout.write(event_line(replace(event, seq=self._next())))
            else:
                self.show([event])
        sys.stdout.flush()
        for event, is_newest in mark_newest(events):
            try:
                for translation in self.translator.take(event, is_newest=is_newest):
                    self._write(translation, event)
                    sys.stdout.flush()
            except TranslationError as error:
                click.echo(f"error: {error}", err=True)

    def _write(self, translation: LiveTranslation, event: Event) -> None:
        if self.show is None:
            sys.stdout.write(json_text({**translation.document, "seq": self._next()}) + "\n")
        elif isinstance(event, Final) and translation.text != event.text.strip():
            # Else the speech is in the target language.
            times = f"[{translation.language} {translation.start:7.2f}-{translation.end:7.2f}]"
            click.echo(f"{times} {translation.text}")

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1
