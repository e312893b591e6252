"""Speech in noise: what Whisper still hears, and whether cleaning the sound first helps it.

    python -m benchmarks files noise ../shared --part dev --filter afftdn      # to choose on
    python -m benchmarks files noise ../shared                                 # the reported clips

Clips of people with the noises of a manifest (animals, water, dishes, white noise) at ratios of speech to
noise in dB, both by the root mean square of the whole clip; every second noise chooses, the others report.
Language given, float32, beam 5. Each sound as it is and through each filter; intervals are resampled over
clips, 95 %. Prints a table and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.sounds import sounds
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce import DecodingOptions, TranscribeOptions
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.cli.measures import mixed_with
from sottovoce.evaluation.wer import ScoredUtterance, score
from sottovoce.types import Samples

FILTERS = ("afftdn=nt=w:tn=1", "highpass=f=100", "speechnorm")
RATIOS_DB = (20.0, 10.0, 5.0, 0.0)
LOUDEST = 0.95
AS_IT_IS = "as it is"


@dataclass(slots=True)
class Found:
    """What is heard at one ratio through one filter."""

    utterances: list[ScoredUtterance] = field(default_factory=list)
    cpu_s: float = 0.0


def in_noise(speech: Samples, noise: Samples, ratio_db: float) -> Samples:
    """Speech (n,) with noise so many dB below it; softer where it would clip."""
    mixed = mixed_with(speech, noise, ratio_db)
    return mixed * np.float32(min(1.0, LOUDEST / np.abs(mixed).max()))


def read(model: Model, clip: Clip, sound: Samples, audio_filter: str | None, found: Found) -> None:
    options = TranscribeOptions(decoding=DecodingOptions(beam_size=5), audio_filter=audio_filter)
    began = time.process_time()
    text = model.transcribe(sound, language=clip.language, options=options).text
    found.cpu_s += time.process_time() - began
    found.utterances.append(ScoredUtterance(clip.text or "", text, clip.language))


def measure(
    model: Model, chosen: Sequence[Clip], noises: Sequence[Samples], filters: Sequence[str | None]
) -> dict[tuple[float | None, str | None], Found]:
    """By ratio (None: no noise is added) and filter."""
    found = {(ratio, one): Found() for ratio in (None, *RATIOS_DB) for one in filters}
    for number, clip in enumerate(chosen):
        speech = load_audio(clip.file)
        for ratio in (None, *RATIOS_DB):
            sound = speech if ratio is None else in_noise(speech, noises[number % len(noises)], ratio)
            for one in filters:
                read(model, clip, sound, one, found[ratio, one])
    return found


def cell(found: Found) -> str:
    rate = score(found.utterances).overall.mer
    return f"{rate.rate or 0:.1%} ({100 * (rate.low or 0):.0f}–{100 * (rate.high or 0):.0f})"


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    add_part(parser)
    parser.add_argument("--clips", type=int, default=60)
    parser.add_argument("--filter", action="append", help=f"one or more; {', '.join(FILTERS)}")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model, device="cpu", dtype="float32")
    data = given.shared / "data"
    spoken = [one for one in clips(data, given.part, with_text=True) if len(one.languages) == 1]
    chosen = spread([one for one in spoken if one.language in model.languages], given.clips)
    recorded = [sound.samples for sound in sounds(data) if sound.kind == "recorded noise"]
    noises = recorded[0 if given.part == "dev" else 1 :: 2]
    filters = [None, *(given.filter or FILTERS)]
    found = measure(model, chosen, noises, filters)
    ratios = ["no noise", *(f"{ratio:g} dB" for ratio in RATIOS_DB)]
    show_heads(f"{len(chosen)} clips, {len(noises)} noises", *ratios, "processor s")

    for one in filters:
        row = [found[ratio, one] for ratio in (None, *RATIOS_DB)]
        spent = sum(each.cpu_s for each in row)
        shown = AS_IT_IS if one is None else f"`{one}`"
        show_row(shown, *map(cell, row), f"{spent:.0f}")
    rates = {
        one or AS_IT_IS: {
            name: round(score(found[ratio, one].utterances).overall.mer.rate or 0.0, 4)
            for name, ratio in zip(ratios, (None, *RATIOS_DB), strict=True)
        }
        for one in filters
    }
    show_json("files noise", {"part": given.part, "errors": rates})
