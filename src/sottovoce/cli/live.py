"""Speech as it comes, from a file, standard input or the microphone, for `sottovoce stream`."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from sottovoce.api import Model
from sottovoce.audio.input_format import read_input_format
from sottovoce.audio.io import load_audio, open_audio, read_live
from sottovoce.audio.microphone import Microphone
from sottovoce.backends.base import EXACT, EncoderMode
from sottovoce.cli.flags import read_values
from sottovoce.cli.interrupt import Interrupts
from sottovoce.cli.live_translation import TranslatedView, live_translator
from sottovoce.cli.live_view import LiveView
from sottovoce.cli.options import check_fusion, fusion_of, hotword_text, open_model
from sottovoce.cli.recorder import WaveRecorder
from sottovoce.cli.speakers import live_speakers_of
from sottovoce.cli.translation import live_translation_of
from sottovoce.errors import OptionError, cause_of
from sottovoce.evaluation.latency import LogLine
from sottovoce.formats.document import event_line
from sottovoce.formats.output import label_of
from sottovoce.options.schema import made, options_of
from sottovoce.options.vad import VadStreamOptions
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.translation.live_translator import LiveTranslator
from sottovoce.types import SAMPLE_RATE, Event, Partial, Samples, Word

MOST_WAITING = 2048
"""Pieces that wait in a queue: a long recording through a pipe is not kept in memory as a whole."""


def transcribe_live(source: str | None, given: dict[str, Any], interrupts: Interrupts) -> int:
    """Transcribe one recording as it comes; return the exit code.

    What can be wrong with the call is found out before the model is loaded.
    Raises: SottovoceError.
    """
    check(source, given)
    translation = live_translation_of(given)
    live_speakers_of(given)
    chunk_samples = round(given["chunk_ms"] * SAMPLE_RATE / 1000)
    with ExitStack() as stack:
        pieces = source_pieces(
            source, chunk_samples, realtime=given["realtime"], input_format=given["input_format"]
        )
        comes_in_time = not given["unaware"] and (given["realtime"] or source is None or is_pipe(source))
        if comes_in_time:
            pieces = caught_up(pieces)
        if given["save_audio"]:
            recorder = stack.enter_context(WaveRecorder(Path(given["save_audio"])))
            pieces = recorder.through(pieces)
        model = open_model(given)
        translator, pieces = live_translator(translation, model, pieces)
        session = open_session(model, given)
        show = sink(given, stack, translator)
        emitted = run(session, pieces, show, interrupts, newest_only=comes_in_time)
    if given["log_path"]:
        append_log(Path(given["log_path"]), emitted, source or "microphone")
    return interrupts.exit_code if emitted.is_polite_end else 0


def check(source: str | None, given: dict[str, Any]) -> None:
    """Raises: OptionError for options that exclude each other, and a log that cannot be written; AudioError
    for a recording that cannot be opened. A pipe is opened once, later."""
    if bool(source) == given["mic"]:
        raise OptionError("stream: expected one of FILE, - and --mic")
    if given["realtime"] and given["unaware"]:
        raise OptionError("stream: expected one of --realtime and --unaware, got both")
    check_fusion(given)
    copy = given["save_audio"]
    if copy and source and os.path.realpath(copy) == os.path.realpath(source):
        raise OptionError(f"--save-audio '{copy}': is the recording itself, choose another name")
    if given["log_path"]:
        log = Path(given["log_path"])
        is_file = log.is_file() or (not log.exists() and log.parent.is_dir())
        if not is_file or not os.access(log if log.exists() else log.parent, os.W_OK):
            raise OptionError(f"--log '{log}': expected a file that can be written")
    if given["input_format"] is not None:
        read_input_format(given["input_format"])
    if source and not is_pipe(source):
        with open_audio(source, input_format=given["input_format"]):
            pass


def open_session(model: Model, given: dict[str, Any]) -> Session:
    """Open the session that the options ask for."""
    vad = made(VadStreamOptions, given, post_roll_ms=min(100.0, given["hangover_ms"]))
    return model.session(
        given["languages"],
        switching=given["switching"],
        vad=False if given["no_vad"] else vad,
        unstable=given["unstable"],
        stream=stream_options(model, given),
        end_of_word=given["cif"],
        speakers=live_speakers_of(given),
    )


def stream_options(model: Model, given: dict[str, Any]) -> StreamOptions:
    """Read how to decode; hotwords given as text stay before the prompt.

    Raises: LanguageModelError, OptionError.
    """
    terms = [given["static_prompt"], hotword_text(given) or ""]
    return made(
        StreamOptions,
        read_values(given, options_of(StreamOptions)),
        chunk_s=given["chunk_ms"] / 1000,
        static_prompt=" ".join(term for term in terms if term),
        encoder=_encoder_mode(model, given["encoder"]),
        fusion=fusion_of(model, given),
    )


def _encoder_mode(model: Model, name: str) -> EncoderMode | None:
    return {"auto": None, "whole": model.backend.encoder_mode.whole(), "exact": EXACT}[name]


def is_pipe(source: str) -> bool:
    """Return whether a source is standard input or a named pipe, which can be read only once."""
    return source == "-" or Path(source).is_fifo()


def source_pieces(
    source: str | None, n_samples: int, *, realtime: bool, input_format: str | None = None
) -> Iterator[Samples]:
    """Yield samples as they come from the microphone, a pipe or a file."""
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
    """Yield a recording piece by piece; realtime: each no sooner than its last sample would be spoken."""
    began = time.monotonic()
    for start in range(0, len(audio), n_samples):
        piece = audio[start : start + n_samples]
        if realtime:
            due = began + (start + len(piece)) / SAMPLE_RATE
            time.sleep(max(0.0, due - time.monotonic()))
        yield piece


def caught_up(
    pieces: Iterator[Samples], clock: Callable[[], float] = time.monotonic
) -> Generator[Samples, None, None]:
    """Yield pieces of sound; those that came at the speed of sound while the last one was worked on, as one.

    A thread reads the pieces, at most 2 `MOST_WAITING` ahead, and notes when each came. clock: seconds.
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
                # What waits for a place came faster than it is worked on, at whatever speed it is taken.
                came_s = came_s if came.full() else clock()
                give((piece, came_s))
            give(None)
        except BaseException as error:  # for the thread that works
            give(error)

    reader = threading.Thread(target=read, name="sottovoce-source", daemon=True)
    reader.start()
    waiting: deque[tuple[Samples, float]] = deque()
    end: BaseException | None = None
    is_open = True
    try:
        while is_open or waiting:
            while is_open and len(waiting) < MOST_WAITING and not (waiting and came.empty()):
                try:
                    received = came.get(timeout=0.5)  # a limit lets Ctrl-C through on every platform
                except queue.Empty:
                    continue
                if isinstance(received, tuple):
                    waiting.append(received)
                else:
                    is_open, end = False, received
            if waiting:
                joined = [waiting.popleft()[0] for _ in range(n_joined(waiting, clock()))]
                yield np.concatenate(joined)
        if end is not None:
            raise end
    finally:
        is_left.set()
        reader.join(1.0)  # a microphone is closed by it; a pipe may bring nothing for long


