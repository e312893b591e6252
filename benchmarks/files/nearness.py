"""How near is a faster number format or runtime to float32, in languages and word times?

    python -m benchmarks files nearness ../shared --clips 300 --log nearness.jsonl   # goes on from its log
    python -m benchmarks files nearness ../shared --sides native,bfloat16,int8 --clips 60

Clips of people that report (`harness.clips`), evenly from every set. Each is heard once, as a window of 30 s:
its language is found among all, and where its text is known the words of that text are timed, the same text
on every side, so that no difference in what is read counts. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.harness.arguments import add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.log import add_row, read_rows
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.decoding.detect import detect_language
from sottovoce.decoding.word_alignment import WindowText, align_windows
from sottovoce.types import SAMPLE_RATE

REFERENCE = "float32"
NATIVE = "native"
WINDOW_S, WINDOW_FRAMES = 30, 3000
TOLERANCE_S = 0.04


@dataclass(frozen=True, slots=True)
class Heard:
    """What a side makes of a clip. times: starts and ends of its words in seconds, none without a text."""

    side: str
    clip: str
    language: str
    times: list[float]


def load_side(side: str, name: str) -> Model:
    """The model of a side: the native decoder, or PyTorch with a dtype."""
    if side == NATIVE:
        return load_model(name, device="cpu", backend=NATIVE)
    return load_model(name, device="cpu", dtype=side, backend="torch")


@torch.inference_mode()
def hear(model: Model, side: str, clip: Clip) -> Heard:
    """Find the language of a clip's first 30 s, and the times of the words that are said."""
    samples = load_audio(clip.file)[: WINDOW_S * SAMPLE_RATE]
    mel = log_mel(samples, model.backend.dims.n_mels)
    encoded = model.backend.encode(window_features([mel], WINDOW_FRAMES))
    found = detect_language(model.backend, model.tokenizer, encoded)[0]
    if not clip.text or clip.language not in model.languages:
        return Heard(side, clip.name, found.language, [])
    tokenizer = model.tokenizer.with_language(clip.language)
    text = WindowText(tokenizer, tuple(tokenizer.encode(" " + clip.text)), mel.shape[1])
    words = align_windows(model.backend, encoded, [text])[0]
    times = [time for word in words for time in (word.start, word.end)]
    return Heard(side, clip.name, found.language, times)


def show(heard: dict[tuple[str, str], Heard], sides: Sequence[str]) -> None:
    """A row for each side beside float32, on the clips that both heard."""
    show_heads("side", "clips", "same language", "words' edges", "within 40 ms", "mean difference", "largest")
    figures = {}
    for side in sides:
        pairs = [
            (one, heard[REFERENCE, clip])
            for (of, clip), one in heard.items()
            if of == side and (REFERENCE, clip) in heard
        ]
        same = sum(one.language == other.language for one, other in pairs)
        apart_s = [
            abs(a - b) for one, other in pairs for a, b in zip(one.times, other.times, strict=True)
        ] or [0.0]
        within = sum(one <= TOLERANCE_S + 1e-6 for one in apart_s) / len(apart_s)
        mean_s, largest_s = statistics.fmean(apart_s), max(apart_s)
        shown = f"{same} ({same / len(pairs):.1%})" if pairs else "none"
        show_row(
            side, len(pairs), shown, len(apart_s), f"{within:.1%}", f"{mean_s:.3f} s", f"{largest_s:.2f} s"
        )
        figures[side] = {
            "clips": len(pairs),
            "same": same,
            "within": round(within, 4),
            "mean_s": round(mean_s, 4),
        }
    show_json("files nearness", figures)


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=[NATIVE])
    parser.add_argument("--clips", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--log", type=Path, help="what was heard so far: a file of JSON lines that is added to"
    )
    arguments: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models = {side: load_side(side, arguments.model) for side in (REFERENCE, *arguments.sides)}
    rows = [Heard(**row) for row in read_rows(arguments.log)]
    heard = {(row.side, row.clip): row for row in rows}
    chosen = spread(clips(arguments.shared / "data", "test"), arguments.clips)
    for number, clip in enumerate(chosen, 1):
        for side, model in models.items():
            if (side, clip.name) not in heard:
                heard[side, clip.name] = found = hear(model, side, clip)
                add_row(arguments.log, asdict(found))
        print(f"\r{number} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    names = {clip.name for clip in chosen}
    show({key: one for key, one in heard.items() if key[1] in names}, arguments.sides)
