"""Errors in recordings in which sentences are said again, with and without the rule for repeated text.

    python -m benchmarks files said_again ../shared/data --fit --log again.jsonl   # chooses the number
    python -m benchmarks files said_again ../shared/data --log again.jsonl

Clips of people joined to recordings of at most 100 s: each sentence once; half of them two or three times in
a row; or two in five again after one to seven others. In every second recording what is said again is up to
3 % faster or slower, and softer. Greedy, the language detected. `--fit` varies
`offline.transcriber.LEAST_REPEATED_TOKENS` on development clips: fewest errors in what is said again, with no
more than without the rule ("never") in what is said once; of equal ones, the highest number. `--seed`: other
orders of the clips. Prints words wrong, words said and processor seconds by kind, and one JSON line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.files.beside import Item
from benchmarks.harness.clips import PAUSES_S, Clip, Part, clips
from benchmarks.harness.report import Log, add_part, benchmark_parser, show_heads, show_json, show_row
from sottovoce.api import load_model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.scores import ErrorCounts, ScoredUtterance, count_errors
from sottovoce.offline import transcriber
from sottovoce.recogniser import Recogniser
from sottovoce.types import SAMPLE_RATE, Samples

KINDS = {"once": 1, "in a row": 2, "later": 2}
"""Recordings of each kind and language."""
LANGUAGES = ("de", "en", "es", "pl")
LONGEST_S = 100.0
LEAST_TOKENS = (4, 8, 16)
NEVER = math.inf


def in_order(kind: str, chosen: Sequence[Clip], rng: np.random.Generator) -> Iterator[Clip]:
    said: list[Clip] = []
    for clip in chosen:
        n_times = 1 + int(rng.integers(1, 3)) if kind == "in a row" and rng.random() < 0.5 else 1
        said += [clip] * n_times
        yield from [clip] * n_times
        if kind == "later" and len(said) > 3 and rng.random() < 0.4:
            said.append(said[-int(rng.integers(2, min(len(said), 8) + 1))])
            yield said[-1]


def varied(samples: Samples, rng: np.random.Generator) -> Samples:
    at = np.arange(0, len(samples) - 1, 1 + rng.uniform(-0.03, 0.03))
    gain = np.float32(rng.uniform(0.7, 1.0))
    return gain * np.interp(at, np.arange(len(samples)), samples).astype(np.float32)


def recording(name: str, said: Iterator[Clip], rng: np.random.Generator, *, is_varied: bool) -> Item:
    pieces, texts, left = list[Samples](), list[str](), int(LONGEST_S * SAMPLE_RATE)
    for index, clip in enumerate(said):
        samples = load_audio(clip.file)
        if is_varied and clip.text in texts:
            samples = varied(samples, rng)
        pause = np.zeros(int(PAUSES_S[index % len(PAUSES_S)] * SAMPLE_RATE), np.float32)
        left -= len(samples) + len(pause)
        if left < 0:
            break
        pieces += [samples, pause]
        texts.append(clip.text or "")
    return Item(name, np.concatenate(pieces), clip.language, " ".join(texts))


def recordings(data: Path, part: Part, seed: int = 0) -> dict[str, list[Item]]:
    rng = np.random.default_rng(len(part) + seed)
    items: dict[str, list[Item]] = {kind: [] for kind in KINDS}
    for language in LANGUAGES:
        spoken = clips(data, part, language=language, with_text=True)
        usable = [clip for clip in spoken if 4 <= len((clip.text or "").split()) <= 25]
        for kind, n_recordings in KINDS.items():
            for index in range(n_recordings):
                said = in_order(kind, [usable[at] for at in rng.permutation(len(usable))], rng)
                name = f"{part} {seed} {kind} {language} {index}"
                items[kind].append(recording(name, said, rng, is_varied=index % 2 == 1))
    return items


def read(model: Recogniser, item: Item, least: float) -> dict[str, Any]:
    began = time.process_time()
    with patch.object(transcriber, "LEAST_REPEATED_TOKENS", least):
        text = model.transcribe(item.samples).collect().text
    return {"text": text, "cpu_s": time.process_time() - began}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path, help="folder that holds manifest.jsonl")
    add_part(parser)
    parser.add_argument("--fit", action="store_true", help="choose the number on development clips")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="base")
    parser.add_argument("--log", type=Path, help="readings so far: a file of JSON lines that is added to")
    arguments = parser.parse_args()
    part: Part = "dev" if arguments.fit else arguments.part
    kinds = recordings(arguments.data, part, arguments.seed)
    log, model = Log(arguments.log), load_model(arguments.model)
    figures: dict[float, dict[str, int]] = {}
    show_heads("least tokens", *kinds)
    for least in (NEVER, *(LEAST_TOKENS if arguments.fit else (transcriber.LEAST_REPEATED_TOKENS,))):
        way = "never" if least == NEVER else str(least)
        cells, figures[least] = [way], {}
        for kind, items in kinds.items():
            counts, cpu_s = ErrorCounts(), 0.0
            for item in items:
                value = log.get(way, item.name)
                if value is None:
                    value = read(model, item, least)
                    log.add(way, item.name, value)
                counts += count_errors(ScoredUtterance(item.truth, value["text"], item.language)).word
                cpu_s += value["cpu_s"]
            cells.append(f"{counts.n_errors} of {counts.n_reference}, {cpu_s:.0f} s")
            figures[least][kind] = counts.n_errors
        show_row(*cells)
    never = figures.pop(NEVER)
    harmless = [least for least, errors in figures.items() if errors["once"] <= never["once"]]
    best = min(
        harmless,
        key=lambda least: (figures[least]["in a row"] + figures[least]["later"], -least),
        default=None,
    )
    show_json("files said_again", {"part": part, "best": best, "never": never, "errors": figures})


if __name__ == "__main__":
    main()
