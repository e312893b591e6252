"""Pictures of the live benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.live.counts import Summary
from sottovoce.evaluation.latency import LiveRun

COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44")
LANGUAGE_COLOURS = dict(
    zip(
        ("en", "de", "es", "fr", "it", "pl", "pt", "ru", "zh", "ja"),
        (*COLOURS, "#ee8866", "#99ddff", "#bbcc33", "#ffaabb"),
        strict=True,
    )
)
"""Other languages are grey; every band is labelled."""
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def plot_curve(path: Path, found: Mapping[str, Summary], offline: float) -> None:
    """Errors over median word latency. found: by names with the threshold in frames; what is left of a name
    is a line. offline: error rate of the files' transcripts, dashed."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for name, one in found.items():
        if one.latency_s is not None:
            line, threshold = line_of(name)
            lines.setdefault(line, []).append((one.latency_s, 100 * one.rate, threshold))
    for i, (name, points) in enumerate(lines.items()):
        x, y, thresholds = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", ms=5, color=COLOURS[i % len(COLOURS)], label=name)
        for at in zip(thresholds, zip(x, y, strict=True), strict=True):
            axes.annotate(*at, (0, -11), textcoords="offset points", ha="center", fontsize=7)
    axes.axhline(100 * offline, color="#555555", ls="--", lw=1, label="whole file")
    _finish(axes, "median word latency (s)", "words wrong (%)")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def line_of(name: str) -> tuple[str, str]:
    """What is left of "SimulStreaming, 25 frames, 0.5 s" without its threshold, and the threshold."""
    parts = name.split(", ")
    threshold = next(part for part in parts if part.endswith(" frames"))
    return ", ".join(part for part in parts if part != threshold), threshold.removesuffix(" frames")


def plot_hour(
    path: Path, minutes: Sequence[float], cpu: Sequence[float], resident_mb: Sequence[float]
) -> None:
    """Processor seconds a second of audio, and memory, over a long stream."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 4.2), layout="constrained", sharex=True)
    above.plot(minutes, [1000 * one for one in cpu], color=COLOURS[0])
    below.plot(minutes, resident_mb, color=COLOURS[1])
    _finish(above, "", "ms of processor time\na second of audio")
    _finish(below, "minutes of one stream", "resident memory (MB)")
    figure.savefig(path, dpi=130)


def plot_switches(
    path: Path,
    names: Sequence[str],
    spoken: Sequence[Sequence[tuple[float, float, str]]],
    heard: Mapping[str, Sequence[LiveRun]],
) -> None:
    """Languages over time, a panel a recording. spoken: (start, end, language), seconds; heard: runs of the
    same recordings by mode. A triangle stands where a change was told, below the band that it begins."""
    figure, panels = plt.subplots(
        len(names),
        1,
        figsize=(7.6, 0.75 + len(names) * (0.5 + 0.26 * (1 + len(heard)))),
        layout="constrained",
    )
    for number, axes in enumerate([panels] if len(names) == 1 else panels):
        runs = {mode: some[number] for mode, some in heard.items()}
        rows = ["spoken", *runs]
        _band(axes, 0, spoken[number])
        for row, run in enumerate(runs.values(), 1):
            _band(axes, row, heard_spans(run))
            axes.plot(
                [one.confirmed_s for one in run.switches],
                [row + 0.47] * len(run.switches),
                "k^",
                ms=4,
                clip_on=False,
            )
        axes.set(yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlim(0, next(iter(runs.values())).duration_s)
        axes.set_title(names[number], loc="left", fontsize=8)
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
    axes.set_xlabel("seconds")
    figure.savefig(path, dpi=130)


def heard_spans(run: LiveRun) -> list[tuple[float, float, str]]:
    """What a session said was spoken: from one change to the next."""
    if run.first_language is None:
        return []
    starts = [0.0, *(one.at_s for one in run.switches)]
    languages = [run.first_language, *(one.target for one in run.switches)]
    return list(zip(starts, [*starts[1:], run.duration_s], languages, strict=True))


def _band(axes: Axes, row: int, spans: Sequence[tuple[float, float, str]]) -> None:
    for start, end, language in spans:
        colour = LANGUAGE_COLOURS.get(language, "#bbbbbb")
        axes.barh(row, end - start, left=start, height=0.72, color=colour, alpha=0.75, lw=0)
        axes.text((start + end) / 2, row, language, ha="center", va="center", fontsize=7)


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.grid(alpha=0.25)
