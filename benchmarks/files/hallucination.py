"""Words that nobody said, on nasty recordings, and words that were said and are not written.

    python -m benchmarks files hallucination ../shared --log nasty.jsonl
    python -m benchmarks files hallucination ../shared --log nasty-tiny.jsonl --model tiny.en

Programs: `harness.programs`, each in a process of its own greedy, with its own defaults and English given.
What they read: sounds without speech (`harness.sounds`, and music), and clips of people that chose
no setting, with silence around them, repeated, broken off, and as they are. Without speech every word is
invented. With speech, invented is what an alignment with the text inserts; dropped is what it deletes, but
for clips that break off. Prints words a minute of non-speech, words of a hundred said, and one JSON line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.files.beside import Item, read_all, texts_of
from benchmarks.harness.clips import clips, spread
from benchmarks.harness.programs import BUILDERS
from benchmarks.harness.report import (
    Log,
    add_shared,
    benchmark_parser,
    listed,
    show_heads,
    show_json,
    show_row,
)
from benchmarks.harness.sounds import SILENCE_S, around_speech, cut_off, music, n_units, repeated, sounds
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.scores import ErrorCounts, ScoredUtterance, count_errors
from sottovoce.types import SAMPLE_RATE

ENGINES = (
    *("ours bfloat16 bare", "ours bfloat16", "ours bfloat16 vad", "openai-whisper float32"),
    *("faster-whisper int8", "faster-whisper int8 vad", "whisper.cpp q8_0"),
)
PLAIN = "as they are"


def items_of(arguments: argparse.Namespace) -> dict[str, list[Item]]:
    """Recordings by kind; the truth of those without speech is empty."""
    data = arguments.shared / "data"
    result = spread(clips(data, "test", language="en", with_text=True), arguments.clips)
    short = [clip for clip in result if len(load_audio(clip.file)) <= 4.5 * SAMPLE_RATE]
    kinds: dict[str, list[Item]] = {}
    for sound in [*music(), *sounds(data)]:
        kinds.setdefault(sound.kind, []).append(Item(sound.name, sound.samples, "en", ""))
    hard = [
        *around_speech(result[: arguments.nasty]),
        *repeated(short[: arguments.nasty]),
        *cut_off(result[: arguments.nasty]),
    ]
    for item in hard:
        kinds.setdefault(item.kind, []).append(Item(item.name, item.samples, "en", item.text))
    kinds[PLAIN] = [Item(clip.name, load_audio(clip.file), "en", clip.text or "") for clip in result]
    return kinds


def counted(items: Sequence[Item], texts: Sequence[str]) -> ErrorCounts:
    total = ErrorCounts()
    for item, text in zip(items, texts, strict=True):
        total += count_errors(ScoredUtterance(item.truth, text, item.language)).word
    return total


def cell(kind: str, items: Sequence[Item], texts: Sequence[str]) -> tuple[str, dict[str, float]]:
    if not items[0].truth:
        rate = n_units(texts) / (sum(len(item.samples) for item in items) / SAMPLE_RATE / 60)
        return f"{rate:.1f}", {"invented_a_minute": round(rate, 2)}
    counts = counted(items, texts)
    dropped = counts.deletions / counts.n_reference
    if kind.startswith("silence"):
        rate = counts.insertions / (len(items) * SILENCE_S / 60)
        figures = {"invented_a_minute": round(rate, 2), "dropped": round(dropped, 4)}
        return f"{rate:.1f}, {dropped:.1%}", figures
    more = counts.insertions / counts.n_reference
    if kind == "cut off":
        return f"{more:.1%}", {"invented": round(more, 4)}
    return f"{more:.1%}, {dropped:.1%}", {"invented": round(more, 4), "dropped": round(dropped, 4)}


def show(kinds: dict[str, list[Item]], arguments: argparse.Namespace, log: Log) -> None:
    show_heads("program", *(f"{kind} ({len(items)})" for kind, items in kinds.items()))

    figures: dict[str, dict[str, dict[str, float]]] = {}
    for engine in arguments.engines:
        cells, figures[engine] = [], {}
        for kind, items in kinds.items():
            texts = texts_of(log, engine, 1, items)
            reported, figure = ("", {}) if texts is None else cell(kind, items, texts)
            cells.append(reported)
            figures[engine][kind] = figure
        show_row(engine, *cells)
    show_json("files hallucination", {"model": arguments.model, "engines": figures})


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--engines", type=listed(), default=[*ENGINES], help=", ".join(BUILDERS))
    parser.add_argument("--log", type=Path, help="readings so far: a file of JSON lines that is added to")
    parser.add_argument("--clips", type=int, default=24, help="of people, as they are")
    parser.add_argument("--nasty", type=int, default=4, help="of these, with something hard about them")
    arguments = parser.parse_args()
    kinds = items_of(arguments)
    log = Log(arguments.log)
    every = [item for items in kinds.values() for item in items]
    read_all(every, log, arguments.engines, [1], arguments.model)
    show(kinds, arguments, log)
