"""When a window is decoded again: what the temperatures and their thresholds are worth on people's speech.

    python -m benchmarks files fallback ../shared --part dev          # to choose on
    python -m benchmarks files fallback ../shared                     # the reported clips

Clips of all sets with text (`harness.clips`), language given, greedy at temperature 0. A clip has a drawn
text if a segment ended at a temperature above 0. Draws have fixed seeds. What fallback writes where nobody
speaks: `files beside invented`. Prints a table and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce import DecodingOptions, FallbackOptions, TranscribeOptions
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import ScoredUtterance, score

RULES: Mapping[str, FallbackOptions] = MappingProxyType(
    {
        "never again": FallbackOptions(temperatures=(0.0,)),
        "as it is": FallbackOptions(),
        "two temperatures": FallbackOptions(temperatures=(0.0, 0.4)),
        "log-probability below -0.7": FallbackOptions(logprob_threshold=-0.7),
        "log-probability below -1.5": FallbackOptions(logprob_threshold=-1.5),
        "compression above 2.0": FallbackOptions(compression_ratio_threshold=2.0),
        "compression above 2.8": FallbackOptions(compression_ratio_threshold=2.8),
    }
)


@dataclass(slots=True)
class Found:
    """What one rule makes of the clips. drawn: clips with a text that was drawn."""

    utterances: list[ScoredUtterance] = field(default_factory=list)
    drawn: int = 0
    cpu_s: float = 0.0


def read(model: Model, clip: Clip, rule: FallbackOptions, found: Found) -> None:
    began = time.process_time()
    options = TranscribeOptions(decoding=DecodingOptions(), fallback=rule)
    segments = list(model.transcribe(load_audio(str(clip.file)), language=clip.language, options=options))
    found.cpu_s += time.process_time() - began
    text = "".join(segment.text for segment in segments)
    found.drawn += any((segment.temperature or 0.0) > 0.0 for segment in segments)
    found.utterances.append(ScoredUtterance(clip.text or "", text, clip.language))


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    add_part(parser)
    parser.add_argument("--clips", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model, device="cpu", dtype="float32")
    spoken = clips(given.shared / "data", given.part, with_text=True)
    chosen = spread([clip for clip in spoken if len(clip.languages) == 1], given.clips)
    show_heads(f"{len(chosen)} clips", "errors", "clips with a drawn text", "processor s")
    figures = {}
    for name, rule in RULES.items():
        found = Found()
        for clip in chosen:
            read(model, clip, rule, found)
        rate = score(found.utterances).overall.mer.rate or 0.0
        show_row(name, f"{rate:.1%}", found.drawn, f"{found.cpu_s:.0f}")
        figures[name] = {"errors": round(rate, 4), "drawn": found.drawn, "cpu_s": round(found.cpu_s, 1)}
    show_json("files fallback", {"part": given.part, "clips": len(chosen), "rules": figures})
