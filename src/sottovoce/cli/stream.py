"""`sottovoce stream`: live transcription of a file, standard input or the microphone."""

from __future__ import annotations

import itertools
import math
import os
import queue
import sys
import threading
import time
import wave
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from sottovoce.cli.documents import LanguageColours
from sottovoce.cli.invocation import Interrupts, invocation_of, say, say_error
from sottovoce.cli.options import (
    BEAM_SIZE,
    BY_KEY,
    FINAL_MODEL,
    FUSION,
    MODEL,
    OF_TRANSLATION,
    STORED_VOICES,
    TASK,
    TRANSLATION,
    VOICES,
    FusionOptions,
    ModelOptions,
    SectionedCommand,
    Translation,
    TranslationOptions,
    grouped,
    open_model,
    speakers_of,
)
from sottovoce.errors import OptionError, TranslationError
from sottovoce.formats.document import event_line, json_text
from sottovoce.formats.files import format_of, save_transcript, writer_for
from sottovoce.formats.output import label_of, writable_folder
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.options.schema import Option, Values, from_values, options_of
from sottovoce.options.text import TextOptions
from sottovoce.options.transcribe import SpeakerOptions, check_speaker_names
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.text.files import writing
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator, mark_newest
from sottovoce.types import (
    SAMPLE_RATE,
    AudioChunk,
    Event,
    Final,
    LanguageChanged,
    Partial,
    Samples,
    Segment,
    Transcript,
    Unstable,
    Word,
)

if TYPE_CHECKING:
    from sottovoce.recogniser import Recogniser
    from sottovoce.streaming.live_session import LiveSession
    from sottovoce.streaming.sources import SourcesSession

Show = Callable[[Sequence[Event]], None]
MOST_WAITING = 2048
"""Limit of a queue of audio from a pipe."""
LATE_S, JOINED_S = 0.5, 10.0


@dataclass(frozen=True, slots=True)
class StreamFlags:
    realtime: bool = Option(
        "Real-time input: of several late updates only the newest is done (default of real-time pipes)."
    ).as_field(False)
    unaware: bool = Option("Do all updates, however late (default of files).").as_field(False)
    input_format: str | None = replace(
        BY_KEY["input_format"], unset="a container, or s16le at 16 kHz"
    ).as_field(None)
    chunk_ms: int = Option("Audio between two updates.", least=10).as_field(250)
    encoder: Literal["auto", "whole", "exact"] = Option(
        "Audio encoded in an update: auto: the newest; whole: all that is kept; exact: 30 s, as trained.",
        choices=("auto", "whole", "exact"),
    ).as_field("auto")
    no_vad: bool = Option("Decode silence too, without voice activity detection.").as_field(False)
    final_model: str | None = FINAL_MODEL.as_field(None)
    jsonl: bool = Option("Print one JSON event a line.").as_field(False)


SOURCES = click.Option(
    ["--sources"],
    metavar="NAME[=DEVICE|PIPE],…",
    help="Several sources, a name each: channels of FILE, pipes, or with --mic devices (me=,others=monitor).",
)
REALTIME, UNAWARE, INPUT_FORMAT, CHUNK_MS, ENCODER, NO_VAD, FINALS_BY, JSONL = options_of(StreamFlags)
MIC = click.Option(
    ["--mic"],
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Record from the microphone (extra `mic`): the default one, or one by its name or number.",
)
OUTPUT = click.Option(
    ["-o", "--output"],
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Save the transcript at the end, in the format of the name: talk.srt, talk.txt, talk.json, ….",
)
SAVE_AUDIO = click.Option(
    ["--save-audio"], type=click.Path(dir_okay=False), help="Save the audio as a WAV file."
)
LOG = click.Option(
    ["--log", "log_path"],
    type=click.Path(dir_okay=False),
    help="Append a SimulEval-style line for each recording.",
)
LIVE = (*options_of(LiveOptions), *options_of(StreamOptions), *options_of(VadStreamOptions))
POLICY = "When words are said"
SECTIONS = {
    "Model": MODEL,
    "Source": (MIC, SOURCES, REALTIME, UNAWARE, INPUT_FORMAT, SAVE_AUDIO),
    "Language": (*grouped("Language", of=LIVE), *TASK),
    "Style": grouped("Style", of=LIVE),
    "Search": (BEAM_SIZE, *FUSION),
    POLICY: (*grouped(POLICY, of=LIVE), CHUNK_MS, ENCODER, *grouped("Padding", of=LIVE)),
    "Speech": (NO_VAD, *grouped("Edges", of=LIVE)),
    "Speakers": (*grouped("Speakers", of=LIVE), VOICES, STORED_VOICES),
    "Translation": TRANSLATION,
    "Output": (OUTPUT, JSONL, *grouped("Captions", of=LIVE), FINALS_BY, LOG),
}
USUAL = (
    *("mic", "model", "languages", "output", "speakers", "translate_to", "latency", "jsonl"),
    *("realtime", "save_audio", "device"),
)
EXAMPLES = (
    ("sottovoce stream --mic", "what is said now"),
    ("sottovoce stream --mic -l en,de -o talk.srt", "two languages, saved as subtitles"),
    ("sottovoce stream --mic --sources me=,others=monitor", "a microphone and the computer's sound"),
    ("sottovoce stream talk.mp3 --realtime", "a recording, as if it were spoken now"),
    ("arecord -f S16_LE -r 16000 | sottovoce stream -", "another program's sound"),
)