def n_joined(
    waiting: Sequence[tuple[Samples, float]], now_s: float, *, late_s: float = 0.5, most_s: float = 10.0
) -> int:
    """Return how many of the waiting pieces, each with the time at which it came, are worked on as one.

    Several, of most_s together, where the first one has waited for longer than late_s, and they came no more
    than twice as fast as they sound. What comes faster (`cat FILE |`) has nobody who waits for it: its pieces
    stay apart, and the result does not depend on the speed of the machine.
    """
    _, first_s = waiting[0]
    _, last_s = waiting[-1]
    seconds = np.cumsum([len(piece) for piece, _ in waiting]) / SAMPLE_RATE
    if now_s - first_s <= late_s or last_s - first_s < (seconds[-1] - seconds[0]) / 2:
        return 1
    return max(1, int(np.searchsorted(seconds, most_s, side="right")))


def sink(
    given: dict[str, Any], stack: ExitStack, translator: LiveTranslator | None
) -> Callable[[Sequence[Event]], None]:
    """Make what shows events: JSON lines, or text on the terminal."""
    if translator is not None:
        if given["jsonl"]:
            return TranslatedView(translator, out=sys.stdout)
        return TranslatedView(translator, show=stack.enter_context(LiveView()).show)
    if given["jsonl"]:
        return lambda events: write_lines(events, sys.stdout)
    return stack.enter_context(LiveView()).show


def write_lines(events: Sequence[Event], out: TextIO) -> None:
    for event in events:
        out.write(event_line(event))
    out.flush()


class EmittedWords:
    """Words with the audio received and the clock at their emission."""

    def __init__(self) -> None:
        self.words: list[tuple[Word, float, float]] = []
        self.n_samples = 0
        self.is_polite_end = False
        """Whether the process was asked to end, by a signal."""

    def take(self, events: Sequence[Event], elapsed_s: float) -> None:
        for event in events:
            if isinstance(event, Partial):
                self.words += [(word, event.emission_time, elapsed_s) for word in event.words]


def run(
    session: Session,
    pieces: Iterator[Samples],
    show: Callable[[Sequence[Event]], None],
    interrupts: Interrupts,
    *,
    newest_only: bool = False,
) -> EmittedWords:
    """Push every piece and show what follows; an interrupt ends the recording, and its tail is said.

    newest_only: see `Session.push`.
    """
    emitted = EmittedWords()
    began = time.monotonic()
    try:
        for piece in pieces:
            interrupts.check()
            with interrupts.deferred():  # a session that is left half-way has committed what it never said
                emitted.n_samples += len(piece)
                events = session.push(np.ascontiguousarray(piece), newest_only=newest_only)
                emitted.take(events, time.monotonic() - began)
                show(events)
    except KeyboardInterrupt:
        interrupts.take()
        emitted.is_polite_end = interrupts.is_polite_end
        click.echo(f"{interrupts.word}: finishing what was heard", err=True)
    events = session.close()
    emitted.take(events, time.monotonic() - began)
    show(events)
    return emitted


def append_log(path: Path, emitted: EmittedWords, source: str) -> None:
    """Add one line; its index is the number of lines that are there. Raises: OptionError."""
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
