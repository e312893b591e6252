"""`sottovoce transcribe`: options; `transcribe_files` does the work. Imports nothing heavy, so that `--help`
is fast.
"""

from __future__ import annotations

import click

from sottovoce.cli.flags import (
    Given,
    SectionedCommand,
    check_exclusive,
    given_as,
    grouped,
    read_values,
    typed_options,
    value_of,
)
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import (
    COLOUR_CONFIDENCE,
    DEFERRAL,
    ENROLLED_VOICES,
    FUSION,
    LAYOUT,
    MODEL,
    OUTPUT_DIR,
    OUTPUT_FORMAT,
    QUIET,
    TASK,
    TRANSLATION,
    FileOptions,
    FusionOptions,
    OutputOptions,
    speakers_of,
)
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.schema import changed, made, options_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import WINDOW_VAD, VadOptions
from sottovoce.text.disfluency import check_cleanable, check_verbatim
from sottovoce.text.languages import LanguageChoice, language_codes

OF_FILES = options_of(FileOptions)
SPOKEN, REGROUP, NO_FALLBACK, SKIP_EXISTING, FRESH, PRINT_SPECIAL, PROCESSORS, SECOND_MODEL = OF_FILES
LANGUAGE = (SPOKEN, *grouped("Language"), *TASK)
WORDS = (*grouped("Words"), REGROUP)
SPEECH = grouped("Speech")
SPEAKERS = (*grouped("Speakers"), ENROLLED_VOICES)
SEARCH = (*grouped("Search"), *FUSION)
FALLBACK = (*grouped("Fallback"), NO_FALLBACK)
CONTEXT = grouped("Context")
STYLE = grouped("Style")
OUTPUT = (
    *(OUTPUT_FORMAT, OUTPUT_DIR, SKIP_EXISTING, FRESH, QUIET, COLOUR_CONFIDENCE, PRINT_SPECIAL),
    *LAYOUT,
)
SECTIONS = {
    "Model": (*MODEL, SECOND_MODEL, *DEFERRAL),
    "Language": LANGUAGE,
    "Style": STYLE,
    "Times": (*grouped("Times"), *WORDS),
    "Speech": SPEECH,
    "Workers": (PROCESSORS,),
    "Speakers": SPEAKERS,
    "Search": SEARCH,
    "When a result looks wrong": FALLBACK,
    "Context": CONTEXT,
    "Translation": TRANSLATION,
    "Output": OUTPUT,
}
EXCLUSIVE = {
    "processors": (
        *("prefix", "tinydiarize", "speakers", "channels", "clip_timestamps"),
        *("second_model", "lm", "grammar", "vocabulary_from"),
    ),
    "print_special": ("clean", "regroup", "colour_confidence", "second_model", "translate_to"),
    "second_model": ("clip_timestamps",),
    "verbatim": ("clean",),
}


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.pass_context
def transcribe(context: click.Context, /, files: tuple[str, ...], **given: object) -> int:
    """Transcribe recordings: any audio or video file, `-` for one from standard input.

    Documents are named after their recordings: talk.srt for talk.mp3. Recordings of the same name keep their
    extension, talk.mp3.srt and talk.wav.srt, or their folder, monday-talk.mp3.srt and friday-talk.mp3.srt. A
    recording given twice has one document. Documents are UTF-8, in files and in pipes.
    """
    check_exclusive(context, EXCLUSIVE)
    from sottovoce.cli.documents import with_output_file
    from sottovoce.cli.transcribe_files import transcribe_files

    output = with_output_file(files, given_as(OutputOptions, given), typed_options(context))
    return transcribe_files(files, given, transcribe_options(given), output, invocation_of(context))


def transcribe_options(given: Given) -> TranscribeOptions:
    values = read_values(given)
    vad = _vad(values)
    implies_vad = values["batch_size"] != 1 or values["channels"] == "apart" or vad is not None
    values["mode"] = "vad" if implies_vad else values["mode"] or "seek"
    _check_style(values)
    if values["initial_prompt"] and values["max_context"] == 0 and not values["carry_initial_prompt"]:
        raise OptionError("--initial-prompt: needs --carry-initial-prompt, or --max-context above 0")
    prompt = given_as(FusionOptions, given).prompt
    tried = value_of(values, "temperature", tuple) or ()
    options = made(
        TranscribeOptions,
        values,
        decoding=made(DecodingOptions, values, hotwords=prompt, task="transcribe"),
        fallback=made(FallbackOptions, values, temperatures=tried[:1] if values["no_fallback"] else tried),
        vad=vad,
        speakers=speakers_of(given),
    )
    if options.audio_filter is not None or options.input_format is not None:
        from sottovoce.audio.io import check_reading  # imports FFmpeg

        check_reading(options.audio_filter, options.input_format)
    return options


def _vad(values: Given) -> VadOptions | None:
    given = {one.key: values[one.key] for one in options_of(VadOptions) if values.get(one.key) is not None}
    return changed(WINDOW_VAD, given) if given else None


def _check_style(values: Given) -> None:
    language = LanguageChoice.parse(value_of(values, "language", str), language_codes()).fixed
    if language is None or values["task"] == "translate":
        return
    if values["verbatim"]:
        check_verbatim(language)
    if values["clean"]:
        check_cleanable(language)
