"""Whether a text that is not the recording's is told apart by how improbable its words are there.

    python -m benchmarks text alignment_doubt ../shared --part dev     # on which `LIKELY` was chosen
    python -m benchmarks text alignment_doubt ../shared                # the reported clips

Clips of people are aligned with their own text, and with that of the next clip of the same language. Prints a
table: how many are doubted, and between which mean probabilities 90 % of the texts lie; and one JSON line.
Those that are told wrongly go to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.alignment.forced import LIKELY
from sottovoce.api import Model, load_model
from sottovoce.errors import OptionError
from sottovoce.options.align import AlignMethod, AlignOptions

METHODS: tuple[AlignMethod, ...] = ("attention", "ctc")


def mean_probability(model: Model, clip: Clip, text: str, method: AlignMethod) -> float | None:
    """Of the words of a text; None where the method cannot align it."""
    options = AlignOptions(method=method)
    try:
        segments = model.align(clip.file, text, language=clip.language, options=options).segments
    except OptionError:
        return None
    return float(np.mean([word.probability for segment in segments for word in segment.words or ()]))


def others(chosen: Sequence[Clip]) -> list[tuple[Clip, str]]:
    """Each clip with the text of the next of its language, where that is another one."""
    found = []
    for clip in chosen:
        alike = [one for one in chosen if one.language == clip.language]
        other = alike[(alike.index(clip) + 1) % len(alike)].text or ""
        if other != clip.text:
            found.append((clip, other))
    return found


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    add_part(parser)
    parser.add_argument("--clips", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(given.model, device="cpu", dtype="float32")
    spoken = clips(given.shared / "data", given.part, with_text=True)
    known = [one for one in spoken if len(one.languages) == 1 and one.language in model.languages]
    chosen = spread(known, given.clips)
    texts = {"its own text": [(clip, clip.text or "") for clip in chosen], "another's text": others(chosen)}
    figures = []
    show_heads("method", "text", "clips", "doubted", "mean probability, 90 % of them")
    for method in METHODS:
        for name, pairs in texts.items():
            made = [mean_probability(model, clip, text, method) for clip, text in pairs]
            found = [one for one in made if one is not None]
            low, high = np.percentile(found, [5, 95])
            doubted = sum(one < LIKELY for one in found)
            for (clip, text), one in zip(pairs, made, strict=True):
                if one is not None and (one < LIKELY) == (text == clip.text):
                    print(f"{method}, {name}: {clip.name} {one:.2f}, '{text}'", file=sys.stderr)
            show_row(method, name, f"{len(found)}", doubted, f"{low:.2f} to {high:.2f}")
            figures.append({"method": method, "text": name, "clips": len(found), "doubted": doubted})
    show_json("text alignment_doubt", {"part": given.part, "rows": figures})
