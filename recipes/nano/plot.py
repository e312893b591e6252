"""The learning curve as a picture: losses over hours of audio. Needs matplotlib (extra `recipes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sottovoce.errors import InputError, MissingExtraError

PARTS = {
    "tokens": "decoder: cross-entropy a token",
    "ctc": "CTC head: loss a letter",
    "guidance": "attention: -log share in place",
    "language": "language token: cross-entropy",
}


def plot_curve(rows: Sequence[Mapping[str, float]], picture: Path) -> None:
    """Draw every known loss of a log against the hours heard.

    Raises: InputError when the log is empty; MissingExtraError without matplotlib.
    """
    if not rows:
        raise InputError("learning curve: the log has no row")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "recipes", "the learning curve") from error
    figure = Figure(figsize=(8, 4.5), dpi=100, layout="constrained")
    axes = figure.subplots()
    for name, label in PARTS.items():
        points = [(row["hours"], row[name]) for row in rows if name in row]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
    axes.set_xlabel("hours of audio heard")
    axes.set_ylabel("nats")
    axes.set_yscale("log")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(picture)
