"""Words wrong and how late they come, beside the files' transcripts and SimulStreaming."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.harness.report import apart, percent, seconds, show_table
from benchmarks.live.counts import Summary, beside, error_rate, errors, summary
from benchmarks.live.runs import (
    Bench,
    Item,
    Live,
    Whole,
    add_clips,
    chosen,
    counted,
    run_command,
    settings,
    show_live_json,
)
from benchmarks.live.simul import Simul
from sottovoce.errors import OptionError

HELP = """Words wrong and word latency of live sessions on clips of people.

Takes the processor time that it measures: with base about half a second for each second of audio and
setting, SimulStreaming four; 30 clips are some 3 minutes of audio. Latencies are not computation-aware: audio
received when a word came, minus the end of that word in the float32 transcript of the file. What was done is
kept in --log under options, recording and the package's source (or --label)."""

HEADS = (
    *("errors", "beside the file, 95 %", "inserted", "loops"),
    *("latency, median", "90 %", "own median", "at the end", "first words"),
    *("cpu s/s", "frames", "starts", "ends", "< 40 ms"),
)

SIMUL_THRESHOLD = 25.0
"""Frames, where none are given."""


@dataclass(frozen=True, slots=True)
class Side:
    """One row of the table: a name, and what it makes of a recording."""

    name: str
    run: Callable[[Item], Live]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_clips(parser)
    parser.add_argument("--simul", type=Path, metavar="CHECKOUT", help="also SimulStreaming, from there")


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items = chosen(given)
    if not items:
        raise OptionError("errors: expected clips of one language with text, got none")
    wholes = [bench.whole(given.model, item) for item in counted(items, "files")]
    heard = {}
    for side in sides(given, bench):
        heard[side.name] = [side.run(item) for item in counted(items, side.name)]
    found = {name: summary(items, lives, wholes) for name, lives in heard.items()}
    show(items, wholes, found)
    show_sets(items, wholes, heard)
    audio_s = sum(live.run.duration_s for live in next(iter(heard.values())))
    figures = {name: asdict(one) for name, one in found.items()}
    clips = {"part": given.part, "clips": len(items), "audio_s": round(audio_s, 1)}
    show_live_json("errors", settings(given), {**clips, "found": figures})


def sides(given: argparse.Namespace, bench: Bench) -> list[Side]:
    """Ours first, one dtype after the other, then the other program at the same thresholds and intervals."""
    ours = [Side(one.name, partial(bench.live, one)) for one in settings(given)]
    if given.simul is None:
        return ours
    simul = Simul(given.simul, given.model, bench.log)
    asked = product(given.chunk_s, given.frame_thresholds or [SIMUL_THRESHOLD])
    return ours + [
        Side(simul.name(threshold, chunk_s), partial(simul.live, frame_threshold=threshold, chunk_s=chunk_s))
        for chunk_s, threshold in asked
    ]


def show(items: Sequence[Item], wholes: Sequence[Whole], found: dict[str, Summary]) -> None:
    counts = [errors(item, whole.text) for item, whole in zip(items, wholes, strict=True)]
    n_units = sum(one.n_reference for one in counts)
    rate, inserted = sum(c.n_errors for c in counts) / n_units, sum(c.insertions for c in counts)
    whole = ["file", percent(rate), "", str(inserted), *[""] * (len(HEADS) - 3)]
    rows = [[name, *cells(one)] for name, one in found.items()]
    show_table([f"{len(items)} clips, {n_units} words", *HEADS], [whole, *rows])


def cells(one: Summary) -> list[str]:
    return [
        percent(one.rate),
        apart(one.beside),
        str(one.insertions),
        str(one.loops),
        seconds(one.latency_s),
        seconds(one.latency_p90_s),
        seconds(one.own_latency_s),
        f"{one.at_end:.0%}",
        f"{one.first_words:.1f}",
        f"{one.cpu:.2f}",
        "" if one.frames is None else f"{one.frames:.1f}",
        seconds(one.start_s),
        seconds(one.end_s),
        f"{one.short:.0%}",
    ]


def show_sets(items: Sequence[Item], wholes: Sequence[Whole], heard: dict[str, list[Live]]) -> None:
    """Errors by set; the interval is that of the difference to the files' transcripts."""
    groups = list(dict.fromkeys(item.group for item in items))
    places = [[i for i, item in enumerate(items) if item.group == group] for group in groups]
    whole = [error_rate([items[i] for i in at], [wholes[i].text for i in at]) for at in places]
    rows = [["file", *map(percent, whole)]]
    for name, lives in heard.items():
        row = []
        for at in places:
            some, texts = [items[i] for i in at], [lives[i].text for i in at]
            row.append(percent(error_rate(some, texts)))
            if len(at) > 1:
                found = beside(some, [wholes[i].text for i in at], texts)
                row[-1] += f" ({found.low:+.0%} to {found.high:+.0%})"
        rows.append([name, *row])
    print()
    show_table(["errors", *(f"{g} ({len(at)})" for g, at in zip(groups, places, strict=True))], rows)


def main() -> None:
    run_command(HELP, add_arguments, run)
