"""Pictures of the live benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377")
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def plot_latency(path: Path, groups: dict[str, dict[str, Any]], model: str) -> None:
    """Errors over mean word latency, a line a group; dashed: the offline transcript."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for colour, (name, group) in zip(COLOURS, groups.items(), strict=False):
        rows = [row for row in group["live"] if row["word_latency_s"] is not None]
        x = [row["word_latency_s"] for row in rows]
        y = [100 * row["mer"] for row in rows]
        axes.plot(x, y, marker="o", ms=5, color=colour, label=f"{name} ({group['n_recordings']} clips)")
        whole = 100 * group["offline"]["mer"]
        axes.axhline(whole, color=colour, ls="--", lw=1, alpha=0.7)
        axes.text(0.995, whole, "offline", color=colour, fontsize=7, ha="right", va="bottom", **beside(axes))
        for row, at, height in zip(rows, x, y, strict=True):
            label = f"{row['frame_threshold']:g}"
            axes.annotate(label, (at, height), (0, -11), textcoords="offset points", ha="center", fontsize=7)
    _finish(axes, "mean word latency (s)", "mixed error rate (%)")
    axes.set_title(f"Errors against latency, {model}; the numbers are frame_threshold", fontsize=9, pad=10)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=130)


def plot_hour(path: Path, curve: Sequence[dict[str, float]], model: str) -> None:
    """Time a second of audio, and memory, over a long stream."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 4.2), layout="constrained", sharex=True)
    minutes = [point["at_s"] / 60 for point in curve]
    above.plot(minutes, [1000 * point["cpu_s_per_s"] for point in curve], color=COLOURS[0])
    below.plot(minutes, [point["resident_mb"] for point in curve], color=COLOURS[1])
    _finish(above, "", "ms of processor time\na second of audio")
    _finish(below, "minutes of one stream", "resident memory (MB)")
    above.set_title(f"One long stream, {model}, five languages followed, one thread", fontsize=9)
    figure.savefig(path, dpi=130)


def beside(axes: Axes) -> dict[str, Any]:
    """Horizontal places in parts of the picture, vertical ones in the data."""
    return {"transform": axes.get_yaxis_transform()}


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.grid(alpha=0.25)
