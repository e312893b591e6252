"""When a window is decoded again: what the temperatures and their thresholds are worth on people's speech.

    python benchmarks/fallback.py ../shared --part dev          # to choose on
    python benchmarks/fallback.py ../shared                     # the reported clips

Clips of all sets with text (`human_clips`), language given, greedy at temperature 0. A clip has a drawn text
if a segment ended at a temperature above 0. Draws have fixed seeds. What fallback writes where nobody
speaks: `files.py invented`. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from human_clips import Clip, clips, spread

from sottovoce import DecodingOptions, FallbackOptions, TranscribeOptions
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import Utterance, score

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

    utterances: list[Utterance] = field(default_factory=list)
    drawn: int = 0
    cpu_s: float = 0.0


def read(model: Model, clip: Clip, rule: FallbackOptions, found: Found) -> None:
    began = time.process_time()
    options = TranscribeOptions(decoding=DecodingOptions(), fallback=rule)
    segments = list(model.transcribe(load_audio(str(clip.file)), language=clip.language, options=options))
    found.cpu_s += time.process_time() - began
    text = "".join(segment.text for segment in segments)
    found.drawn += any((segment.temperature or 0.0) > 0.0 for segment in segments)
    found.utterances.append(Utterance(clip.text or "", text, clip.language))


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("shared", type=Path, help="folder that holds data/manifest.jsonl")
    parser.add_argument("--model", default="base")
    parser.add_argument("--part", choices=["dev", "test"], default="test")
    parser.add_argument("--clips", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model, device="cpu", dtype="float32")
    spoken = clips(given.shared / "data", given.part, with_text=True)
    chosen = spread([clip for clip in spoken if len(clip.languages) == 1], given.clips)
    print(f"| {len(chosen)} clips | errors | clips with a drawn text | processor s |\n|---|---|---|---|")
    figures = {}
    for name, rule in RULES.items():
        found = Found()
        for clip in chosen:
            read(model, clip, rule, found)
        rate = score(found.utterances).overall.mer.rate or 0.0
        print(f"| {name} | {rate:.1%} | {found.drawn} | {found.cpu_s:.0f} |", flush=True)
        figures[name] = {"errors": round(rate, 4), "drawn": found.drawn, "cpu_s": round(found.cpu_s, 1)}
    print(json.dumps({"benchmark": "fallback", "part": given.part, "clips": len(chosen), "rules": figures}))


if __name__ == "__main__":
    main()
