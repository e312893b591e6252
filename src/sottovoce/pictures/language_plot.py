"""Plot the languages of a recording over time: posteriors, true and found switches, words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sottovoce.errors import MissingExtraError
from sottovoce.evaluation.language_scores import FoundSwitch
from sottovoce.evaluation.manifest import LabelledSpan
from sottovoce.language.timeline import TimelineFrame
from sottovoce.types import Word


def require_plots() -> None:
    """Check that matplotlib is installed.

    Raises: MissingExtraError without it.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "the picture of the language timeline") from error
    assert mpl


def plot_timeline(
    path: str | Path,
    languages: Sequence[str],
    frames: Sequence[TimelineFrame],
    *,
    spans: Sequence[LabelledSpan] = (),
    switches: Sequence[FoundSwitch] = (),
    words: Sequence[Word] = (),
) -> None:
    """Write a plot (format by the path's ending): posteriors of each language over time, true languages as
    coloured ground, found switches as dashed lines, words along the top.

    Raises: MissingExtraError without matplotlib.
    """
    require_plots()
    from matplotlib.figure import Figure

    end_s = max([frame.end_s for frame in frames] + [span.end_s for span in spans] + [1.0])
    figure = Figure(figsize=(min(24.0, max(7.0, 0.6 * end_s)), 3.2), layout="constrained")
    axes = figure.subplots()
    colours = {code: f"C{i}" for i, code in enumerate(languages)}
    for span in spans:
        axes.axvspan(span.start_s, span.end_s, color=colours.get(span.language, "0.5"), alpha=0.12, lw=0)
    centres = [frame.centre_s for frame in frames]
    for i, code in enumerate(languages):
        posterior = [float(frame.posterior[i]) for frame in frames]
        if max(posterior, default=0.0) > 0.05:
            axes.plot(centres, posterior, color=colours[code], label=code, marker=".", ms=3, lw=1)
    for switch in switches:
        axes.axvline(switch.at_s, color=colours.get(switch.target, "k"), ls="--", lw=1.2)
    for word in words:
        colour = colours.get(word.language or "", "k")
        axes.text(word.start, 1.04, word.word.strip(), fontsize=6, rotation=60, color=colour, ha="left")
    axes.set(xlim=(0.0, end_s), ylim=(0.0, 1.0), xlabel="seconds", ylabel="posterior")
    axes.legend(loc="lower left", fontsize=7, ncol=len(languages))
    figure.savefig(path, dpi=110)
