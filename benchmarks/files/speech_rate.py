"""How fast people speak: letters a second of voice, by language, and the rate that nobody reaches.

    python -m benchmarks files speech_rate ../shared/data --log rates.jsonl               # fits the limits
    python -m benchmarks files speech_rate ../shared/data --log rates.jsonl --part test   # tries them

Letters (`str.isalnum`) of the text over the seconds of voice that `offline.verify.VOICE_VAD` finds. The
limit of a language is `REACH` times the rate of its fastest clip (`offline.verify.LETTERS_A_SECOND`): clips
are read aloud, and parts of them are faster than their mean. Languages without `LEAST_CLIPS` have the highest
limit. `--part test` says how many clips that chose no limit exceed it. Needs no model. Prints a table and one
JSON line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.harness.clips import clips, spread
from benchmarks.harness.report import Log, add_part, benchmark_parser, percent, show_json, show_table
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import SpeechFinder
from sottovoce.offline.verify import LETTERS_A_SECOND, MOST_LETTERS_A_SECOND, VOICE_VAD, n_letters
from sottovoce.types import SAMPLE_RATE, Floats

REACH = 2.0
LEAST_CLIPS = 5


def rate(file: Path, text: str) -> float:
    """Return the letters a second of voice, 0 without a voice."""
    finder = SpeechFinder(VOICE_VAD)
    finder.push(load_audio(file))
    n_samples = sum(item.end_sample - item.start_sample for item in finder.finish())
    return n_letters(text) * SAMPLE_RATE / n_samples if n_samples else 0.0


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path, help="folder that holds manifest.jsonl")
    add_part(parser, "dev")
    parser.add_argument("--per-language", type=int, default=60)
    parser.add_argument("--log", type=Path, help="rates so far: a file of JSON lines that is added to")
    arguments = parser.parse_args()
    log = Log(arguments.log)
    spoken = [
        clip for clip in clips(arguments.data, arguments.part, with_text=True) if len(clip.languages) == 1
    ]
    rates: dict[str, Floats] = {}
    for language in sorted({clip.language for clip in spoken}):
        measured: list[float] = []
        for clip in spread([item for item in spoken if item.language == language], arguments.per_language):
            row = log.get(arguments.part, clip.name)
            if row is None:
                row = {"rate": round(rate(clip.file, clip.text or ""), 3)}
                log.add(arguments.part, clip.name, row)
            measured += [row["rate"]] if row["rate"] else []
        rates[language] = np.array(measured)
    limits = {
        code: round(REACH * float(values.max()), 1)
        for code, values in rates.items()
        if len(values) >= LEAST_CLIPS
    }
    rows = []
    for code, values in rates.items():
        used = LETTERS_A_SECOND.get(code, MOST_LETTERS_A_SECOND)
        cells = (len(values), f"{np.median(values):.1f}", f"{values.max():.1f}", limits.get(code, ""), used)
        rows.append([code, *map(str, cells), percent(float((values > used).mean()))])
    heads = ["language", "clips", "letters a second", "fastest", "limit", "limit used", "clips above it"]
    show_table(heads, rows)
    show_json("files speech_rate", {"part": arguments.part, "limits": limits})


if __name__ == "__main__":
    main()
