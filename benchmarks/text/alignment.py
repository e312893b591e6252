"""How near the times of words lie to where people said them: forced alignment, and a transcript's own times.

    python -m benchmarks text alignment ../shared --part dev

Two kinds of recordings with known bounds. `digits`: single spoken digits, trimmed by those who recorded them,
a dozen in a row with pauses of 0.1 to 0.6 s, so that every word has a start and an end. `sentences`: clips of
people (`harness.clips`) joined with pauses into recordings of one to two minutes; the first word of a clip
begins, and its last ends, where its level first and last lies within 35 dB of its loudest 10 ms. Prints
medians, the 90th percentile, and the share of bounds within 100 ms, then one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.harness.clips import PAUSES_S, Part, clips, spread
from benchmarks.harness.report import (
    add_part,
    add_shared,
    benchmark_parser,
    listed,
    show_heads,
    show_json,
    show_row,
)
from sottovoce.api import Model, as_whisper, load_model
from sottovoce.audio.io import load_audio
from sottovoce.options.transcribe import AlignMethod, AlignOptions
from sottovoce.text.normalize import plain
from sottovoce.text.word_edits import equal_words
from sottovoce.types import SAMPLE_RATE, Samples, Transcript, Word

LEVEL_DB = 35.0
SETS = {
    "en": ("librispeech-mini", "commonvoice-en-mini", "kathleen-en"),
    "de": ("kerstin-de",),
    "es": ("dona-es",),
}
IN_A_ROW = 12


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds at which word number `word` of the text begins (or ends)."""

    word: int
    seconds: float
    is_end: bool


class Spoken(NamedTuple):
    """A clip, its words, where they begin and end in it, and the pause behind it."""

    samples: Samples
    words: list[str]
    start_s: float
    end_s: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class Item:
    """A recording, the words said in it, and the bounds that are known."""

    kind: str
    language: str
    samples: Samples
    words: tuple[str, ...]
    bounds: tuple[Bounds, ...]


def recording(kind: str, language: str, said: Iterable[Spoken], lead_s: float = 0.0) -> Item:
    """Clips one after the other, with silence before the first and a pause behind each."""
    words: list[str] = []
    pieces, bounds, n_done = [_silence(lead_s)], [], int(lead_s * SAMPLE_RATE)
    for item in said:
        at = n_done / SAMPLE_RATE
        bounds.append(Bounds(len(words), at + item.start_s, False))
        words += item.words
        bounds.append(Bounds(len(words) - 1, at + item.end_s, True))
        pieces += [item.samples, _silence(item.pause_s)]
        n_done += len(item.samples) + len(pieces[-1])
    return Item(kind, language, np.concatenate(pieces), tuple(words), tuple(bounds))