@click.command(
    cls=SectionedCommand,
    sections=SECTIONS,
    exclusive={
        "realtime": ("unaware",),
        "sources": ("speakers",),
        "mic": ("input_format",),
        "no_vad": [option.param for option in options_of(VadStreamOptions)],
    },
    needed=OF_TRANSLATION,
    usual=USUAL,
    examples=EXAMPLES,
)
@click.argument("recording", required=False, metavar="FILE|-")
@click.pass_context
def stream(context: click.Context, /, recording: str | None, **given: object) -> int:
    """Transcribe live: a FILE as if it were spoken now, `-` for a sound file or s16le PCM at 16 kHz from a
    pipe, or --mic.

    Ctrl-C ends the recording; the audio received by then is still transcribed. SIGTERM and SIGHUP do the
    same, with the exit codes 143 and 129.
    """
    return transcribe_live(recording, given, invocation_of(context).interrupts)


def transcribe_live(source: str | None, given: Values, interrupts: Interrupts) -> int:
    flags, fusion = from_values(StreamFlags, given), from_values(FusionOptions, given)
    log_path, copy, output = given["log_path"], given["save_audio"], given["output"]
    check(source, flags, given)
    fusion.check(given["beam_size"])
    translation = from_values(TranslationOptions, given).translation(given["task"])
    speakers = speakers_of(given)
    with ExitStack() as stack:
        sources = sources_of(given["sources"], source, given["mic"])
        pieces = source_pieces(source, flags, given["mic"], sources)
        comes_in_time = not flags.unaware and (flags.realtime or source is None or is_pipe(source))
        controller = UpdateIntervalController(time.monotonic()) if comes_in_time else None
        if controller is not None:
            pieces = caught_up(pieces, controller)
        if copy:
            pieces = stack.enter_context(saved(pieces, Path(copy)))
        options = from_values(ModelOptions, given)
        say_on_terminal(f"loading {options.model or 'the model'} …")
        model = open_model(options, fusion)
        final_model = flags.final_model and open_model(replace(options, model=flags.final_model))
        session = open_session(
            model, given, flags, fusion, speakers, final_model=final_model or None, sources=list(sources)
        )
        translator = live_translator(translation, model, session)
        show: Show = write_lines if flags.jsonl else stack.enter_context(LiveView()).show
        if translator is not None:
            translator.filters = from_values(TextOptions, given).text_filters
            show = TranslatedView(translator, None if flags.jsonl else show, session.numbers.events)
        emitted = EmittedWords()
        if output:
            stack.callback(save, emitted, output, model.name)
        run(session, pieces, show, interrupts, emitted, controller)
    if not emitted.words and not emitted.finals:
        say_on_terminal("note: no speech was found")
    if log_path:
        append_log(Path(log_path), emitted, source or "microphone")
    return interrupts.exit_code if emitted.is_polite_end else 0


def say_on_terminal(text: str) -> None:
    if sys.stderr.isatty():
        say(text)


