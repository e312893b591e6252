"""Errors, speed, memory and invented words on files, beside the other programs: same weights, same audio.

    python -m benchmarks files beside errors ../shared --log errors.jsonl  # hours: every program on 140 clips
    python -m benchmarks files beside invented ../shared --log invented.jsonl
    python -m benchmarks files beside speed ../shared  # on a machine that does nothing else

Programs and weights: `harness.programs`; each lives in a process of its own, with its own defaults, the
language given, one thread. Recordings are people's (`harness.clips`, those that report). `errors` and
`invented` run one program after the other, as no figure depends on time, and go on where --log ends;
`speed` has them all read one recording in turns, so that a noisy machine disturbs all alike, and counts the
process's own time. Prints Markdown tables and one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness.clips import UNSPACED, clips, joined, spread
from benchmarks.harness.programs import BUILDERS, Weights
from benchmarks.harness.report import (
    Log,
    add_shared,
    apart,
    benchmark_parser,
    listed,
    show_heads,
    show_json,
    show_row,
)
from benchmarks.harness.sounds import n_units, sounds
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.scores import ScoredUtterance, compare, score
from sottovoce.evaluation.speed import forget_peak, peak_bytes
from sottovoce.models.load import load_checkpoint
from sottovoce.types import SAMPLE_RATE, Samples

BEAM_SIZES = (1, 5)
INVENTING_BEAM = 5
LANGUAGES = ("en", "de", "es", "pl", "fr", "it", "ja", "ko", "pt", "ru", "zh")
"""Hindi is left out: base repeats itself there on every program, and what counts is chance."""
REFERENCE = "openai-whisper float32"
SPEECH_ENGINES = tuple(name for name in BUILDERS if not name.endswith(" vad"))
OWN_COLUMN = 10
"""Clips of a language that has a column of its own."""


class Item(NamedTuple):
    """A recording to read: a clip with its truth, or a sound with its kind for a truth."""

    name: str
    samples: Samples
    language: str
    truth: str


def mode(beam_size: int) -> str:
    return "greedy" if beam_size == 1 else f"beam {beam_size}"


def texts_of(log: Log, engine: str, beam_size: int, items: Sequence[Item]) -> list[str] | None:
    """Texts of the items, None unless all were read."""
    result = [log.get(f"{engine}, {mode(beam_size)}", item.name) for item in items]
    texts = [entry["text"] for entry in result if entry is not None]
    return texts if len(texts) == len(items) else None


class Process:
    def __init__(self, engine: str, model: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.engine = engine
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(engine, model, threads, other), daemon=True)
        self._process.start()

    def read(self, item: Item, beam_size: int) -> dict[str, Any]:
        """Its text, and the process's own time."""
        self._pipe.send((item, beam_size))
        text, cpu_s = self._pipe.recv()
        return {"text": text, "cpu_s": cpu_s}

    def stop(self) -> float:
        """End the process; returns its peak resident memory in MB."""
        self._pipe.send(None)
        peak = float(self._pipe.recv())
        self._process.join()
        return peak


def _serve(engine: str, model: str, threads: int, pipe: Connection) -> None:
    torch.set_num_threads(threads)
    checkpoint = load_checkpoint(model)
    with tempfile.TemporaryDirectory() as folder:
        read = BUILDERS[engine](Weights(checkpoint, Path(folder), threads))
        del checkpoint
        gc.collect()
        forget_peak()  # converting the weights for a program is not its cost
        while (request := pipe.recv()) is not None:
            item, beam_size = request
            torch.manual_seed(0)
            began = time.process_time()
            text = read(item.samples, item.language, beam_size)
            pipe.send((text, time.process_time() - began))
    pipe.send((peak_bytes() or 0) / 2**20)


def read_all(
    items: Sequence[Item], log: Log, engines: Sequence[str], beam_sizes: Sequence[int], model: str
) -> None:
    """Every program reads the items that the log lacks, one program after the other."""
    for engine in engines:
        request = [
            (item, beam_size)
            for beam_size in beam_sizes
            for item in items
            if log.get(f"{engine}, {mode(beam_size)}", item.name) is None
        ]
        if not request:
            continue
        process = Process(engine, model, threads=1)
        for number, (item, beam_size) in enumerate(request, 1):
            log.add(f"{engine}, {mode(beam_size)}", item.name, process.read(item, beam_size))
            print(f"\r{engine}: {number} of {len(request)}", end="", file=sys.stderr, flush=True)
        process.stop()
        print(file=sys.stderr)


def spoken(data: Path, per_language: int) -> list[Item]:
    """Clips with their text, at most so many of each language."""
    return [
        Item(clip.name, load_audio(clip.file), language, clip.text or "")
        for language in LANGUAGES
        for clip in spread(clips(data, "test", language=language, with_text=True), per_language)
    ]