def digits(data: Path, part: str, n_items: int) -> Iterator[Item]:
    """Rows of digits, of all speakers in turn; those of even number in the manifest are `dev`."""
    rows = [json.loads(line) for line in (data / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    every = [row for row in rows if row["id"].startswith("fsdd-en/")]
    result = every[1::2] if part == "test" else every[::2]
    order = np.random.default_rng(0).permutation(len(result))
    rng = np.random.default_rng(1)
    for number in range(min(n_items, len(result) // IN_A_ROW)):
        said = []
        for row in (result[i] for i in order[number * IN_A_ROW : (number + 1) * IN_A_ROW]):
            samples = load_audio(data / row["file"])
            length_s, pause_s = len(samples) / SAMPLE_RATE, float(rng.uniform(0.1, 0.6))
            said.append(Spoken(samples, [row["text"]], 0.0, length_s, pause_s))
        yield recording("digits", "en", said, lead_s=0.5)


def sentences(data: Path, part: Part, language: str, n_clips: int) -> Iterator[Item]:
    every = clips(data, part, sets=SETS[language], language=language, with_text=True)
    chosen = spread(every, n_clips)
    for first in range(0, len(chosen), IN_A_ROW):
        said = []
        for index, clip in enumerate(chosen[first : first + IN_A_ROW]):
            samples = load_audio(clip.file)
            pause_s = PAUSES_S[index % len(PAUSES_S)]
            said.append(Spoken(samples, (clip.text or "").split(), *_extent(samples), pause_s))
        yield recording(f"sentences {language}", language, said)


def _silence(seconds: float) -> Samples:
    return np.zeros(int(seconds * SAMPLE_RATE), np.float32)


def _extent(samples: Samples) -> tuple[float, float]:
    """Where a clip begins and ends to be loud, in seconds."""
    n = len(samples) // 160
    level = np.sqrt(np.mean(samples[: n * 160].reshape(n, 160) ** 2, axis=1))
    loud = np.flatnonzero(level > level.max() * 10 ** (-LEVEL_DB / 20))
    return loud[0] / 100, (loud[-1] + 1) / 100


def errors(item: Item, words: Sequence[Word]) -> list[tuple[float, bool]]:
    """Seconds from each known bound to that of the words, later is above 0; and whether it is an end."""
    heard = [(word, key) for word in words if (key := plain(word.word).replace(" ", ""))]
    keys = [plain(word).replace(" ", "") for word in item.words]
    pairs = equal_words(keys, [key for _, key in heard])
    result = []
    for bound in item.bounds:
        pair = pairs[bound.word]
        if pair is not None:
            word = heard[pair][0]
            result.append(((word.end if bound.is_end else word.start) - bound.seconds, bound.is_end))
    return result


def words_of(transcript: Transcript) -> list[Word]:
    return [word for segment in transcript.segments for word in segment.words or ()]


def measure(model: Model, items: Sequence[Item]) -> dict[str, dict[str, list[tuple[float, bool]]]]:
    result: dict[str, dict[str, list[tuple[float, bool]]]] = {}
    for number, item in enumerate(items, 1):
        print(f"\r{number} of {len(items)}", end="", file=sys.stderr, flush=True)
        for name, words in _all_times(model, item):
            result.setdefault(name, {}).setdefault(item.kind, []).extend(errors(item, words))
    return result


def _all_times(model: Model, item: Item) -> Iterator[tuple[str, list[Word]]]:
    text = [" ".join(item.words)]
    if item.kind != "digits":  # they are written as figures, which are not the words of the text
        transcript = model.transcribe(item.samples, language=item.language, word_timestamps=True).collect()
        yield "transcript", words_of(transcript)
        yield "transcript, refined", words_of(model.align(item.samples, transcript))
    methods: tuple[AlignMethod, ...] = ("attention",) if model.ctc_head is None else ("attention", "ctc")
    for method in methods:
        for is_kept in (False, True):
            options = AlignOptions(method=method, keep_to_speech=is_kept)
            result = model.align(item.samples, text, language=item.language, options=options)
            yield method + ("" if is_kept else ", not kept to speech"), words_of(result)


def show(result: dict[str, dict[str, list[tuple[float, bool]]]], seconds: float, cpu_s: float) -> None:
    show_heads(
        "times", "recordings", "bounds", "start, median", "end, median", "90 % within", "within 100 ms"
    )

    figures = {}
    for name, kinds in result.items():
        for kind, item in kinds.items():
            starts = np.array([abs(error) for error, is_end in item if not is_end])
            ends = np.array([abs(error) for error, is_end in item if is_end])
            both = np.concatenate([starts, ends])
            figure = [np.median(starts), np.median(ends), np.quantile(both, 0.9)]
            near = float(np.mean(both <= 0.1))
            reported = " | ".join(f"{1000 * value:.0f} ms" for value in figure)
            show_row(name, kind, f"{len(item)}", reported, f"{near:.0%}")
            figures[f"{name}, {kind}"] = [round(float(value), 3) for value in (*figure, near)]
    show_json("text alignment", {"audio_s": round(seconds), "cpu_s": round(cpu_s), "figures": figures})


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    add_part(parser, "dev")
    parser.add_argument("--digits", type=int, default=10, help="rows of a dozen digits")
    parser.add_argument("--clips", type=int, default=24, help="of each language")
    parser.add_argument("--languages", type=listed(), default=[*SETS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = arguments.shared / "data"
    model = as_whisper(load_model(arguments.model, dtype="float32"), "alignment")
    items = [*digits(data, arguments.part, arguments.digits)]
    for language in arguments.languages:
        items += sentences(data, arguments.part, language, arguments.clips)
    began = time.process_time()
    result = measure(model, items)
    show(result, sum(len(item.samples) for item in items) / SAMPLE_RATE, time.process_time() - began)
