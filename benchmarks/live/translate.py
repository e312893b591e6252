"""Speech into English while people speak, beside the translation of the whole file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from sacrebleu.metrics import CHRF

from benchmarks.harness.report import seconds, show_table
from benchmarks.live.counts import is_loop, median, timing
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
from sottovoce.errors import OptionError
from sottovoce.evaluation.latency import laal

HELP = """Live translation into English: chrF against the translation of the whole file by the same weights.

Clips of other languages than English. LAAL: how far the words lag behind an ideal that speaks along evenly
(SimulEval's, not computation-aware); latency: of the words that both translations have, from the end that the
file's has by attention. Left: clips nearer to the file's transcript than to its translation. With base
half a second of processor time for each second of audio and setting. Needs sacrebleu."""

N_RESAMPLES = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_foreign_clips(parser, n_clips=40)
    parser.set_defaults(frame_thresholds=[25.0, 50.0])


def add_foreign_clips(parser: argparse.ArgumentParser, n_clips: int) -> None:
    add_clips(parser, n_clips=n_clips)
    parser.set_defaults(spoken=["de", "es", "pl", "fr", "it", "pt", "ru"])


def foreign_clips(given: argparse.Namespace, bench: Bench) -> tuple[list[Item], list[Whole]]:
    """The clips, and the translation of each whole file. Raises: OptionError without any."""
    items = chosen(given)
    if not items:
        raise OptionError("expected clips with text in other languages than English, got none")
    return items, [
        bench.whole(given.model, item, task="translate") for item in counted(items, "translations")
    ]


def scored(one: Mapping[str, float | None]) -> str:
    """The cell of chrF with its interval."""
    return f"{one['chrf']:.1f} ({one['low']:.1f} to {one['high']:.1f})"


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items, wholes = foreign_clips(given, bench)
    said = [bench.whole(given.model, item) for item in counted(items, "files")]
    asked = [replace(one, stream={**one.stream, "task": "translate"}) for one in settings(given)]
    rows, figures = [], {}
    for setting in asked:
        lives = [bench.live(setting, item) for item in counted(items, setting.name)]
        figure = figures_of(items, said, wholes, lives)
        figures[setting.name] = figure
        rows.append([setting.name, *cells(figure)])
    heads = ("chrF, 95 %", "left", "loops", "LAAL", "latency", "cpu s/s")
    show_table([f"{len(items)} clips", *heads], rows)
    show_live_json("translate", asked, {"part": given.part, "clips": len(items), "found": figures})


def figures_of(
    items: Sequence[Item], said: Sequence[Whole], wholes: Sequence[Whole], lives: Sequence[Live]
) -> dict[str, float | None]:
    texts, references = [live.text for live in lives], [whole.text for whole in wholes]
    low, high = interval(texts, references)
    lags: list[float] = []
    latencies: list[float] = []
    for whole, live in zip(wholes, lives, strict=True):
        run = live.run
        lags.append(laal(run.delays_s, run.duration_s, len(whole.text.split())))
        latencies += timing(run, whole, "en").latencies_s
    kept = zip(texts, said, references, strict=True)
    return {
        "chrf": chrf(texts, references),
        "low": low,
        "high": high,
        "left": sum(chrf([t], [s.text]) > chrf([t], [r]) for t, s, r in kept),
        "loops": sum(is_loop(Item("", (), text=r), t) for r, t in zip(references, texts, strict=True)),
        "laal_s": float(np.nanmean(lags)),
        "latency_s": median(latencies),
        "cpu": sum(one.run.cpu_s for one in lives) / sum(one.run.duration_s for one in lives),
    }


def cells(one: dict[str, float | None]) -> list[str]:
    return [
        scored(one),
        str(one["left"]),
        str(one["loops"]),
        seconds(one["laal_s"]),
        seconds(one["latency_s"]),
        f"{one['cpu']:.2f}",
    ]


def chrf(texts: Sequence[str], references: Sequence[str]) -> float:
    """Of all together, 0 to 100. Source: Popović (2015), as sacrebleu computes it."""
    return float(CHRF().corpus_score(list(texts), [list(references)]).score)


def interval(texts: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    """95 % of the scores of sets drawn with replacement from the clips."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(N_RESAMPLES):
        at = rng.integers(0, len(texts), len(texts))
        found.append(chrf([texts[i] for i in at], [references[i] for i in at]))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    run_command(HELP, add_arguments, run)
