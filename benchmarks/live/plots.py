"""Pictures of the live benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.live.counts import Summary
from sottovoce.options.live import Latency

COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44")
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def plot_curve(path: Path, found: Mapping[str, Summary], offline: float) -> None:
    """Errors over median word latency. found: by names with a threshold in frames or a latency; what is left
    of a name is a line. offline: error rate of the files' transcripts, dashed."""
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
    """What is left of "SimulStreaming, 25 frames, 0.5 s" or "low, 0.5 s" without its threshold, and that."""
    parts = name.split(", ")
    threshold = next(part for part in parts if part.endswith(" frames") or part in get_args(Latency))
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


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.grid(alpha=0.25)
