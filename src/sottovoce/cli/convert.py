"""`sottovoce convert`: transcripts into documents, without a model or PyTorch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from sottovoce.cli.documents import Documents, documents_of
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import COLOUR_CONFIDENCE, LAYOUT, OUTPUT_DIR, OUTPUT_FORMAT, SectionedCommand
from sottovoce.cli.progress import Progress, for_each_file
from sottovoce.cli.transcribe import REGROUP
from sottovoce.errors import OptionError
from sottovoce.formats.files import load_transcript, parse_transcript
from sottovoce.formats.output import STANDARD_INPUT, info_of, label_of
from sottovoce.formats.plain import RttmWriter, read_rttm
from sottovoce.offline.regroup import parse_rules, regrouped
from sottovoce.options.schema import Option, from_values
from sottovoce.options.transcribe import WriterOptions
from sottovoce.speakers.labels import SpeakerLabels
from sottovoce.types import Transcript

SECTIONS = {
    "Output": (
        *(OUTPUT_FORMAT, OUTPUT_DIR),
        replace(COLOUR_CONFIDENCE, help="Colour words on the terminal by their probability, if known."),
    ),
    "Layout": (
        *(REGROUP, *LAYOUT),
        Option(
            "html: the recording to play.", key="recording", metavar="FILE", unset="the page asks for a file"
        ),
    ),
    "Speakers": (
        Option(
            "RTTM file of turns, such as a corrected one; words get its speakers.",
            key="turns",
            metavar="FILE",
        ),
    ),
}


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.pass_context
def convert(
    context: click.Context,
    /,
    files: tuple[str, ...],
    regroup: str | None,
    recording: str | None,
    turns: str | None,
    **given: object,
) -> int:
    """Convert transcripts to other formats and layouts, without a model.

    FILE is a json or json-full document of `transcribe`, JSON of another program (openai-whisper, WhisperX,
    whisper.cpp, OpenAI's API …), or subtitles (srt, vtt); `-` reads one from standard input. Options that
    place single words need a transcript with words. Documents are named as by `transcribe`: talk.srt for
    talk.json.
    """
    rules = () if regroup is None else parse_rules(regroup)
    spoken = () if turns is None else tuple(read_rttm(turns))
    if spoken and len(set(files)) > 1:
        raise OptionError(f"--turns: expected one transcript, got {len(set(files))}")
    documents = documents_of(context, files, has_speakers=True)  # each file shows whether it has them
    needs_words = bool(rules) or from_values(WriterOptions, given).need_words
    if documents.folder is not None and recording is None and documents.embeds:
        raise OptionError("--embed-audio: needs --recording")
    if recording is not None and documents.folder is None:
        raise OptionError("--recording: needs --output-format html")
    if recording is not None and len(set(files)) > 1:
        raise OptionError(f"--recording: expected one transcript, got {len(set(files))}")
    invocation = invocation_of(context)

    def work(name: str) -> None:
        invocation.interrupts.check()
        is_piped = name == STANDARD_INPUT
        if is_piped:
            transcript = parse_transcript(sys.stdin.buffer.read(), "standard input")
        else:
            transcript = load_transcript(name)
        if needs_words and any(segment.words is None for segment in transcript.segments):
            raise OptionError(
                f"transcript '{name}': expected words with times, got none "
                "(transcribe with --word-timestamps)"
            )
        if spoken:
            labels = SpeakerLabels(spoken)
            parts = (part for segment in transcript.segments for part in labels.split(segment))
            segments = tuple(replace(part, id=number) for number, part in enumerate(parts))
            transcript = replace(transcript, segments=segments, turns=spoken)
        if rules:
            transcript = replace(transcript, segments=tuple(regrouped(transcript.segments, rules)))
        info = info_of(transcript, None if is_piped else label_of(Path(name).name))
        if recording is not None:
            played = Path(recording)
            info = documents.with_recording(replace(info, source=label_of(played.name)), played)
        chosen = documents_for(documents, name, transcript, wants_all=documents.formats == "all")
        chosen.write(name, transcript, info)

    inputs = documents.inputs(files)
    progress = Progress(len(inputs), quiet=documents.is_text_on_terminal)
    return for_each_file(
        inputs, work, progress=progress, invocation=invocation, advice="fewer inputs at once"
    )


def documents_for(documents: Documents, name: str, transcript: Transcript, *, wants_all: bool) -> Documents:
    """Omit RTTM without speakers. Raises: OptionError if it was requested by name."""
    has_speakers = transcript.turns or any(segment.speaker for segment in transcript.segments)
    others = [writer for writer in documents.writers if not isinstance(writer, RttmWriter)]
    if has_speakers or len(others) == len(documents.writers):
        return documents
    if not wants_all:
        raise OptionError(f"transcript '{name}': expected speakers for output format 'rttm', got none")
    return replace(documents, writers=others)