def show_errors(items: Sequence[Item], arguments: argparse.Namespace, log: Log) -> None:
    """A row for each program and beam: rates by language, and how far from the reference's."""
    languages = {item.language for item in items}
    large = [entry for entry in LANGUAGES if sum(item.language == entry for item in items) >= OWN_COLUMN]
    groups: dict[str, tuple[str, ...]] = {entry: (entry,) for entry in large}
    if others := tuple(sorted({*languages} - {*large})):
        groups["others"] = others
    counts = [sum(item.language in codes for item in items) for codes in groups.values()]
    heads = [f"{name} ({count})" for name, count in zip(groups, counts, strict=True)]
    show_heads("program", *heads, "all", f"beside {arguments.reference}, 95 %")

    figures = {}
    for beam_size in BEAM_SIZES:
        baseline = _utterances(arguments.reference, beam_size, items, log)
        for engine in arguments.engines:
            result = _utterances(engine, beam_size, items, log)
            if result is None:
                continue
            rates = [_rate([u for u in result if u.language in codes]) for codes in groups.values()]
            rates.append(_rate(result))
            others_too = ""
            if baseline is not None and engine != arguments.reference:
                others_too = apart(compare(baseline, result))
            name = f"{engine}, {mode(beam_size)}"
            show_row(name, *(f"{rate:.1%}" for rate in rates), others_too)
            figures[name] = dict(zip([*groups, "all"], (round(rate, 4) for rate in rates), strict=True))
    show_json("files beside errors", {"clips": len(items), "engines": figures})


def _utterances(engine: str, beam_size: int, items: Sequence[Item], log: Log) -> list[ScoredUtterance] | None:
    texts = texts_of(log, engine, beam_size, items)
    if texts is None:
        return None
    return [ScoredUtterance(item.truth, text, item.language) for item, text in zip(items, texts, strict=True)]


def _rate(result: Sequence[ScoredUtterance]) -> float:
    """Of words; of characters beside scripts without spaces."""
    rates = score(result).overall
    unspaced = all(item.language in UNSPACED for item in result)
    return (rates.cer.rate if unspaced else rates.mer.rate) or 0.0


def show_invented(items: Sequence[Item], engines: Sequence[str], log: Log) -> None:
    """Words a minute by kind of sound; the kind stands in the items' truth."""
    kinds = list(dict.fromkeys(item.truth for item in items))
    minutes = [sum(len(i.samples) for i in items if i.truth == k) / SAMPLE_RATE / 60 for k in kinds]
    show_heads("program", *(f"{k} ({m:.1f} min)" for k, m in zip(kinds, minutes, strict=True)), "all")

    figures = {}
    for engine in engines:
        texts = texts_of(log, engine, INVENTING_BEAM, items)
        if texts is None:
            continue
        pairs = list(zip(items, texts, strict=True))
        totals = [n_units(text for item, text in pairs if item.truth == kind) for kind in kinds]
        rates = [total / length for total, length in zip(totals, minutes, strict=True)]
        rates.append(sum(totals) / sum(minutes))
        name = f"{engine}, {mode(INVENTING_BEAM)}"
        show_row(name, *(f"{rate:.1f}" for rate in rates))
        figures[name] = dict(zip([*kinds, "all"], (round(rate, 2) for rate in rates), strict=True))
    show_json("files beside invented", {"minutes": round(sum(minutes), 1), "engines": figures})


def measure_speed(arguments: argparse.Namespace) -> None:
    """All programs read one long recording in turns; the first 30 s warm each up."""
    samples = joined(
        clips(arguments.shared / "data", "test", language="en", with_text=True), arguments.seconds
    )
    item, warm = Item("joined", samples, "en", ""), Item("warm", samples[: 30 * SAMPLE_RATE], "en", "")
    processes = [Process(engine, arguments.model, arguments.threads) for engine in arguments.engines]
    times: dict[tuple[str, int], list[float]] = {}
    for process in processes:
        process.read(warm, 1)
    for number in range(arguments.rounds):
        for beam_size in BEAM_SIZES:
            for process in processes:
                times.setdefault((process.engine, beam_size), []).append(
                    process.read(item, beam_size)["cpu_s"]
                )
                print(f"\rround {number + 1}, {process.engine:40}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    modes = [f"{mode(size)}, times real time" for size in BEAM_SIZES]
    show_heads("program", *modes, "peak memory")

    figures = {}
    for process in processes:
        medians = [statistics.median(times[process.engine, size]) for size in BEAM_SIZES]
        speeds = [arguments.seconds / median for median in medians]
        peak_mb = process.stop()
        show_row(process.engine, *(f"{entry:.1f}" for entry in speeds), f"{peak_mb:.0f} MB")
        figures[process.engine] = {"speeds": [round(entry, 3) for entry in speeds], "peak_mb": round(peak_mb)}
    show_json("files beside speed", {"audio_s": arguments.seconds, "engines": figures})


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("table", choices=("errors", "invented", "speed"))
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--engines", type=listed(), help=", ".join(BUILDERS))
    parser.add_argument("--reference", default=REFERENCE, help="whom the others stand beside (errors)")
    parser.add_argument("--log", type=Path, help="readings so far: a file of JSON lines that is added to")
    parser.add_argument("--per-language", type=int, default=40, help="clips of a language at most (errors)")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the recording (speed)")
    parser.add_argument("--rounds", type=int, default=2, help="(speed)")
    parser.add_argument("--threads", type=int, default=1, help="(speed)")
    arguments = parser.parse_args()
    every = {"errors": SPEECH_ENGINES, "invented": tuple(BUILDERS), "speed": SPEECH_ENGINES}
    arguments.engines = arguments.engines or [*every[arguments.table]]
    if arguments.table == "speed":
        measure_speed(arguments)
        return
    log, data = Log(arguments.log), arguments.shared / "data"
    if arguments.table == "errors":
        items = spoken(data, arguments.per_language)
        read_all(items, log, arguments.engines, BEAM_SIZES, arguments.model)
        show_errors(items, arguments, log)
    else:
        items = [Item(s.name, s.samples, "en", s.kind) for s in sounds(data)]
        read_all(items, log, arguments.engines, [INVENTING_BEAM], arguments.model)
        show_invented(items, arguments.engines, log)
