"""How well the networks for voices know a voice again: equal error rates, by seconds of speech.

    python -m benchmarks speakers voices ../shared                # voices that report
    python -m benchmarks speakers voices ../shared --part dev     # voices that choose settings

Stretches of one length are cut out of recordings of people, several of each voice. Pairs of stretches out of
two recordings of one set are compared by the cosine of their vectors: of one voice or of two. The equal
error rate is where as many of the first are taken for two as of the second for one. The time is the
processor's, on one thread, for a second of speech. Prints a table and one JSON line.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.tables import show_json
from benchmarks.speakers.conversations import phrases, voices
from benchmarks.speakers.turns import table
from sottovoce.options.speakers import SpeakerOptions, VoiceName
from sottovoce.speakers.choose import load_voice_encoder
from sottovoce.speakers.networks import Floats
from sottovoce.types import SAMPLE_RATE, Samples

SECONDS = (1.0, 2.0, 4.0)
MOST_CLIPS = 12
Cut = tuple[str, int, Samples]
"""Whose, out of which recording, and the stretch."""


def cut(data: Path, part: Literal["dev", "test"], seconds: float) -> list[Cut]:
    """A stretch from the middle of every recording that has so much speech at a time."""
    size = round(seconds * SAMPLE_RATE)
    found = []
    for name, clips in voices(data, part).items():
        for number, clip in enumerate(clips[:MOST_CLIPS]):
            longest = max((one.samples for one in phrases(name, [clip])), key=len, default=None)
            if longest is not None and len(longest) >= size:
                start = (len(longest) - size) // 2
                found.append((name, number, longest[start : start + size]))
    return found


def scores(cuts: list[Cut], vectors: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Cosines of all pairs out of two recordings of one set, and which are of one voice."""
    same_voice = np.array([[a == b for b, *_ in cuts] for a, *_ in cuts])
    same_set = np.array([[a.split("/")[0] == b.split("/")[0] for b, *_ in cuts] for a, *_ in cuts])
    counts = np.triu(same_set, 1)
    return (vectors @ vectors.T)[counts], same_voice[counts]


def equal_error_rate(cosines: Floats, is_same: npt.NDArray[np.bool_]) -> float:
    """Where misses and false alarms are as many."""
    order = np.argsort(cosines)
    misses = np.cumsum(is_same[order]) / is_same.sum()
    alarms = 1 - np.cumsum(~is_same[order]) / (~is_same).sum()
    at = int(np.argmin(np.abs(misses - alarms)))
    return float((misses[at] + alarms[at]) / 2)


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[dict[str, object]] = []
    for seconds in SECONDS:
        cuts = cut(given.shared / "data", given.part, seconds)
        for name in get_args(VoiceName):
            encoder = load_voice_encoder(SpeakerOptions(voices=name))
            began = time.process_time()
            vectors = encoder.embed([torch.from_numpy(samples) for _, _, samples in cuts])
            took_s = time.process_time() - began
            cosines, is_same = scores(cuts, vectors)
            lines.append(
                {
                    "network": name,
                    "seconds": f"{seconds:g}",
                    "voices": len({who for who, *_ in cuts}),
                    "pairs": len(cosines),
                    "equal_error_rate": equal_error_rate(cosines, is_same),
                    "processor_s_per_s": took_s / (seconds * len(cuts)),
                }
            )
            print(lines[-1], flush=True)
    print(table(lines))
    show_json("speakers voices", {"part": given.part, "lines": lines})
