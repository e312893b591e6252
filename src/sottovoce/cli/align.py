"""`sottovoce align`, `find`, `karaoke`, `plot` and `detect-language`: when words and languages are spoken."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sottovoce.cli.documents import documents_of
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import (
    BY_KEY,
    LANGUAGE,
    LAYOUT,
    MODEL,
    OUTPUT_DIR,
    OUTPUT_FORMAT,
    SectionedCommand,
    grouped,
    output_file,
)
from sottovoce.cli.progress import for_each_file, with_model
from sottovoce.errors import OptionError
from sottovoce.formats.files import READABLE, load_text, load_transcript, parse_text
from sottovoce.formats.output import STANDARD_OUTPUT, info_of, label_of
from sottovoce.formats.pages import clock
from sottovoce.formats.subtitle_files import check_ffmpeg, check_video, write_karaoke
from sottovoce.options.schema import Option, from_values, options_of
from sottovoce.options.transcribe import LONGEST_PICTURE_S, AlignOptions, PictureOptions, TranscribeOptions
from sottovoce.text.languages import language_name
from sottovoce.types import Transcript

if TYPE_CHECKING:
    from sottovoce.alignment import Match
    from sottovoce.audio.io import AudioSource, Source
    from sottovoce.decoding.decode import LanguageDetection
    from sottovoce.offline.pipeline import LanguageSpan
    from sottovoce.recogniser import Recogniser


ALIGNMENT = (
    Option(
        "Language of the text.",
        key="language",
        kind="language",
        short="-l --languages",
        metavar="CODE",
        unset="that of the transcript, or detected",
    ),
    *grouped("Alignment", of=options_of(AlignOptions)),
)
READING = (BY_KEY["audio_track"], BY_KEY["input_format"])
ALIGNED = (
    replace(OUTPUT_FORMAT, cli_default="srt"),
    replace(OUTPUT_DIR, cli_default=STANDARD_OUTPUT),
    *LAYOUT,
)


@click.command(
    cls=SectionedCommand,
    sections={"Output": ALIGNED, "Alignment": ALIGNMENT, "Recording": READING, "Model": MODEL},
)
@click.argument("recording")
@click.argument("text")
@click.pass_context
def align(context: click.Context, /, recording: str, text: str, language: str | None, **given: object) -> int:
    """Find the times of the words of a text in a recording.

    TEXT is a text file, whose lines and sentences become segments, or a transcript (json, srt, vtt) with
    times to refine; `-` reads either from standard input. Every segment has its words with times.
    """
    if recording == text == "-":
        raise OptionError("standard input: expected '-' for the recording or the text, got both")
    documents = documents_of(context, [recording])
    script = read_text(text)
    invocation = invocation_of(context)

    def work(model: Recogniser, source: Source) -> None:
        options, name = from_values(AlignOptions, given), recording
        aligned = model.align(source, script, language=language, options=options)
        invocation.interrupts.check()
        begun = documents.info(name, aligned.model)
        info = replace(info_of(aligned, begun.source), audio=begun.audio, spectrogram=begun.spectrogram)
        documents.write(name, aligned, info)

    return with_model(context, [recording], work)


def read_text(name: str) -> str | Transcript:
    return parse_text(sys.stdin.buffer.read(), "standard input") if name == "-" else load_text(name)


def transcript_with_words(
    model: Recogniser, source: AudioSource, text: str | Transcript | None, language: str
) -> Transcript:
    if text is None:
        return model.transcribe(source, language=language, word_timestamps=True).collect()
    return model.align(source, text, language=None if language == "auto" else language)


@dataclass(frozen=True, slots=True)
class FindOptions:
    least_score: float = Option(
        "Least similarity of the words and the phrase; 1 is equal letters.", most=1.0, above=0.0
    ).as_field(0.7)
    json: bool = Option("One JSON document for each place.").as_field(False)


FIND_SECTIONS = {
    "Search": options_of(FindOptions),
    "Language": (LANGUAGE,),
    "Recording": READING,
    "Model": MODEL,
}


@click.command(cls=SectionedCommand, sections=FIND_SECTIONS)
@click.argument("recording")
@click.argument("phrase")
@click.pass_context
def find(context: click.Context, /, recording: str, phrase: str, language: str, **given: object) -> int:
    """Find a spoken phrase: start, end, similarity, and the words.

    RECORDING is transcribed first; a transcript (json, srt, vtt) is searched directly. Words are compared by
    their letters, so misrecognised words are found too. The exit code is 1 if nothing is found.
    """
    from sottovoce.alignment import find_phrase

    options = from_values(FindOptions, given)
    # Fail early for a phrase without letters.
    find_phrase(Transcript((), "", 0.0, ""), phrase, least_score=options.least_score)
    n_found = 0

    def show(matches: list[Match], name: str) -> None:
        nonlocal n_found
        n_found += len(matches)
        for match in matches:
            click.echo(match_json(match, name, phrase) if options.json else match_line(match))
        if not matches and not options.json:
            click.echo(f"{name}: no match for '{phrase}'", err=True)

    def in_recording(model: Recogniser, source: Source) -> None:
        matches = model.find(source, phrase, least_score=options.least_score, language=language)
        show(matches, recording)

    def in_transcript(name: str) -> None:
        show(find_phrase(load_transcript(name), phrase, least_score=options.least_score), name)

    if Path(recording).suffix.lower() in READABLE:
        code = for_each_file([recording], in_transcript, invocation=invocation_of(context))
    else:
        code = with_model(context, [recording], in_recording)
    return code or (0 if n_found else 1)  # as grep


def match_line(match: Match) -> str:
    return f"{time(match.start)} - {time(match.end)}  {match.score:4.0%}  {match.text}"


def match_json(match: Match, name: str, phrase: str) -> str:
    start, end = round(match.start, 3), round(match.end, 3)
    entry = {"file": name, "phrase": phrase, "start": start, "end": end, "score": match.score}
    return json.dumps({**entry, "text": match.text}, ensure_ascii=False)


def time(seconds: float) -> str:
    hundredths = round(seconds * 100)
    return f"{clock(hundredths // 100)}.{hundredths % 100:02}"


VIDEO = (
    output_file("Video file: .mp4, .mkv or .mov."),
    Option(
        "Text or transcript (json, srt, vtt), which is aligned instead of transcribed.",
        key="text",
        metavar="FILE",
    ),
    Option("Size of the picture.", key="size", default="1280x720", metavar="WIDTHxHEIGHT"),
    Option("Colour of the background.", key="background", default="#101418", metavar="#RRGGBB"),
)


@click.command(cls=SectionedCommand, sections={"Video": VIDEO, "Language": (LANGUAGE,), "Model": MODEL})
@click.argument("recording")
@click.pass_context
def karaoke(
    context: click.Context, /, recording: str, output: Path, text: str | None, language: str, **given: str
) -> int:
    """Make a video in which the words of a recording are highlighted as they are spoken (needs the program
    ffmpeg).

    To add words to an existing video: `transcribe -w -f ass`, and `ffmpeg -i talk.mp4 -vf ass=talk.ass`.
    """
    if recording == "-":
        raise OptionError("karaoke: expected a file, got standard input")
    size, background = given["size"], given["background"]
    check_video(output, size, background, Path(recording))
    script = None if text is None else read_text(text)
    invocation = invocation_of(context)

    def work(model: Recogniser, source: Source) -> None:
        transcript = transcript_with_words(model, source, script, language)
        invocation.interrupts.check()
        write_karaoke(transcript, Path(recording), output, size=size, background=background)

    return with_model(context, [recording], work, check=check_ffmpeg)


PICTURE = (output_file("Picture file: .png, .svg or .pdf."), *options_of(PictureOptions))
PLOT_SECTIONS = {"Picture": PICTURE, "Language": (LANGUAGE,), "Recording": READING, "Model": MODEL}


@click.command(cls=SectionedCommand, sections=PLOT_SECTIONS)
@click.argument("recording")
@click.pass_context
def plot(
    context: click.Context, /, recording: str, output: Path, text: str | None, language: str, **given: object
) -> int:
    """Draw up to 30 s of a recording (extra `plot`).

    Panels: log-mel spectrogram with the words, speech probability, languages, attention, word probability.
    """
    from sottovoce.api import as_whisper
    from sottovoce.audio.io import Source, load_audio
    from sottovoce.pictures import check_length, check_picture, collect, draw

    picture = from_values(PictureOptions, given)
    check_picture(output)
    script = None if text is None else read_text(text)
    start_s = picture.offset or 0.0
    reading = from_values(TranscribeOptions, {option.key: given[option.key] for option in READING})
    samples = load_audio(Source.of(recording, reading), start_s, picture.duration or LONGEST_PICTURE_S)
    check_length(samples)

    def work(model: Recogniser, _: Source) -> None:
        transcript = transcript_with_words(model, samples, script, language)
        label = label_of("standard input" if recording == "-" else Path(recording).name)
        whisper = as_whisper(model, "spectrogram")
        draw(collect(whisper, samples, transcript, name=label, start_s=start_s), output, picture.panels)

    return with_model(context, [recording], work)


LANGUAGES = (
    Option(
        "Languages to choose from.",
        key="languages",
        kind="languages",
        short="-l --language",
        metavar="CODE,CODE,…",
        unset="default: all of the model",
    ),
    Option("The whole recording, with times of each language.", key="timeline", kind="flag"),
    Option("Print JSON on a terminal too.", key="json", kind="flag"),
)
DETECT_SECTIONS = {"Language": LANGUAGES, "Recording": READING, "Model": MODEL}


@click.command(cls=SectionedCommand, sections=DETECT_SECTIONS)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.pass_context
def detect_language(
    context: click.Context,
    /,
    files: tuple[str, ...],
    languages: str | None,
    timeline: bool,
    json: bool,
    **_: object,
) -> int:
    """Detect the spoken language: a line for people on a terminal, one JSON document a line elsewhere.

    The rules are those of `transcribe`: one language over several windows, or with --timeline all changes.
    """
    is_for_people = sys.stdout.isatty() and not json

    def work(model: Recogniser, source: Source) -> None:
        name = str(source.place)
        if timeline:
            spans = list(model.language_spans(source, languages=languages))
            lines, row = timeline_lines(spans), languages_over_time(spans)
        else:
            detected = model.detect_language(source, languages=languages)
            lines, row = [shown_language(detected.language, detected.probability)], detection(detected)
        for line in lines if is_for_people else [json_line({"file": name, **row})]:
            click.echo(f"{name}: {line}" if is_for_people else line)

    return with_model(context, files, work, quiet=sys.stdout.isatty())


def json_line(row: Mapping[str, object]) -> str:
    return json.dumps(row, ensure_ascii=False)


def shown_language(code: str, probability: float) -> str:
    return f"{language_name(code)} ({code}), {probability:.0%}"


def timeline_lines(spans: Sequence[LanguageSpan]) -> list[str]:
    return [
        f"{clock(span.start)} - {clock(span.end)}  {shown_language(span.language, span.probability)}"
        for span in spans
    ] or ["no speech was found"]


def detection(detected: LanguageDetection) -> dict[str, object]:
    likely = Counter(detected.probabilities).most_common(5)
    return {
        "language": detected.language,
        "probability": round(detected.probability, 4),
        "probabilities": {language: round(probability, 4) for language, probability in likely},
        "allowed_mass": round(detected.allowed_mass, 4),
        "no_speech_prob": round(detected.no_speech_prob, 4),
    }


def languages_over_time(spans: Sequence[LanguageSpan]) -> dict[str, object]:
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.language] += span.end - span.start
    return {
        "language": max(seconds, key=lambda language: seconds[language], default=None),
        "timeline": [{**asdict(span), "probability": round(span.probability, 4)} for span in spans],
    }
