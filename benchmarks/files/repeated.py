"""What a person says six times: how many of the words are lost, where the clip alone is read as it is.

    python -m benchmarks files repeated ../shared --clips 10
    python -m benchmarks files repeated ../shared --clips 10 --model tiny.en --part dev

Short English clips of people, each six times with pauses (`nasty.repeated`), read with speech detection.
The truth is the text of the clip alone, six times, so that what the model mishears counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.files.nasty import N_REPEATS, repeated
from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import ErrorCounts, ScoredUtterance, count_errors
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import SAMPLE_RATE, Samples

LONGEST_S = 4.5


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="bfloat16")
    add_part(parser)
    parser.add_argument("--clips", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(arguments.model, device="cpu", dtype=arguments.dtype)
    total = ErrorCounts()
    for clip, six_times in short_clips(arguments.shared / "data", arguments.part, arguments.clips):
        truth = " ".join([text(model, load_audio(clip.file))] * N_REPEATS)
        said = text(model, six_times)
        found = count_errors(ScoredUtterance(truth, said, "en")).word
        total += found
        print(f"{clip.name}: {found.deletions} lost, {found.insertions} too many", flush=True)
    n_words = total.hits + total.substitutions + total.deletions
    print(f"{arguments.model}: of {n_words} words {total.deletions} lost, {total.insertions} too many")


def short_clips(data: Path, part: str, n_clips: int) -> Iterator[tuple[Clip, Samples]]:
    """Clips of at most 4.5 s, and what each is six times."""
    english = spread(
        clips(data, "dev" if part == "dev" else "test", language="en", with_text=True), 3 * n_clips
    )
    short = [clip for clip in english if len(load_audio(clip.file)) <= LONGEST_S * SAMPLE_RATE][:n_clips]
    for clip, made in zip(short, repeated(short), strict=True):
        yield clip, made.samples


def text(model: Model, samples: Samples) -> str:
    return model.transcribe(samples, language="en", options=TranscribeOptions(mode="vad")).text