def check(source: str | None, flags: StreamFlags, given: Values) -> None:
    """Check a call before its model is loaded. Raises: OptionError, AudioError."""
    from sottovoce.audio.io import Source, check_reading, probe_audio

    log_path, copy, output = given["log_path"], given["save_audio"], given["output"]
    if bool(source) == (given["mic"] is not None) and (source or not given["sources"]):
        raise OptionError("stream: expected one of FILE, - or --mic")
    if output:
        writer_for(format_of(output))
        writable_folder(output.parent)
    if copy and source and os.path.realpath(copy) == os.path.realpath(source):
        raise OptionError(f"--save-audio '{copy}': expected another file than the recording")
    if log_path:
        log = Path(log_path)
        is_file = log.is_file() or (not log.exists() and log.parent.is_dir())
        if not is_file or not os.access(log if log.exists() else log.parent, os.W_OK):
            raise OptionError(f"--log '{log}': cannot be written")
    check_reading(None, flags.input_format)
    if source and not is_pipe(source):
        probe_audio(Source(source, input_format=flags.input_format))


def open_session(
    model: Recogniser,
    given: Values,
    flags: StreamFlags,
    fusion: FusionOptions,
    speakers: SpeakerOptions | None,
    *,
    final_model: Recogniser | None = None,
    sources: Sequence[str] = (),
) -> LiveSession | SourcesSession:
    from sottovoce.streaming.options import StreamOptions

    vad = from_values(VadStreamOptions, given, post_roll_ms=min(100.0, given["hangover_ms"]))
    stream = from_values(
        StreamOptions,
        given,
        chunk_s=flags.chunk_ms / 1000,
        static_prompt=" ".join(term for term in (given["static_prompt"], fusion.prompt) if term),
        encoder=model.encoder_mode(flags.encoder),
    )
    begin = partial(model.sources_session, sources) if sources else model.session
    return begin(
        languages=given["languages"],
        options=from_values(
            LiveOptions, {**given, "languages": None, "speakers": None}, vad=False if flags.no_vad else vad
        ),
        final_model=final_model,
        stream=stream,
        speakers=speakers,
    )


def is_pipe(source: str) -> bool:
    return source == "-" or Path(source).is_fifo()


def sources_of(given: str | None, source: str | None, mic: str | None) -> Mapping[str, str]:
    """Return the device of each source, "" for the default one, or its pipe, by name. Raises: OptionError."""
    if given is None:
        return {}
    if source and is_pipe(source):
        raise OptionError("--sources: expected a FILE with channels, or --mic, got a pipe")
    pairs = [part.partition("=")[::2] for part in given.split(",")]
    names = [name.strip() for name, _ in pairs]
    check_speaker_names(names, None)
    devices = [device.strip() for _, device in pairs]
    if source and any(devices):
        raise OptionError(f"--sources: expected names of channels, got the device '{max(devices)}'")
    for pipe in devices if source is None and mic is None else ():
        if not is_pipe(pipe):
            raise OptionError(f"--sources: expected a FILE, --mic, or the path of a pipe, got '{pipe}'")
    return dict(zip(names, devices, strict=True))


