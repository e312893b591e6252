"""Recordings in several languages beside faster-whisper, from any manifest; by default the bundled one.

    pip install '.[eval]' ./kernels faster-whisper
    python -m benchmarks language duel
    python -m benchmarks language duel my/manifest.jsonl --recordings 20

Clips of one language with a known text are drawn with a seed and joined, three to five a recording, with half
a second of silence between them; neighbours differ in language. Both programs have Whisper `base`, a beam of
5, one thread and no language; sottovoce also has a list of the languages. The rate counts words, and
characters of scripts without spaces. Processor seconds leave out loading.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.report import benchmark_parser, show_json
from benchmarks.language.systems import systems
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.manifest import ManifestEntry, read_manifest
from sottovoce.evaluation.scores import ScoredUtterance, ScoreOptions, score
from sottovoce.types import SAMPLE_RATE, Samples

BUNDLED = Path(__file__).parents[2] / "examples" / "speech" / "manifest.jsonl"
SYSTEMS = {
    "sottovoce, no language": "auto untimed",
    "sottovoce, list of languages": "list untimed",
    "faster-whisper, multilingual=True": "faster-whisper",
}
PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Joined:
    clips: tuple[ManifestEntry, ...]

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(clip.languages[0] for clip in self.clips))

    @property
    def text(self) -> str:
        return " ".join(clip.text for clip in self.clips)

    def audio(self) -> Samples:
        pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.float32)
        return np.concatenate(
            list(chain.from_iterable((load_audio(item.path), pause) for item in self.clips))
        )


def joined(entries: Sequence[ManifestEntry], n_recordings: int) -> list[Joined]:
    """Draw recordings; neighbours differ in language, and no clip comes twice in a recording."""
    rng = random.Random("duel")
    result: list[Joined] = []
    while len(result) < n_recordings:
        chosen: list[ManifestEntry] = []
        for clip in rng.sample(entries, len(entries)):
            if not chosen or clip.languages != chosen[-1].languages:
                chosen.append(clip)
        result.append(Joined(tuple(chosen[: rng.randint(3, 5)])))
    return result


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("manifest", type=Path, nargs="?", default=BUNDLED)
    parser.add_argument("--recordings", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    entries = [item for item in read_manifest(given.manifest) if item.text and len(item.languages) == 1]
    recordings = joined(entries, given.recordings)
    seconds = sum(len(item.audio()) for item in recordings) / SAMPLE_RATE
    print(f"{len(recordings)} recordings, {seconds:.0f} s, of {len(entries)} clips")
    rows = []
    for name, system in SYSTEMS.items():
        read = systems()[system]()
        created = [read(item, item.audio()) for item in recordings]
        pairs = zip(recordings, created, strict=True)
        scored = [ScoredUtterance(item.text, outcome.text, item.languages) for item, outcome in pairs]
        rate = score(scored, ScoreOptions()).overall.mer
        row = {
            "system": name,
            "wrong %": round(100 * (rate.rate or 0.0), 1),
            "low": round(100 * (rate.low or 0.0), 1),
            "high": round(100 * (rate.high or 0.0), 1),
            "cpu s": round(sum(outcome.cpu_s for outcome in created), 1),
        }
        rows.append(row)
        print(" | ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    show_json("language duel", {"rows": rows})


if __name__ == "__main__":
    main()
