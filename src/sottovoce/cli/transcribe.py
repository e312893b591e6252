"""`sottovoce transcribe`: the options; `transcribe_files` does the work.

Imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from sottovoce.cli.flags import SectionedCommand, check_exclusive, grouped, read_values, typed_options
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import (
    DEFERRAL,
    ENROLLED_VOICES,
    FUSION,
    MODEL,
    TASK,
    TRANSLATION,
    hotword_text,
    speakers_of,
)
from sottovoce.errors import OptionError
from sottovoce.formats.writers import FORMATS
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.schema import Option, Values, made, options_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import WINDOW_VAD, VadOptions
from sottovoce.text.disfluency import check_cleanable, check_verbatim
from sottovoce.text.languages import LanguageChoice, language_codes

LANGUAGE = (
    Option(
        "One language; auto: find that of the recording, and follow where it is surely in several; a list: "
        "follow it as it changes among these.",
        key="language",
        short="-l",
        default="auto",
        metavar="auto|CODE[,CODE…]",
    ),
    *grouped("Language"),
    *TASK,
)
REGROUP = Option(
    "Cut and join segments, as 'split pause=0.5 after=.?!; merge letters=80' (needs --word-timestamps).",
    key="regroup",
    metavar="RULES",
)
WORDS = (*grouped("Words"), REGROUP)
NO_FALLBACK = Option(
    "Keep to the first temperature, whatever comes out.",
    key="no_fallback",
    kind="flag",
    group="Fallback",
)
SPEECH = grouped("Speech")
SPEAKERS = (*grouped("Speakers"), ENROLLED_VOICES)
SEARCH = (*grouped("Search"), *FUSION)
FALLBACK = (*grouped("Fallback"), NO_FALLBACK)
CONTEXT = grouped("Context")
STYLE = grouped("Style")
OUTPUT_FORMAT = Option(
    f"{', '.join(FORMATS)} or all.",
    key="output_format",
    short="-f",
    default="txt",
    metavar="FORMAT[,FORMAT…]",
)
OUTPUT_DIR = Option(
    "Where files go, made if it is not there; a name as talk.srt: the one document, in the format of its "
    "extension; - writes documents to standard output.",
    key="output_dir",
    short="-o",
    metavar="DIR|FILE",
    unset="txt alone: the terminal; else: here",
)
COLOUR_CONFIDENCE = Option(
    "Colour the words of the text on the terminal by how sure they are (needs --word-timestamps).",
    key="colour_confidence",
    kind="flag",
)
LAYOUT = (
    *grouped("Layout"),
    Option(
        "html: put the recording into the page, rather than a link to it.", key="embed_audio", kind="flag"
    ),
)
OUTPUT = (
    OUTPUT_FORMAT,
    OUTPUT_DIR,
    Option("Leave out recordings whose documents are all there already.", key="skip_existing", kind="flag"),
    Option(
        "Begin recordings anew that an interrupted call left in the middle, rather than go on.",
        key="fresh",
        kind="flag",
    ),
    Option(
        "Do not show the text on the terminal while documents go to files; a bar tells how far it is.",
        key="quiet",
        short="-q",
        kind="flag",
    ),
    COLOUR_CONFIDENCE,
    Option(
        "Write timestamps and other special tokens in txt, as the model does.",
        key="print_special",
        kind="flag",
    ),
    *LAYOUT,
)
WORKERS = (
    Option(
        "Processes that read one recording, cut at pauses; each holds the model.",
        key="processors",
        kind="integer",
        default=1,
        least=1,
    ),
)
SECOND_MODEL = Option(
    "A larger model that reads again what the first is not sure of; a line says how much that was.",
    key="second_model",
    metavar="NAME|PATH",
)
SECTIONS = {
    "Model": (*MODEL, SECOND_MODEL, *DEFERRAL),
    "Language": LANGUAGE,
    "Style": STYLE,
    "Times": (*grouped("Times"), *WORDS),
    "Speech": SPEECH,
    "Workers": WORKERS,
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
def transcribe(context: click.Context, /, files: tuple[str, ...], **given: Any) -> int:
    """Transcribe recordings: any audio or video file, `-` for one on standard input.

    Documents are called like their recordings: talk.srt of talk.mp3. Recordings that would share a name keep
    more of theirs: talk.mp3.srt and talk.wav.srt, or with their folders monday-talk.mp3.srt and
    friday-talk.mp3.srt. A recording given twice has one document. Documents are UTF-8, in files and in pipes.
    """
    check_exclusive(context, EXCLUSIVE)
    from sottovoce.cli.documents import with_output_file
    from sottovoce.cli.transcribe_files import transcribe_files

    named = with_output_file(files, given, typed_options(context))
    return transcribe_files(files, named, transcribe_options(given), invocation_of(context))


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    values = read_values(given)
    vad = _vad(values)
    implies_vad = values["batch_size"] > 1 or values["channels"] == "apart" or vad is not None
    values["mode"] = "vad" if implies_vad else values["mode"] or "seek"
    _check_style(values)
    if values["initial_prompt"] and values["max_context"] == 0 and not values["carry_initial_prompt"]:
        raise OptionError("--initial-prompt: needs --carry-initial-prompt or tokens, got --max-context 0")
    tried = values["temperature"]
    options = made(
        TranscribeOptions,
        values,
        decoding=made(DecodingOptions, values, hotwords=hotword_text(given), task="transcribe"),
        fallback=made(FallbackOptions, values, temperatures=tried[:1] if values["no_fallback"] else tried),
        vad=vad,
        speakers=speakers_of(given),
    )
    if options.audio_filter is not None or options.input_format is not None:
        from sottovoce.audio.io import check_reading  # imports FFmpeg

        check_reading(options.audio_filter, options.input_format)
    return options


def _vad(values: Values) -> VadOptions | None:
    given = {one.field: values[one.key] for one in options_of(VadOptions) if values.get(one.key) is not None}
    return replace(WINDOW_VAD, **given) if given else None


def _check_style(values: Values) -> None:
    """Raises: OptionError for a language in which a style was not validated."""
    language = LanguageChoice.parse(values["language"], language_codes()).fixed
    if language is None or values["task"] == "translate":
        return
    if values["verbatim"]:
        check_verbatim(language)
    if values["clean"]:
        check_cleanable(language)
