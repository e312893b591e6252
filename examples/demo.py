"""Transcribe the bundled recordings, score them, and transcribe and draw one of them as a live session.

    make demo

The model is Whisper `base`, which is downloaded at first use. Without its weights the bundled toy model
`nano` transcribes clips of synthetic speech. Subtitles and JSON of each clip and a picture are written to
`demo/`.
No clip was used to choose a setting; speech/README.md names their sources and licences.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape

import sottovoce
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.scores import LiveRun, ScoredUtterance, count_errors, run_live, word_latencies
from sottovoce.formats.files import writers_for
from sottovoce.formats.output import Writer, open_output, write_transcript
from sottovoce.text.languages import UNSPACED, language_name
from sottovoce.text.normalize import plain
from sottovoce.types import Transcript

HERE = Path(__file__).parent
OUTPUT = Path("demo")
CHUNK_S = 0.25
LETTERS = 62
"""Letters of a line of text over the whole width of the picture."""
COLOURS = ("blue", "red", "green", "magenta", "yellow", "cyan")
"""Of the languages on the terminal."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of the picture: background, text, and one for each language."""

    paper: str
    ink: str
    colours: tuple[str, ...]


THEMES = {
    "languages.png": Theme("#ffffff", "#24292f", ("#1f5fa8", "#b3361e", "#1b7a3d", "#7a3e9d")),
    "languages-dark.png": Theme("#0d1117", "#d0d7de", ("#79b8ff", "#ff9b85", "#6fdc96", "#d2a8ff")),
}


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a clip in one language; times in seconds."""

    start: float
    end: float
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Clip:
    """A line of the manifest."""

    name: str
    path: Path
    text: str
    duration: float
    spans: tuple[Span, ...]

    @property
    def languages(self) -> list[str]:
        return list(dict.fromkeys(span.language for span in self.spans))


def read_clips(folder: Path) -> list[Clip]:
    clips = []
    for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        spans = tuple(Span(**span) for span in entry["segments"])
        name = Path(entry["file"]).stem
        clips.append(Clip(name, folder / entry["file"], entry["text"], entry["duration"], spans))
    return clips


def open_model(console: Console) -> tuple[sottovoce.Model, Path]:
    """Whisper base and recordings of people, or nano and its synthetic clips."""
    try:
        return sottovoce.load_model("base"), HERE / "speech"
    except sottovoce.SottovoceError as error:
        console.print(f"{escape(str(error))}. Using the toy model nano and synthetic clips: expect mistakes.")
        return sottovoce.load_model("nano"), HERE / "clips"


def colour_of(language: str, languages: Sequence[str]) -> str:
    return COLOURS[languages.index(language) % len(COLOURS)] if language in languages else "grey"


def transcribe(model: sottovoce.Model, clip: Clip, languages: Sequence[str], console: Console) -> Transcript:
    """Transcribe one clip and print each segment when it is complete.

    The language is detected; for a clip in several languages their list is given.
    """
    console.print(f"\n[bold]{clip.path.name}[/bold]  spoken: {escape(clip.text)}")
    wish = clip.languages if len(clip.languages) > 1 else "auto"
    result = model.transcribe(clip.path, language=wish, word_timestamps=True, beam_size=5)
    segments = []
    for segment in result:
        segments.append(segment)
        times = f"[dim]{segment.start:6.2f} - {segment.end:5.2f}[/dim]"
        colour = colour_of(segment.language, languages)
        console.print(f"  {times}  [{colour}]{segment.language}[/]  {escape(segment.text.strip())}")
    return Transcript(tuple(segments), result.language or "", result.duration or clip.duration, model.name)


def listen(
    model: sottovoce.Model, clip: Clip, transcript: Transcript, languages: Sequence[str], console: Console
) -> LiveRun:
    """Transcribe the recording as a live session, and print the words of each update and their latency."""
    console.print(f"\n[bold]{clip.path.name}, live[/bold]  {CHUNK_S:g} s at a time; words are never revised")
    session = model.session(languages=clip.languages)
    run = run_live(session, load_audio(clip.path), chunk_s=CHUNK_S)
    for moment in dict.fromkeys(run.delays_s):
        words = [w for w, delay in zip(run.words, run.delays_s, strict=True) if delay == moment]
        colour = colour_of(words[0].language or "", languages)
        text = escape("".join(word.word for word in words).strip())
        console.print(f"  [dim]{moment:6.2f} s[/dim]       [{colour}]{words[0].language}[/]  {text}")
    console.print(f"  [dim]{latency_line(run, transcript)}[/dim]")
    return run


def latency_line(run: LiveRun, transcript: Transcript) -> str:
    """The median latency of words, by the word times of the file, and the time of the computation."""
    said = [
        (normalized(word.word), word.end) for segment in transcript.segments for word in segment.words or ()
    ]
    words = [normalized(word.word) for word in run.words]
    late = word_latencies(words, run.delays_s, [word for word, _ in said], [end for _, end in said])
    shown = f"{statistics.median(late):.1f} s after their end" if late else "at no known time"
    return (
        f"words appeared, in the median, {shown}; computing took {run.compute_s:.1f} s "
        f"for {run.duration_s:.1f} s of audio"
    )


def normalized(word: str) -> str:
    return plain(word)


def write(clip: Clip, transcript: Transcript, writers: list[Writer]) -> None:
    for writer in writers:
        with open_output(OUTPUT / f"{clip.name}.{writer.extension}") as add:
            add(write_transcript(writer, transcript))


def draw(clip: Clip, live: LiveRun, path: Path, theme: Theme) -> None:
    """Draw the live session: the spoken languages, the delay of each word, and the text below its language.

    A line leads from the end of each word to the moment at which the session committed it.
    """
    figure = Figure(figsize=(8.4, 4.05), layout="constrained", facecolor=theme.paper)
    axis = figure.subplots()
    axis.set(xlim=(0, clip.duration), ylim=(-0.32, 3.3), facecolor=theme.paper)
    axis.set_axis_off()
    colours = dict(zip(clip.languages, theme.colours * len(clip.languages), strict=False))
    for span in clip.spans:
        bar(axis, span, 2.3, colours, theme)
    switches = [(0.0, live.first_language or ""), *((s.at_s, s.target) for s in live.switches)]
    ends = [*(at for at, _ in switches[1:]), clip.duration]
    for word, shown in zip(live.words, live.delays_s, strict=True):
        colour = colours.get(word.language or "", theme.ink)
        axis.plot([word.end, min(shown, clip.duration)], [2.28, 1.72], color=colour, lw=1.8)
    for (start, language), end in zip(switches, ends, strict=True):
        text = "".join(w.word for w in live.words if start <= w.start < end).strip()
        gap = 0.12 if end < clip.duration else 0.0
        bar(axis, Span(start, end - gap, language, text), 1.1, colours, theme)
        lines = textwrap.wrap(text, max(12, int(LETTERS * (end - start) / clip.duration)))
        colour = colours.get(language, theme.ink)
        axis.text(start, 0.95, "\n".join(lines), va="top", fontsize=15, color=colour)
    for second in range(0, int(clip.duration) + 1, 5):
        side = "left" if second == 0 else "center"
        axis.text(second, 3.05, f"{second} s", ha=side, fontsize=14, color=theme.ink)
    for y, label in ((2.58, "spoken"), (1.38, "written")):
        axis.text(-0.012 * clip.duration, y, label, ha="right", va="center", fontsize=14, color=theme.ink)
    figure.savefig(path, dpi=120, bbox_inches="tight", facecolor=theme.paper)


def bar(axis: Axes, span: Span, y: float, colours: dict[str, str], theme: Theme) -> None:
    width = span.end - span.start
    axis.barh(y + 0.28, width, left=span.start, height=0.56, color=colours.get(span.language, theme.ink))
    name = language_name(span.language).title() if span.language else ""
    x, look = span.start + 0.12, {"fontsize": 15, "weight": "bold", "color": theme.paper}
    axis.text(x, y + 0.27, name, va="center", clip_on=True, **look)


def score_line(clip: Clip, transcript: Transcript) -> str:
    """Error rates of words and characters; only of characters in scripts without spaces."""
    language = clip.languages[0] if len(clip.languages) == 1 else None
    errors = count_errors(ScoredUtterance(clip.text, transcript.text, language))
    words = "" if language in UNSPACED else f"word error rate {errors.word.rate or 0.0:.0%}, "
    detected = ", ".join(dict.fromkeys(segment.language for segment in transcript.segments))
    return (
        f"{words}character error rate {errors.character.rate or 0.0:.0%}, "
        f"spoken {', '.join(clip.languages)}, detected {detected}"
    )


def main() -> None:
    console = Console(highlight=False, soft_wrap=True)
    OUTPUT.mkdir(exist_ok=True)
    model, folder = open_model(console)
    clips = read_clips(folder)
    languages = list(dict.fromkeys(language for clip in clips for language in clip.languages))
    transcripts = []
    for clip in clips:
        transcript = transcribe(model, clip, languages, console)
        console.print(f"  [dim]{score_line(clip, transcript)}[/dim]")
        write(clip, transcript, writers_for("srt,json"))
        transcripts.append(transcript)
    live = listen(model, clips[-1], transcripts[-1], languages, console)
    for name, theme in THEMES.items():
        draw(clips[-1], live, OUTPUT / name, theme)
    if model.name == "base":
        console.print(
            "\nbase is a small model and makes mistakes: `transcribe --model small` uses a larger one."
        )
    console.print(f"\nSubtitles, JSON and pictures of the live session are in {OUTPUT}/")


if __name__ == "__main__":
    main()
