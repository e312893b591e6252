"""`sottovoce stream`: speech as it comes, from a file, standard input or the microphone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from sottovoce.api import LanguageChoice, Model
from sottovoce.audio.io import load_audio, read_pcm
from sottovoce.audio.microphone import Microphone
from sottovoce.audio.vad_stream import VadStream, VadStreamOptions
from sottovoce.cli.interrupt import Interrupts
from sottovoce.cli.live_view import LiveView
from sottovoce.cli.options import (
    FUSION,
    MODEL,
    TASK,
    beam_size,
    fusion_of,
    hotword_text,
    open_model,
    with_options,
)
from sottovoce.cli.recorder import WaveRecorder
from sottovoce.errors import OptionError
from sottovoce.evaluation.latency import LogLine
from sottovoce.formats.events import event_line
from sottovoce.streaming.endofword import EndOfWord
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.types import SAMPLE_RATE, Event, Partial, Samples, Word

SOURCES = [
    click.option("--mic", is_flag=True, help="Listen to the microphone (needs the extra `mic`)."),
    click.option("--realtime", is_flag=True, help="Give a file at the speed of its sound."),
    click.option("--unaware", is_flag=True, help="Give a file as fast as it is taken (default)."),
    click.option("--save-audio", type=click.Path(dir_okay=False), help="Write what was heard to a WAV file."),
]
LANGUAGES = [
    click.option(
        "--languages",
        "--language",
        default="auto",
        show_default=True,
        metavar="auto|CODE[,CODE…]",
        help="Languages that may be spoken.",
    ),
    click.option(
        "--switching",
        type=click.Choice(["off", "restart", "parallel"]),
        default="restart",
        show_default=True,
        help="Follow a change of language: not, between sentences, or inside them.",
    ),
]
POLICY = [
    click.option(
        "--chunk-ms", type=click.IntRange(10), default=500, show_default=True, help="Audio an update."
    ),
    click.option(
        "--frame-threshold",
        type=click.FloatRange(0),
        default=25,
        show_default=True,
        help="A word waits while it is attended this near to the end of the audio (20 ms frames).",
    ),
    click.option(
        "--rewind-threshold",
        type=click.IntRange(0),
        default=200,
        show_default=True,
        help="A jump back by more frames than this discards an update.",
    ),
    click.option(
        "--audio-min-len", type=click.FloatRange(0), default=0.0, help="Least seconds before an update."
    ),
    click.option(
        "--audio-max-len",
        type=click.FloatRange(1, 30),
        default=30.0,
        show_default=True,
        help="Most seconds held.",
    ),
    click.option("--init-prompt", default="", help="What was said before; moves out as text is added."),
    click.option("--static-prompt", default="", help="Terms and names; stays."),
    click.option("--max-context-tokens", type=click.IntRange(0, 223), default=223, show_default=True),
    click.option(
        "--context-bucket",
        type=float,
        default=1.0,
        show_default=True,
        help="The encoder sees the audio, rounded up to this many seconds; 0: always 30 s.",
    ),
    click.option(
        "--cif", type=click.Path(exists=True, dir_okay=False), help="Weights that find the ends of words."
    ),
    click.option("--no-vad", is_flag=True, help="Decode silence too."),
    click.option("--onset-ms", type=click.FloatRange(0), default=64.0, show_default=True),
    click.option("--hangover-ms", type=click.FloatRange(0), default=500.0, show_default=True),
    click.option("--pre-roll-ms", type=click.FloatRange(0), default=300.0, show_default=True),
]
SINKS = [
    click.option("--jsonl", is_flag=True, help="One JSON event a line."),
    click.option(
        "--unstable",
        type=click.Choice(["words", "ctc"]),
        help="Also show text that may still change: words that were read but not committed, or letters as "
        "they are heard, of a model with a CTC head.",
    ),
    click.option(
        "--log", "log_path", type=click.Path(dir_okay=False), help="Add a SimulEval-style line a recording."
    ),
]


@click.command()
@click.argument("source", required=False, metavar="FILE|-")
@with_options(MODEL, SOURCES, LANGUAGES, TASK, beam_size(1), FUSION, POLICY, SINKS)
@click.pass_context
def stream(context: click.Context, /, source: str | None, **given: Any) -> int:
    """Transcribe live: a FILE as if it were spoken now, `-` for s16le PCM at 16 kHz, or --mic."""
    if bool(source) == given["mic"]:
        raise OptionError("stream: expected one of FILE, - and --mic")
    if given["realtime"] and given["unaware"]:
        raise OptionError("stream: expected one of --realtime and --unaware, got both")
    model = open_model(given)
    session = open_session(model, given)
    chunk_samples = round(given["chunk_ms"] * SAMPLE_RATE / 1000)
    with ExitStack() as stack:
        pieces = source_pieces(source, chunk_samples, realtime=given["realtime"])
        if given["save_audio"]:
            recorder = stack.enter_context(WaveRecorder(Path(given["save_audio"])))
            pieces = recorder.through(pieces)
        show = sink(given, stack)
        said = run(session, pieces, show, context.find_root().obj["interrupts"])
    if given["log_path"]:
        append_log(Path(given["log_path"]), said, source or "microphone")
    return 0


def open_session(model: Model, given: dict[str, Any]) -> Session:
    """The session that the options ask for."""
    choice = LanguageChoice.parse(given["languages"], model.languages)
    languages = (choice.fixed,) if choice.fixed else choice.allowed or model.languages
    options = SessionOptions(
        languages=languages,
        switching=given["switching"],
        stream=stream_options(model, given),
        unstable=given["unstable"] is not None,
    )
    vad = VadStreamOptions(
        onset_ms=given["onset_ms"],
        hangover_ms=given["hangover_ms"],
        pre_roll_ms=given["pre_roll_ms"],
        post_roll_ms=min(100.0, given["hangover_ms"]),
    )
    detector = None if given["no_vad"] else VadStream(vad)
    cif = EndOfWord.load(given["cif"], model.backend.dims.n_audio_state) if given["cif"] else None
    draft = model.draft() if given["unstable"] == "ctc" else None
    return Session(model.backend, model.tokenizer, options, vad=detector, end_of_word=cif, draft=draft)


def stream_options(model: Model, given: dict[str, Any]) -> StreamOptions:
    """How the options ask to decode; hotwords given as text stay before the prompt.

    Raises: LanguageModelError, OptionError.
    """
    terms = [given["static_prompt"], hotword_text(given) or ""]
    return StreamOptions(
        frame_threshold=given["frame_threshold"],
        rewind_threshold=given["rewind_threshold"],
        chunk_s=given["chunk_ms"] / 1000,
        audio_min_len_s=given["audio_min_len"],
        audio_max_len_s=given["audio_max_len"],
        audio_trim_s=min(5.0, given["audio_max_len"] / 3),
        beam_size=given["beam_size"],
        task=given["task"],
        init_prompt=given["init_prompt"],
        static_prompt=" ".join(term for term in terms if term),
        max_context_tokens=given["max_context_tokens"],
        context_bucket_s=given["context_bucket"] or None,
        fusion=fusion_of(model, given),
    )


def source_pieces(source: str | None, n_samples: int, *, realtime: bool) -> Iterator[Samples]:
    """Samples as they come from the microphone, standard input or a file."""
    if source is None:
        with Microphone(chunk_s=n_samples / SAMPLE_RATE) as microphone:
            yield from (chunk.samples for chunk in microphone)
    elif source == "-":
        yield from (chunk.samples for chunk in read_pcm(sys.stdin.buffer, chunk_s=n_samples / SAMPLE_RATE))
    else:
        yield from file_pieces(load_audio(source), n_samples, realtime=realtime)


def file_pieces(audio: Samples, n_samples: int, *, realtime: bool) -> Iterator[Samples]:
    """A recording piece by piece; realtime: each no sooner than its last sample would be spoken."""
    began = time.monotonic()
    for start in range(0, len(audio), n_samples):
        piece = audio[start : start + n_samples]
        if realtime:
            due = began + (start + len(piece)) / SAMPLE_RATE
            time.sleep(max(0.0, due - time.monotonic()))
        yield piece


def sink(given: dict[str, Any], stack: ExitStack) -> Callable[[Sequence[Event]], None]:
    """What shows events: JSON lines, or text on the terminal."""
    if given["jsonl"]:
        return lambda events: write_lines(events, sys.stdout)
    return stack.enter_context(LiveView()).show


def write_lines(events: Sequence[Event], out: TextIO) -> None:
    for event in events:
        out.write(event_line(event))
    out.flush()


class Said:
    """Words with the audio received and the clock at their emission."""

    def __init__(self) -> None:
        self.words: list[tuple[Word, float, float]] = []
        self.n_samples = 0

    def take(self, events: Sequence[Event], elapsed_s: float) -> None:
        for event in events:
            if isinstance(event, Partial):
                self.words += [(word, event.emission_time, elapsed_s) for word in event.words]


def run(
    session: Session,
    pieces: Iterator[Samples],
    show: Callable[[Sequence[Event]], None],
    interrupts: Interrupts,
) -> Said:
    """Push every piece and show what follows; an interrupt ends the recording, and its tail is said."""
    said = Said()
    began = time.monotonic()
    try:
        for piece in pieces:
            interrupts.check()
            said.n_samples += len(piece)
            events = session.push(np.ascontiguousarray(piece))
            said.take(events, time.monotonic() - began)
            show(events)
    except KeyboardInterrupt:
        interrupts.take()
        click.echo("interrupted: finishing what was heard", err=True)
    events = session.close()
    said.take(events, time.monotonic() - began)
    show(events)
    return said


def append_log(path: Path, said: Said, source: str) -> None:
    """Add one line; its index is the number of lines that are there."""
    index = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    line = LogLine(
        index,
        tuple(word.word.strip() for word, _, _ in said.words),
        tuple(delay for _, delay, _ in said.words),
        tuple(elapsed for _, _, elapsed in said.words),
        said.n_samples / SAMPLE_RATE,
        source,
    )
    with path.open("a", encoding="utf-8") as file:
        file.write(line.to_json() + "\n")
