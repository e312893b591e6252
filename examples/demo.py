"""Transcribe the bundled clips with the bundled model, score them, and draw who spoke what when.

    make demo

Writes subtitles and JSON for each clip and a picture of the languages into `demo/`. The clips are
synthetic speech (see make_clips.py) in voices and sentences that the model was not trained on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from rich.console import Console
from rich.markup import escape

import sottovoce
from sottovoce.evaluation.wer import Utterance, count_errors
from sottovoce.formats.base import Writer, write_transcript
from sottovoce.formats.output import open_output
from sottovoce.formats.registry import writers_for
from sottovoce.text.languages import UNSPACED
from sottovoce.types import Transcript

CLIPS = Path(__file__).parent / "clips"
OUTPUT = Path("demo")
COLOURS = {"en": "#4477aa", "de": "#ee6677", "es": "#228833", "fr": "#aa3377", "zh": "#ccbb44"}


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


def read_clips() -> list[Clip]:
    clips = []
    for line in (CLIPS / "manifest.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        spans = tuple(Span(**span) for span in entry["segments"])
        name = Path(entry["file"]).stem
        clips.append(Clip(name, CLIPS / entry["file"], entry["text"], entry["duration"], spans))
    return clips


def transcribe(model: sottovoce.Model, clip: Clip, console: Console) -> Transcript:
    """Transcribe one clip, showing each segment as it comes."""
    console.print(f"\n[bold]{clip.path.name}[/bold]  spoken: {escape(clip.text)}")
    result = model.transcribe(clip.path, language=model.languages, word_timestamps=True)
    segments = []
    for segment in result:
        segments.append(segment)
        times = f"[dim]{segment.start:6.2f} - {segment.end:5.2f}[/dim]"
        language = f"[{COLOURS[segment.language]}]{segment.language}[/]"
        console.print(f"  {times}  {language}  {escape(segment.text.strip())}")
    return Transcript(tuple(segments), result.language or "", result.duration or clip.duration, model.name)


def write(clip: Clip, transcript: Transcript, writers: list[Writer]) -> None:
    for writer in writers:
        with open_output(OUTPUT / f"{clip.name}.{writer.extension}") as output:
            output.write(write_transcript(writer, transcript))


def draw(clips: list[Clip], transcripts: list[Transcript]) -> Path:
    """One row a clip: what was spoken above, what was heard below, coloured by language."""
    height = 1.1 * len(clips) + 0.8
    figure, axes = plt.subplots(len(clips), figsize=(11, height), squeeze=False, layout="constrained")
    for clip, transcript, axis in zip(clips, transcripts, axes[:, 0], strict=True):
        heard = [Span(s.start, s.end, s.language, s.text.strip()) for s in transcript.segments]
        draw_spans(axis, clip.spans, 1, clip.duration)
        draw_spans(axis, tuple(heard), 0, clip.duration)
        axis.set_title(clip.name, loc="left", fontsize=9)
        axis.set_yticks([1.4, 0.4], ["spoken", "heard"])
        axis.set(xlim=(0, clip.duration), ylim=(0, 2))
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(left=False, labelsize=8)
    axes[-1, 0].set_xlabel("seconds")
    path = OUTPUT / "languages.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def draw_spans(axis: Axes, spans: tuple[Span, ...], row: int, duration: float) -> None:
    for span in spans:
        colour = COLOURS.get(span.language, "grey")
        axis.barh(row + 0.4, span.end - span.start, left=span.start, height=0.75, color=colour, alpha=0.85)
        room = int(165 * (span.end - span.start) / duration) - 4  # letters that fit
        text = span.text if span.language != "zh" else ""  # the default font has no Chinese
        shown = text if len(text) <= room else text[: max(0, room - 1)] + "…"
        label = f"{span.language}  {shown}"
        axis.text(
            span.start + 0.004 * duration,
            row + 0.4,
            label,
            va="center",
            fontsize=7,
            color="white",
            clip_on=True,
        )


def main() -> None:
    console = Console(highlight=False, soft_wrap=True)
    OUTPUT.mkdir(exist_ok=True)
    model = sottovoce.load_model("nano", device="cpu")
    console.print("nano is a toy for install checks and demos: expect mistakes. For real work: --model base")
    clips = read_clips()
    transcripts = []
    for clip in clips:
        transcript = transcribe(model, clip, console)
        console.print(f"  [dim]{score_line(clip, transcript)}[/dim]")
        write(clip, transcript, writers_for("srt,json"))
        transcripts.append(transcript)
    picture = draw(clips, transcripts)
    console.print(f"\nSubtitles, JSON and the picture {picture} are in {OUTPUT}/")


def score_line(clip: Clip, transcript: Transcript) -> str:
    """Errors of the text: of words and characters, of Chinese characters alone."""
    language = clip.languages[0] if len(clip.languages) == 1 else None
    errors = count_errors(Utterance(clip.text, transcript.text, language))
    words = "" if language in UNSPACED else f"word error rate {errors.word.rate or 0.0:.0%}, "
    heard = ", ".join(dict.fromkeys(segment.language for segment in transcript.segments))
    return (
        f"{words}character error rate {errors.character.rate or 0.0:.0%}, "
        f"spoken {', '.join(clip.languages)}, heard {heard}"
    )


if __name__ == "__main__":
    main()
