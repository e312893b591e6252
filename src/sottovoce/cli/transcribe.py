"""`sottovoce transcribe`: recordings in, documents out, one line per file that fails."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from sottovoce.api import Model
from sottovoce.cli.interrupt import Interrupts
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
from sottovoce.cli.progress import Progress
from sottovoce.cli.screen import ScreenWriter
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.errors import OptionError, SottovoceError
from sottovoce.formats.base import TranscriptInfo, Writer, WriterOptions
from sottovoce.formats.output import STANDARD_OUTPUT, open_output, output_paths
from sottovoce.formats.registry import FORMATS, writers_for
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.offline.options import TranscribeOptions


@dataclass(frozen=True, slots=True)
class Job:
    """What to do with every file of a call.

    folder: where documents go; "-" is standard output. shown: the text is for a person or a pipe to read
    as it comes. interrupts: looked at between segments, and before documents appear.
    """

    model: Model
    options: TranscribeOptions
    fusion: ShallowFusion | None
    writers: list[Writer]
    folder: str
    shown: bool
    debug: bool
    interrupts: Interrupts


SPEECH = [
    click.option(
        "--language",
        default="auto",
        show_default=True,
        metavar="auto|CODE[,CODE…]",
        help="One language, several to choose among for each window, or auto: all.",
    ),
    click.option("--vad", is_flag=True, help="Find speech first, and decode nothing else."),
    click.option(
        "--batch-size",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Windows decoded together; above 1 implies --vad.",
    ),
    click.option(
        "--clip-timestamps",
        default="",
        metavar="START,END,…",
        help="Only these parts, in seconds; the last end may be left out.",
    ),
    click.option("--word-timestamps", is_flag=True, help="Times and probabilities of words."),
    click.option(
        "--hallucination-silence-threshold",
        type=click.FloatRange(0),
        help="Skip silences longer than this around words that look invented (needs --word-timestamps).",
    ),
]
SEARCH = [
    click.option(
        "--best-of",
        type=click.IntRange(1),
        default=5,
        show_default=True,
        help="Draws at temperatures above 0.",
    ),
    click.option(
        "--patience",
        type=click.FloatRange(0, min_open=True),
        help="Finished hypotheses to wait for, times the beam size.",
    ),
    click.option(
        "--length-penalty",
        type=click.FloatRange(0, 1),
        help="Exponent of Google's length penalty. [mean of the log-probabilities]",
    ),
    click.option(
        "--temperature",
        default="0,0.2,0.4,0.6,0.8,1",
        show_default=True,
        metavar="T[,T…]",
        help="Tried in turn while the result looks wrong.",
    ),
    click.option(
        "--compression-ratio-threshold",
        type=float,
        default=2.4,
        show_default=True,
        help="Text that compresses better than this repeats itself: try the next temperature.",
    ),
    click.option(
        "--logprob-threshold",
        type=float,
        default=-1.0,
        show_default=True,
        help="Mean log-probability below which to try the next temperature.",
    ),
    click.option(
        "--no-speech-threshold",
        type=float,
        default=0.6,
        show_default=True,
        help="Above this, and below the log-probability threshold: silence.",
    ),
    click.option(
        "--no-repeat-ngram-size",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="No sequence of so many tokens twice; 0 allows all.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Of the draws at temperatures above 0."
    ),
]
CONTEXT = [
    click.option(
        "--initial-prompt", metavar="TEXT", help="What was said before the recording: names, spelling, style."
    ),
    click.option("--carry-initial-prompt", is_flag=True, help="Give the initial prompt to every window."),
    click.option(
        "--no-condition-on-previous-text",
        is_flag=True,
        help="Decode each window without the text of the one before.",
    ),
    click.option("--without-timestamps", is_flag=True, help="Do not predict the times of segments."),
]
OUTPUT = [
    click.option(
        "--output-format",
        default="txt",
        show_default=True,
        metavar="FORMAT[,FORMAT…]",
        help=f"{', '.join(FORMATS)} or all.",
    ),
    click.option(
        "--output-dir",
        metavar="DIR",
        help="Where files go; - writes documents to standard output. [txt alone: the terminal; else: here]",
    ),
    click.option(
        "--max-line-width",
        type=click.IntRange(1),
        help="Characters a subtitle line (needs --word-timestamps).",
    ),
    click.option(
        "--max-line-count", type=click.IntRange(1), help="Lines a subtitle (needs --max-line-width)."
    ),
    click.option("--max-words-per-line", type=click.IntRange(1), help="Words a subtitle."),
    click.option(
        "--highlight-words", is_flag=True, help="Underline each word of a subtitle as it is spoken."
    ),
]


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@with_options(MODEL, SPEECH, TASK, beam_size(5), SEARCH, FUSION, CONTEXT, OUTPUT)
@click.pass_context
def transcribe(context: click.Context, /, files: tuple[str, ...], **given: Any) -> int:
    """Transcribe recordings: any audio or video file, `-` for one on standard input."""
    names = given["output_format"]
    writers = writers_for(names, writer_options(given))
    shown = given["output_dir"] is None and names == "txt"
    if shown and sys.stdout.isatty():
        writers = [ScreenWriter(Console(highlight=False))]
    folder = given["output_dir"] or (STANDARD_OUTPUT if names == "txt" else ".")
    if folder != STANDARD_OUTPUT:
        output_paths(files, Path(folder), [writer.extension for writer in writers])
    options = transcribe_options(given)
    model = open_model(given)
    job = Job(
        model=model,
        options=model.options(given["language"], given["task"], given["word_timestamps"], None, options),
        fusion=fusion_of(model, given),
        writers=writers,
        folder=folder,
        shown=shown,
        debug=context.find_root().obj["debug"],
        interrupts=context.find_root().obj["interrupts"],
    )
    return transcribe_files(files, job)


def writer_options(given: Mapping[str, Any]) -> WriterOptions:
    """How subtitles are broken into lines.

    Raises: OptionError when that needs word times which are not asked for.
    """
    options = WriterOptions(
        max_line_width=given["max_line_width"],
        max_line_count=given["max_line_count"],
        max_words_per_line=given["max_words_per_line"],
        highlight_words=given["highlight_words"],
    )
    if options.need_words and not given["word_timestamps"]:
        raise OptionError("line breaking and highlighting place single words: add --word-timestamps")
    return options


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """The options of the library from those of the command line."""
    decoding = DecodingOptions(
        beam_size=given["beam_size"] if given["beam_size"] > 1 else None,
        patience=given["patience"],
        length_penalty=given["length_penalty"],
        hotwords=hotword_text(given),
        without_timestamps=given["without_timestamps"],
        no_repeat_ngram_size=given["no_repeat_ngram_size"],
        seed=given["seed"],
    )
    fallback = FallbackOptions(
        temperatures=numbers("--temperature", given["temperature"]),
        best_of=given["best_of"],
        compression_ratio_threshold=given["compression_ratio_threshold"],
        logprob_threshold=given["logprob_threshold"],
        no_speech_threshold=given["no_speech_threshold"],
    )
    return TranscribeOptions(
        decoding=decoding,
        fallback=fallback,
        mode="vad" if given["vad"] or given["batch_size"] > 1 else "seek",
        batch_size=given["batch_size"],
        condition_on_previous_text=not given["no_condition_on_previous_text"],
        initial_prompt=given["initial_prompt"],
        carry_initial_prompt=given["carry_initial_prompt"],
        clip_timestamps=numbers("--clip-timestamps", given["clip_timestamps"]),
        word_timestamps=given["word_timestamps"],
        hallucination_silence_threshold=given["hallucination_silence_threshold"],
    )


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas.

    Raises: OptionError naming the option.
    """
    try:
        return tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise OptionError(f"{option} {text!r}: expected numbers separated by commas") from None


