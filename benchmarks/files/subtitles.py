"""How well subtitles can be read: the layout for reading against Whisper's segments.

    python -m benchmarks files subtitles examples/speech/{en,mixed,ja}.flac

Both layouts of a recording are made of one transcription with word times. For each: the longest line (cells
of a terminal: wide characters count twice), the most lines of a cue, the longest cue, the share of cues that
are faster than `READING_SPEED` cells a second, and the share of cues that end within a clause (no punctuation
and no pause of `READING_PAUSE_S` follows). Prints a table and one JSON line.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from benchmarks.harness.report import benchmark_parser, percent, show_json, show_table
from sottovoce.api import load_model
from sottovoce.formats.subtitles import (
    READING_PAUSE_S,
    READING_SPEED,
    Cue,
    CueMaker,
    ends_with,
)
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.languages import CLAUSE_ENDS, SENTENCE_ENDS
from sottovoce.text.normalize import width
from sottovoce.types import Transcript


def cues(transcript: Transcript, options: WriterOptions) -> list[Cue]:
    maker = CueMaker(options)
    return [*(cue for item in transcript.segments for cue in maker.segment(item)), *maker.flush()]


def measures(laid_out: list[Cue]) -> dict[str, float]:
    lines = [line for cue in laid_out for line in cue.text.split("\n")]
    lengths = [cue.end - cue.start for cue in laid_out]
    speeds = [width(cue.text) / max(cue.end - cue.start, 0.001) for cue in laid_out]
    within_clause = [
        not ends_with(cue.words[-1].text, SENTENCE_ENDS + CLAUSE_ENDS)
        and later.start - cue.words[-1].end < READING_PAUSE_S
        for cue, later in pairwise(laid_out)
    ]
    return {
        "n_cues": len(laid_out),
        "longest_line": max(map(width, lines)),
        "most_lines": max(cue.text.count("\n") + 1 for cue in laid_out),
        "longest_s": round(max(lengths), 1),
        "fast": sum(speed > READING_SPEED for speed in speeds) / len(speeds),
        "within_clause": sum(within_clause) / max(1, len(within_clause)),
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--model", default="base")
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    rows, results = [], []
    for recording in arguments.recordings:
        transcript = model.transcribe(recording, word_timestamps=True, beam_size=5).collect()
        for layout in (WriterOptions(layout="segments"), WriterOptions()):
            result = measures(cues(transcript, layout))
            name = "Whisper's segments" if layout.layout else "for reading"
            shares = (percent(result["fast"]), percent(result["within_clause"]))
            rows.append(
                [recording.name, name, *(str(result[key]) for key in list(result)[:4]), *shares],
            )
            results.append({"recording": recording.name, "layout": name, **result})
    heads = [
        "recording",
        "layout",
        "cues",
        "cells a line",
        "lines a cue",
        "seconds",
        "fast",
        "cut in a clause",
    ]
    show_table(heads, rows)
    show_json("files subtitles", {"model": arguments.model, "results": results})


if __name__ == "__main__":
    main()
