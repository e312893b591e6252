"""Transcribe the bundled recordings of people, score them, draw who spoke what when; then one of them live.

    make demo

Whisper `base` does it, fetched at first use. Where its weights cannot be had, the bundled toy `nano` shows
the same with clips of synthetic speech. Writes subtitles and JSON for each clip and a picture into `demo/`.
No clip was used to choose any setting; speech/README.md names their sources and licences.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape

import sottovoce
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.latency import LiveRun, run_live, word_latencies
from sottovoce.evaluation.wer import ScoredUtterance, count_errors
from sottovoce.formats.base import Writer, write_transcript
from sottovoce.formats.output import open_output
from sottovoce.formats.writers import writers_for
from sottovoce.text.languages import UNSPACED
from sottovoce.text.normalize import plain
from sottovoce.types import Transcript

HERE = Path(__file__).parent
OUTPUT = Path("demo")
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#997722", "#66ccee")
CHUNK_S = 0.5


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch in one language; seconds."""

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
        console.print(f"{escape(str(error))}. This is nano, a toy, with synthetic clips: expect mistakes.")
        return sottovoce.load_model("nano"), HERE / "clips"


def colour_of(language: str, languages: Sequence[str]) -> str:
    return COLOURS[languages.index(language) % len(COLOURS)] if language in languages else "grey"


def transcribe(model: sottovoce.Model, clip: Clip, languages: Sequence[str], console: Console) -> Transcript:
    """Transcribe one clip, showing each segment as it comes.

    The language is found; of a clip that changes it, those spoken are given.
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
    """The same recording as a live stream: words by the second in which they came, and how late they were."""
    console.print(f"\n[bold]{clip.path.name}, live[/bold]  {CHUNK_S:g} s at a time; nothing is taken back")
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
    """How long after its end each word came, by the word times of the file."""
    said = [
        (normalized(word.word), word.end) for segment in transcript.segments for word in segment.words or ()
    ]
    words = [normalized(word.word) for word in run.words]
    late = word_latencies(words, run.delays_s, [word for word, _ in said], [end for _, end in said])
    shown = f"{statistics.median(late):.1f} s after their end" if late else "not to be told"
    return (
        f"words came, in the median, {shown}; computing took {run.compute_s:.1f} s "
        f"for {run.duration_s:.1f} s of sound"
    )


def normalized(word: str) -> str:
    return plain(word)


def write(clip: Clip, transcript: Transcript, writers: list[Writer]) -> None:
    for writer in writers:
        with open_output(OUTPUT / f"{clip.name}.{writer.extension}") as output:
            output.write(write_transcript(writer, transcript))


def draw(clips: list[Clip], transcripts: list[Transcript], live: LiveRun, languages: Sequence[str]) -> Path:
    """One row a clip: what was spoken above, what was heard below; the last clip once more, live."""
    n_rows = len(clips) + 1
    figure = Figure(figsize=(11, 1.05 * n_rows + 0.8), layout="constrained")
    axes = figure.subplots(n_rows, squeeze=False)[:, 0]
    for clip, transcript, axis in zip(clips, transcripts, axes, strict=False):
        heard = tuple(Span(s.start, s.end, s.language, s.text.strip()) for s in transcript.segments)
        frame(axis, f"{clip.name}.flac", clip.duration, ("spoken", "heard"))
        draw_spans(axis, clip.spans, 1, clip.duration, languages)
        draw_spans(axis, heard, 0, clip.duration, languages)
    clip, axis = clips[-1], axes[-1]
    frame(
        axis, f"{clip.name}.flac, live: each word where it was committed", clip.duration, ("spoken", "came")
    )
    draw_spans(axis, clip.spans, 1, clip.duration, languages)
    draw_words(axis, live, clip.duration, languages)
    axis.set_xlabel("seconds")
    path = OUTPUT / "languages.png"
    figure.savefig(path, dpi=120)
    return path


def frame(axis: Axes, title: str, duration: float, rows: tuple[str, str]) -> None:
    axis.set_title(title, loc="left", fontsize=9)
    axis.set_yticks([1.4, 0.4], list(rows))
    axis.set(xlim=(0, duration), ylim=(0, 2))
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(left=False, labelsize=8)


def draw_spans(
    axis: Axes, spans: tuple[Span, ...], row: int, duration: float, languages: Sequence[str]
) -> None:
    for span in spans:
        colour = colour_of(span.language, languages)
        axis.barh(row + 0.4, span.end - span.start, left=span.start, height=0.75, color=colour, alpha=0.85)
        room = int(165 * (span.end - span.start) / duration) - 4  # letters that fit
        text = span.text if span.language not in UNSPACED else ""  # the default font has no such letters
        shown = text if len(text) <= room else text[: max(0, room - 1)] + "…"
        place(axis, span.start, row, f"{span.language}  {shown}", duration, "white")


def draw_words(axis: Axes, live: LiveRun, duration: float, languages: Sequence[str]) -> None:
    """A mark wherever words came, in the colour of their language, and before it what fits of them."""
    last = 0.0
    for moment in dict.fromkeys(live.delays_s):
        words = [w for w, delay in zip(live.words, live.delays_s, strict=True) if delay == moment]
        colour = colour_of(words[0].language or "", languages)
        at = min(moment, duration)
        axis.plot([at, at], [0.05, 0.75], color=colour, lw=2)
        text = "".join(word.word for word in words).strip()
        room = int(190 * (at - last) / duration) - 1  # letters that fit
        shown = text if len(text) <= room else text[: room - 1] + "…" if room > 3 else ""
        axis.text(at - 0.004 * duration, 0.4, shown, va="center", ha="right", fontsize=6, color=colour)
        last = at


def place(axis: Axes, start: float, row: int, label: str, duration: float, colour: str) -> None:
    axis.text(start + 0.004 * duration, row + 0.4, label, va="center", fontsize=7, color=colour, clip_on=True)


def score_line(clip: Clip, transcript: Transcript) -> str:
    """Errors of the text: of words and characters, of unspaced scripts characters alone."""
    language = clip.languages[0] if len(clip.languages) == 1 else None
    errors = count_errors(ScoredUtterance(clip.text, transcript.text, language))
    words = "" if language in UNSPACED else f"word error rate {errors.word.rate or 0.0:.0%}, "
    heard = ", ".join(dict.fromkeys(segment.language for segment in transcript.segments))
    return (
        f"{words}character error rate {errors.character.rate or 0.0:.0%}, "
        f"spoken {', '.join(clip.languages)}, heard {heard}"
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
    picture = draw(clips, transcripts, live, languages)
    if model.name == "base":
        console.print("\nbase is a small Whisper, and errs as one; --model takes larger ones.")
    console.print(f"\nSubtitles, JSON and the picture {picture} are in {OUTPUT}/")


if __name__ == "__main__":
    main()
