"""`sottovoce transcribe`: its options; the work is in `transcribe_files`.

Imports nothing heavy: `--help` answers at once.
"""

from __future__ import annotations

from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.idle import check_idle, typed_options
from sottovoce.cli.options import FUSION, MODEL, TASK, beam_size
from sottovoce.cli.parameters import Clock, Finite
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.speakers import SPEAKERS
from sottovoce.cli.translation import TRANSLATION
from sottovoce.formats.registry import FORMATS

LANGUAGE = (
    click.option(
        "-l",
        "--language",
        default="auto",
        show_default=True,
        metavar="auto|CODE[,CODE…]",
        help="One language; auto: find that of the recording; several: follow it as it changes among them.",
    ),
    click.option(
        "--follow-languages/--no-follow-languages",
        default=None,
        help="Follow changes of language within a recording, or keep what its beginning is in. "
        "[follow where several languages are given]",
    ),
    *TASK,
)
WORDS = (
    click.option("-w", "--word-timestamps", is_flag=True, help="Times and probabilities of words."),
    click.option(
        "--word-threshold",
        type=Finite(0, 1),
        default=0.0,
        show_default=True,
        metavar="P",
        help="Words less probable than this take their times from the words around them.",
    ),
    click.option(
        "--prepend-punctuations",
        metavar="SIGNS",
        help="Signs that belong to the word after them. [openai-whisper's]",
    ),
    click.option(
        "--append-punctuations",
        metavar="SIGNS",
        help="Signs that belong to the word before them. [openai-whisper's]",
    ),
    click.option(
        "--regroup",
        metavar="RULES",
        help="Cut and join segments, as 'split pause=0.5 after=.?!; merge letters=80' (needs "
        "--word-timestamps).",
    ),
)
PART = (
    click.option(
        "--offset",
        type=Clock(),
        metavar="TIME",
        help="Begin there: seconds, m:ss or h:mm:ss. [the beginning]",
    ),
    click.option("--duration", type=Clock(), metavar="TIME", help="Stop after so much of it. [to the end]"),
    click.option(
        "--clip-timestamps",
        default="",
        metavar="START,END,…",
        help="Only these parts; times as for --offset, the last end may be left out.",
    ),
    *WORDS,
    click.option("--without-timestamps", is_flag=True, help="Do not predict the times of segments."),
    click.option(
        "--hallucination-silence-threshold",
        type=Finite(above=0),
        metavar="SECONDS",
        help="Skip silences longer than this around words that look invented (needs --word-timestamps).",
    ),
)
SPEECH = (
    click.option(
        "--audio-filter",
        metavar="FILTERS",
        help="Filters of FFmpeg that the recording goes through first, as 'highpass=f=100,afftdn'.",
    ),
    click.option("--vad", is_flag=True, help="Find speech first, and decode nothing else."),
    click.option(
        "--batch-size",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Windows decoded together; above 1 implies --vad, as do the options below.",
    ),
    click.option("--vad-threshold", type=Finite(0, 1), help="Probability where speech begins. [0.5]"),
    click.option(
        "--vad-neg-threshold", type=Finite(0, 1), help="Probability below which it ends. [threshold - 0.15]"
    ),
    click.option("--vad-min-speech-ms", type=Finite(0), help="Shorter speech is dropped. [0]"),
    click.option("--vad-min-silence-ms", type=Finite(0), help="Shorter pauses do not end speech. [160]"),
    click.option("--vad-max-speech-s", type=Finite(above=0), help="Longer speech is cut, at a pause. [30]"),
    click.option(
        "--vad-min-silence-at-max-speech-ms", type=Finite(0), help="Shortest pause to cut it at. [98]"
    ),
    click.option("--vad-speech-pad-ms", type=Finite(0), help="Added at both sides of speech. [200]"),
    click.option("--vad-overlap-s", type=Finite(0), help="Added again, into what follows. [0]"),
    click.option(
        "--audio-ctx",
        type=click.IntRange(50),
        metavar="FRAMES",
        help="Encoder frames of 20 ms in a window; fewer than the model's lose words. [1500]",
    ),
)
SEARCH = (
    *beam_size(5),
    click.option(
        "--best-of",
        type=click.IntRange(1),
        default=5,
        show_default=True,
        help="Draws at temperatures above 0.",
    ),
    click.option(
        "--patience", type=Finite(above=0), help="Finished hypotheses to wait for, times the beam size."
    ),
    click.option(
        "--length-penalty",
        type=Finite(0, 1),
        help="Exponent of Google's length penalty. [mean of the log-probabilities]",
    ),
    click.option(
        "--repetition-penalty",
        type=Finite(above=0),
        default=1.0,
        show_default=True,
        help="Above 1: text tokens that were written become less likely.",
    ),
    click.option(
        "--no-repeat-ngram-size",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="No sequence of so many tokens twice; 0 allows all.",
    ),
    click.option(
        "--suppress-tokens",
        default="-1",
        show_default=True,
        metavar="ID[,ID…]",
        help="Tokens never written; -1 stands for signs that are not speech, '' suppresses nothing.",
    ),
    click.option(
        "--suppress-regex",
        metavar="REGEX",
        help="Tokens never written: those whose whole text it matches, the space before a word included.",
    ),
    *FUSION,
)
FALLBACK = (
    click.option(
        "--temperature",
        default="0,0.2,0.4,0.6,0.8,1",
        show_default=True,
        metavar="T[,T…]",
        help="Tried in turn while the result looks wrong.",
    ),
    click.option("--no-fallback", is_flag=True, help="Keep to the first temperature, whatever comes out."),
    click.option(
        "--compression-ratio-threshold",
        type=Finite(),
        default=2.4,
        show_default=True,
        help="Text that compresses better than this repeats itself: try the next temperature.",
    ),
    click.option(
        "--entropy-threshold",
        type=Finite(0),
        help="Text whose last 32 tokens have less entropy repeats itself too; 2.4 in whisper.cpp. [none]",
    ),
    click.option(
        "--logprob-threshold",
        type=Finite(),
        default=-1.0,
        show_default=True,
        help="Mean log-probability below which to try the next temperature.",
    ),
    click.option(
        "--no-speech-threshold",
        type=Finite(),
        default=0.6,
        show_default=True,
        help="Above this, and below the log-probability threshold: silence.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Of the draws at temperatures above 0."
    ),
)
CONTEXT = (
    click.option(
        "--initial-prompt", metavar="TEXT", help="What was said before the recording: names, spelling, style."
    ),
    click.option("--carry-initial-prompt", is_flag=True, help="Give the initial prompt to every window."),
    click.option("--prefix", metavar="TEXT", help="What the text begins with."),
    click.option(
        "--no-condition-on-previous-text",
        is_flag=True,
        help="Decode each window without the text of the one before.",
    ),
    click.option(
        "--max-context",
        type=click.IntRange(0),
        metavar="TOKENS",
        help="Tokens of earlier text given to a window at most. [as many as the model takes]",
    ),
    click.option(
        "--prompt-reset-on-temperature",
        type=Finite(0),
        default=0.5,
        show_default=True,
        help="Text that needed a temperature above this is not given to the next window.",
    ),
)
LAYOUT = (
    click.option(
        "--offset-n",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="N",
        help="srt: added to the number of every subtitle; the first is N + 1.",
    ),
    click.option(
        "--max-line-width",
        type=click.IntRange(1),
        help="Characters a subtitle line (needs --word-timestamps).",
    ),
    click.option(
        "--max-line-count",
        type=click.IntRange(1),
        help="Lines a subtitle (needs a line width or a reading speed).",
    ),
    click.option("--max-words-per-line", type=click.IntRange(1), help="Words a subtitle."),
    click.option(
        "--reading-speed",
        type=Finite(1),
        metavar="CHARACTERS",
        help="Lay subtitles out for reading, at so many characters a second (17 is usual): 2 lines of 42 at "
        "most, ended where sentences are, on the screen as long as it takes (needs --word-timestamps).",
    ),
    click.option(
        "--highlight-words", is_flag=True, help="Underline each word of a subtitle as it is spoken."
    ),
    click.option(
        "--embed-audio", is_flag=True, help="html: put the recording into the page, rather than a link to it."
    ),
)
OUTPUT = (
    click.option(
        "-f",
        "--output-format",
        default="txt",
        show_default=True,
        metavar="FORMAT[,FORMAT…]",
        help=f"{', '.join(FORMATS)} or all.",
    ),
    click.option(
        "-o",
        "--output-dir",
        metavar="DIR",
        help="Where files go, made if it is not there; - writes documents to standard output. "
        "[txt alone: the terminal; else: here]",
    ),
    click.option(
        "--colour-confidence",
        is_flag=True,
        help="Colour the words of the text on the terminal by how sure they are (needs --word-timestamps).",
    ),
    click.option(
        "--print-special",
        is_flag=True,
        help="Write timestamps and other special tokens in txt, as the model does.",
    ),
    *LAYOUT,
)
WORKERS = (
    click.option(
        "--processors",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Processes that read one recording, cut at pauses; each holds the model.",
    ),
)
SECTIONS = {
    "Model": MODEL,
    "Language": LANGUAGE,
    "Times": PART,
    "Speech": SPEECH,
    "Workers": WORKERS,
    "Speakers": SPEAKERS,
    "Search": SEARCH,
    "When a result looks wrong": FALLBACK,
    "Context": CONTEXT,
    "Translation": TRANSLATION,
    "Output": OUTPUT,
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
    check_idle(given, typed_options(context))
    from sottovoce.cli.transcribe_files import transcribe_files

    return transcribe_files(files, given, this_call(context))