def source_pieces(
    source: str | None, flags: StreamFlags, mic: str | None, sources: Mapping[str, str]
) -> Iterator[Samples]:
    """Yield samples (n,), or (n, n_sources) of several sources. Raises: AudioError."""
    import numpy as np

    from sottovoce.audio.io import Microphone, Source, load_audio, probe_audio, read_live

    n_samples = round(flags.chunk_ms * SAMPLE_RATE / 1000)
    chunk_s = n_samples / SAMPLE_RATE
    with ExitStack() as stack:
        if source is None:
            names = list(sources.values()) or [mic or ""]
            readers: list[Iterable[AudioChunk]] = []
            for name in names:
                if mic is None:
                    pipe = stack.enter_context(open(name, "rb", buffering=0))
                    readers.append(
                        read_live(pipe, input_format=flags.input_format, chunk_s=chunk_s, name=name)
                    )
                else:
                    device = int(name) if name.isdecimal() else name or None
                    microphone = stack.enter_context(Microphone(device, chunk_s=chunk_s))
                    say_on_terminal(f"listening (Ctrl-C ends): {microphone.name}")
                    readers.append(microphone)
            for parts in itertools.zip_longest(*readers):
                pieces = [np.zeros(0, np.float32) if chunk is None else chunk.samples for chunk in parts]
                longest = max(map(len, pieces))
                together = np.stack([np.pad(each, (0, longest - len(each))) for each in pieces], axis=1)
                yield together if sources else together[:, 0]
            return
        elif source == "-":
            # Unbuffered: a buffered read waits until it is full.
            stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
            chunks = read_live(stream, input_format=flags.input_format, chunk_s=chunk_s)
        elif is_pipe(source):
            pipe = stack.enter_context(open(source, "rb", buffering=0))
            chunks = read_live(pipe, input_format=flags.input_format, chunk_s=chunk_s, name=source)
        else:
            opened = Source(source, input_format=flags.input_format)
            if sources:
                n_channels = probe_audio(opened).n_channels
                if n_channels < len(sources):
                    raise OptionError(
                        f"--sources: expected {len(sources)} channels in {source}, one for each name, "
                        f"got {n_channels}"
                    )
                audio = np.stack([load_audio(opened, channel=place) for place in range(len(sources))], axis=1)
            else:
                audio = load_audio(opened)
            yield from file_pieces(audio, n_samples, realtime=flags.realtime)
            return
        for chunk in chunks:
            yield chunk.samples


def file_pieces(audio: Samples, n_samples: int, *, realtime: bool) -> Iterator[Samples]:
    """Yield a recording in pieces, in real time if asked."""
    began = time.monotonic()
    for start in range(0, len(audio), n_samples):
        piece = audio[start : start + n_samples]
        if realtime:
            due = began + (start + len(piece)) / SAMPLE_RATE
            time.sleep(max(0.0, due - time.monotonic()))
        yield piece


def caught_up(
    pieces: Iterator[Samples], controller: UpdateIntervalController
) -> Generator[Samples, None, None]:
    """Read ahead in a thread, and join pieces that arrived in real time during the previous step.

    controller: chooses from the delays how much is joined.
    """
    import numpy as np

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
    first_s: float | None = None
    n_samples = 0

    def least_s() -> float:
        return controller.interval_s if controller.is_stretched else 0.0

    def is_due() -> bool:
        return bool(waiting) and sum(len(piece) for piece, _ in waiting) >= least_s() * SAMPLE_RATE

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
                joined = [waiting.popleft()[0] for _ in range(n_joined(waiting, now_s, least_s()))]
                audio = np.concatenate(joined)
                first_s = came_s if first_s is None else first_s
                # All audio before this came at no more than twice real time.
                is_live = n_samples > 0 and came_s - first_s >= n_samples / SAMPLE_RATE / 2
                n_samples += len(audio)
                yield audio
                if is_live:
                    controller.note_wait(now_s - came_s)
                    controller.note_work(time.monotonic() - now_s, time.monotonic())
        if end is not None:
            raise end
    finally:
        is_left.set()
        reader.join(1.0)  # the thread closes a microphone; a pipe may block for long


def n_joined(waiting: Sequence[tuple[Samples, float]], now_s: float, least_s: float = 0.0) -> int:
    """Return how many of the waiting pieces, with their times of arrival, are processed as one.

    Pieces of least_s seconds; of `JOINED_S` if the first one is late and they arrived at no more than twice
    real time. Faster input (`cat FILE |`) is never joined, as its result must not depend on the machine.
    """
    first_s, last_s = waiting[0][1], waiting[-1][1]
    seconds = [n / SAMPLE_RATE for n in itertools.accumulate(len(piece) for piece, _ in waiting)]
    if now_s - first_s <= LATE_S or last_s - first_s < (seconds[-1] - seconds[0]) / 2:
        return min(len(waiting), 1 + bisect_left(seconds, least_s))
    return max(1, bisect_right(seconds, JOINED_S))


def write_lines(events: Sequence[Event]) -> None:
    for event in events:
        sys.stdout.write(event_line(event))
    sys.stdout.flush()


