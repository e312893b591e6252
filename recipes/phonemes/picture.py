"""A picture of phonemes over time, with the words that a decoder reads in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sottovoce.ctc import CtcDecoder

LEAST = 0.1
"""Labels that are never likelier than this are left out."""


def draw(log_probs: npt.NDArray[np.float32], decoder: CtcDecoder, path: Path) -> None:
    """Draw log-probabilities (T, V) and the words of the best hypothesis. Needs the extra `plot`."""
    from matplotlib.figure import Figure

    (found,) = decoder.decode(log_probs)
    labels, frame_s = decoder.labels, decoder.options.frame_s
    probabilities = np.exp(log_probs)
    spelled = [i for i in range(len(labels)) if i not in (labels.blank, labels.separator)]
    shown = [i for i in spelled if probabilities[:, i].max() > LEAST]
    shown.sort(key=lambda i: int(probabilities[:, i].argmax()))
    seconds = len(log_probs) * frame_s
    figure = Figure(figsize=(max(6.0, 2.0 * seconds), 0.5 + 0.22 * len(shown)), layout="constrained")
    axes = figure.subplots()
    extent = (0.0, seconds, len(shown) - 0.5, -0.5)
    axes.imshow(
        probabilities[:, shown].T,
        aspect="auto",
        cmap="Greys",
        extent=extent,
        interpolation="nearest",
        vmax=1.0,
    )
    axes.set_yticks(range(len(shown)), [labels.names[i] for i in shown])
    axes.set_xlabel("seconds")
    for word in found[0].words if found else ():
        axes.axvspan(word.start, word.end, color="tab:orange", alpha=0.15, linewidth=0)
        axes.text(
            (word.start + word.end) / 2, -0.8, word.word, ha="center", va="bottom", rotation=45, fontsize=9
        )
    figure.savefig(path, dpi=120)