def transcribe_files(files: Sequence[str], job: Job) -> int:
    """Transcribe every file, whatever happens to the others; return the exit code."""
    n_failed = 0
    with Progress(len(files), quiet=job.shown and sys.stdout.isatty()) as progress:
        for name in files:
            try:
                transcribe_file(name, job, progress)
            except SottovoceError as error:
                n_failed += 1
                progress.failed(str(error), traceback.format_exc() if job.debug else None)
    if not n_failed:
        return 0
    return 2 if n_failed == len(files) else 1


def transcribe_file(name: str, job: Job, progress: Progress) -> None:
    """Transcribe one file into all its documents, which appear together at its end."""
    source = sys.stdin.buffer if name == "-" else name
    with ExitStack() as stack:
        transcription = stack.enter_context(
            job.model.transcribe(source, options=job.options, fusion=job.fusion)
        )
        outputs = [stack.enter_context(open_output(place, live=job.shown)) for place in places(name, job)]
        progress.begin(name)
        begun = TranscriptInfo(model=job.model.name)
        for writer, output in zip(job.writers, outputs, strict=True):
            output.write(writer.begin(begun))
        for segment in transcription:
            job.interrupts.check()
            for writer, output in zip(job.writers, outputs, strict=True):
                output.write(writer.segment(segment))
            progress.segment(segment, transcription.position, transcription.duration)
        job.interrupts.check()
        ended = TranscriptInfo(job.model.name, transcription.language, transcription.duration)
        for writer, output in zip(job.writers, outputs, strict=True):
            output.write(writer.end(ended))
        progress.end()


def places(name: str, job: Job) -> list[Path | str]:
    """Where the documents of one file go, in the order of the writers."""
    if job.folder == STANDARD_OUTPUT:
        return [STANDARD_OUTPUT for _ in job.writers]
    stem = "stdin" if name == "-" else name
    paths = output_paths([stem], Path(job.folder), [writer.extension for writer in job.writers])
    return [paths[stem, writer.extension] for writer in job.writers]