@dataclass(slots=True)
class EmittedWords:
    """words: with their times of emission, in audio and since the start."""

    words: list[tuple[Word, float, float]] = field(default_factory=list)
    finals: list[Final] = field(default_factory=list)
    n_samples: int = 0
    is_polite_end: bool = False

    def take(self, events: Sequence[Event], elapsed_s: float) -> None:
        for event in events:
            if isinstance(event, Partial):
                self.words += [(word, event.emission_time, elapsed_s) for word in event.words]
            elif isinstance(event, Final):
                self.finals.append(event)

    def transcript(self, model: str) -> Transcript:
        """Return the session as a transcript, with a segment for each turn of a speaker."""
        segments: list[Segment] = []
        seconds: dict[str, float] = defaultdict(float)
        for final in sorted(self.finals, key=lambda final: final.start):
            seconds[final.language] += final.end - final.start
            committed = final.committed_text if final.is_revised else None
            for speaker, spoken in itertools.groupby(final.words, key=lambda word: word.speaker):
                words = tuple(spoken)
                text = "".join(word.word for word in words)
                segments.append(
                    Segment(
                        len(segments),
                        words[0].start,
                        words[-1].end,
                        text,
                        words[0].language or final.language,
                        words=words,
                        speaker=speaker,
                        committed=committed,
                    )
                )
                committed = None
        language = max(seconds, key=lambda code: seconds[code], default="")
        return Transcript(tuple(segments), language, self.n_samples / SAMPLE_RATE, model)


def save(emitted: EmittedWords, path: Path, model: str) -> None:
    save_transcript(emitted.transcript(model), path)
    say_on_terminal(f"→ {path}")


def run(
    session: LiveSession | SourcesSession,
    pieces: Iterator[Samples],
    show: Show,
    interrupts: Interrupts,
    emitted: EmittedWords,
    controller: UpdateIntervalController | None = None,
) -> None:
    """Push every piece and show the events; an interrupt ends the recording and finalises it.

    controller: of real-time audio, whose late updates are dropped; or None.
    """
    import numpy as np

    began = time.monotonic()

    def take(events: Sequence[Event]) -> None:
        emitted.take(events, time.monotonic() - began)
        show(events)

    try:
        for piece in pieces:
            interrupts.check()
            with interrupts.deferred():  # an interrupt half-way would lose committed text
                emitted.n_samples += len(piece)
                is_greedy = controller is not None and controller.is_greedy
                is_live = controller is not None
                audio = np.ascontiguousarray(piece.T)
                take(session.push(audio, newest_only=is_live, greedy=is_greedy, realtime=is_live))
    except KeyboardInterrupt:
        interrupts.take()
        emitted.is_polite_end = interrupts.is_polite_end
        say(f"{interrupts.word}: transcribing the rest")
    take(session.end())
    if controller is None:  # a file: finals may take their time
        take(session.finals(math.inf))
    take(session.close())


def append_log(path: Path, emitted: EmittedWords, source: str) -> None:
    from sottovoce.evaluation.scores import LogLine

    words, delays, elapsed = zip(*emitted.words, strict=True) if emitted.words else ((), (), ())
    texts = tuple(word.word.strip() for word in words)
    with writing(f"--log '{path}'"):
        index = len(path.read_bytes().splitlines()) if path.exists() else 0
        line = LogLine(index, texts, delays, elapsed, emitted.n_samples / SAMPLE_RATE, label_of(source))
        with path.open("a", encoding="utf-8") as file:
            file.write(line.to_json() + "\n")


@contextmanager
def saved(pieces: Iterator[Samples], path: Path) -> Iterator[Iterator[Samples]]:
    """Save the pieces as 16-bit mono audio while they are used.

    Existing content stays until the first piece arrives. If the disk is full, the error comes at the end.
    Raises: OptionError for a path that cannot be written.
    """
    name, was_there = f"recording '{path}'", path.exists()
    with writing(name):
        path.open("ab").close()
        if not was_there:
            path.unlink()
    faults: list[OptionError] = []
    opened = ExitStack()

    @contextmanager
    def fault_kept() -> Iterator[None]:
        try:
            with writing(name):
                yield
        except OptionError as error:
            faults.append(error)

    def copied() -> Iterator[Samples]:
        file: wave.Wave_write | None = None
        for piece in pieces:
            if not faults:
                with fault_kept():
                    if file is None:
                        raw = opened.enter_context(path.open("wb"))
                        file = opened.enter_context(wave.open(raw, "wb"))  # noqa: SIM115
                        file.setparams(
                            (1 if piece.ndim == 1 else piece.shape[1], 2, SAMPLE_RATE, 0, "NONE", "")
                        )
                    file.writeframes((piece.clip(-1.0, 1.0) * 32767).astype("<i2").tobytes())
            yield piece

    try:
        yield copied()
    finally:
        with fault_kept(), opened:
            pass
        if faults and sys.exc_info()[0] is not None:
            say_error(str(faults[0]))  # the other error ends the call
    if faults:
        raise faults[0]


class LiveView:
    """Shows text as it grows; a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        # with FORCE_COLOR rich treats a pipe as a terminal, and redraws lines
        self._console = console or Console(force_terminal=sys.stdout.isatty())
        self._live = Live(
            console=self._console,
            transient=True,
            auto_refresh=False,
            redirect_stderr=sys.stderr.isatty(),  # else the terminal would get what is for a file or pipe
        )
        self._lines: dict[str | None, Text] = {}
        self._unstable: dict[str | None, Text] = {}
        """Of each source."""
        self._colours = LanguageColours()

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, events: Sequence[Event]) -> None:
        for event in events:
            self._take(event)
        if self._console.is_terminal:
            self._live.update(self._growing(), refresh=True)

    def _growing(self) -> Text:
        sources = dict.fromkeys((*self._lines, *self._unstable))
        lines = (self._lines.get(each, Text()) + self._unstable.get(each, Text()) for each in sources)
        return Text("\n").join(line for line in lines if line)

    def _take(self, event: Event) -> None:
        if isinstance(event, Partial):
            line = self._lines.setdefault(event.source, Text())
            line.append(event.text, style=self._colours[event.language])
            self._unstable.pop(event.source, None)
        elif isinstance(event, Unstable):
            self._unstable[event.source] = Text(event.text, style=f"dim {self._colours[event.language]}")
        elif isinstance(event, Final):
            tag = f"[{event.language} {event.start:7.2f}-{event.end:7.2f}] "
            self._lines.pop(event.source, None)
            self._unstable.pop(event.source, None)
            if self._console.is_terminal:
                self._live.update(self._growing(), refresh=True)  # else it is drawn below the final once more
            spoken = Text(spoken_text(event), self._colours[event.language])
            self._console.print(Text.assemble((tag, "dim"), spoken), soft_wrap=True)
        elif isinstance(event, LanguageChanged) and event.previous is not None:
            self._unstable.pop(event.source, None)


def spoken_text(event: Final) -> str:
    if not any(word.speaker for word in event.words):
        return event.text
    parts = itertools.groupby(event.words, key=lambda word: word.speaker)
    texts = ((speaker or "?", "".join(word.word for word in words).strip()) for speaker, words in parts)
    return "  ".join(f"{speaker}: {text}" for speaker, text in texts)


def live_translator(
    translation: Translation | None, model: Recogniser, session: LiveSession | SourcesSession
) -> LiveTranslator | None:
    if translation is None:
        return None
    if translation.translator is not None:
        return LiveTranslator(translation.translator)
    from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator

    translator = WhisperTranslator(model)
    session.on_window(translator.add)
    return LiveTranslator(translator, N_NEW_WORDS)


@dataclass(slots=True)
class TranslatedView:
    """Shows events at once, and their translations later.

    show: None writes JSON lines. numbers: of the next events.
    """

    translator: LiveTranslator
    show: Show | None
    numbers: Iterator[int]

    def __call__(self, events: Sequence[Event]) -> None:
        (self.show or write_lines)(events)
        for event, is_newest in mark_newest(events):
            try:
                for translation in self.translator.take(event, is_newest=is_newest):
                    self._write(translation, event)
                    sys.stdout.flush()
            except TranslationError as error:
                say_error(str(error))

    def _write(self, translation: LiveTranslation, event: Event) -> None:
        if self.show is None:
            sys.stdout.write(json_text({**translation.document, "seq": next(self.numbers)}) + "\n")
        elif isinstance(event, Final) and translation.text != event.text.strip():
            # Else the speech is in the target language.
            times = f"[{translation.language} {translation.start:7.2f}-{translation.end:7.2f}]"
            source = "" if translation.source is None else f"{translation.source}: "
            click.echo(f"{times} {source}{translation.text}")
