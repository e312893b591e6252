"""Whether words with a probability of 80 % are right in 80 of 100 cases.

    python -m benchmarks text confidence ../shared --plot docs/images/confidence.png

Clips of people of one language, which is given, with the command line's beam; a word is right where an
alignment with the text has the same one. Words are put into ten bins by the probability that they are given.
Prints a table of the bins, the expected calibration error (Guo et al. 2017, https://arxiv.org/abs/1706.04599,
equation 3) of all words and of each language, with bootstrap 95 % intervals over clips, how many words are
marked as doubtful, how many of these are wrong and how many of the wrong ones they are, and one JSON line.
--plot draws the reliability diagram.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.formats.document import has_low_confidence
from sottovoce.text.normalize import normalizer_for
from sottovoce.text.word_edits import equal_words
from sottovoce.types import Event, Final, Word

N_BINS, N_RESAMPLES = 10, 1000
PIECE = 5_120
"""Samples that come at a time, live."""
Numbers = npt.NDArray[np.float64]


class ClipWords(NamedTuple):
    """The words of a clip: how probable each was (n,), and whether it was right (n,)."""

    language: str
    probability: Numbers
    is_right: Numbers


def file_words(model: Model, clip: Clip, beam_size: int | None) -> list[Word]:
    """Return the words of a clip as a recording."""
    transcription = model.transcribe(
        clip.file, language=clip.language, beam_size=beam_size, word_timestamps=True
    )
    return [word for segment in transcription for word in segment.words or ()]


def live_words(model: Model, clip: Clip) -> list[Word]:
    """Return the words of a clip that comes live."""
    session = model.session(clip.language)
    samples = load_audio(clip.file)
    events: list[Event] = []
    for start in range(0, len(samples), PIECE):
        events += session.push(samples[start : start + PIECE])
    events += session.close()
    return [word for event in events if isinstance(event, Final) for word in event.words]


def judged(clip: Clip, written: Sequence[Word]) -> ClipWords:
    """Hold words against the text; a word of several, such as "1908", is right as a whole."""
    normalize = normalizer_for(clip.language)
    parts = [normalize(word.word).split() for word in written]
    found = equal_words([part for own in parts for part in own], normalize(clip.text or "").split())
    ends = np.cumsum([len(own) for own in parts])
    right = [None not in found[end - len(own) : end] for own, end in zip(parts, ends, strict=True)]
    kept = [index for index, own in enumerate(parts) if own]
    return ClipWords(
        clip.language,
        np.array([written[index].probability for index in kept]),
        np.array([right[index] for index in kept], dtype=np.float64),
    )


def bins_of(probability: Numbers) -> npt.NDArray[np.int64]:
    """Return the bin of each word (n,)."""
    return np.minimum((probability * N_BINS).astype(np.int64), N_BINS - 1)


def calibration_error(words: Sequence[ClipWords]) -> float:
    """Return the expected calibration error of all words."""
    probability = np.concatenate([one.probability for one in words])
    is_right = np.concatenate([one.is_right for one in words])
    bins = bins_of(probability)
    gaps = np.bincount(bins, probability - is_right, minlength=N_BINS)
    return float(np.abs(gaps).sum() / max(1, len(bins)))


def marks(probability: Numbers, is_right: Numbers) -> tuple[float, float, float]:
    """Return the part of words that are marked, that of them that is wrong, and that of the wrong ones."""
    marked = np.array([has_low_confidence(one) for one in probability])
    n_hit = float((1.0 - is_right[marked]).sum())
    n_wrong = max(1.0, float((1.0 - is_right).sum()))
    return float(marked.mean()), n_hit / max(1, int(marked.sum())), n_hit / n_wrong


def interval(words: Sequence[ClipWords]) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of the error over clips."""
    random = np.random.default_rng(0)
    drawn = [
        calibration_error([words[i] for i in random.integers(len(words), size=len(words))])
        for _ in range(N_RESAMPLES)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def plot(words: Sequence[ClipWords], path: Path) -> None:
    """Draw the share of right words over their probability."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    probability = np.concatenate([one.probability for one in words])
    is_right = np.concatenate([one.is_right for one in words])
    bins = bins_of(probability)
    counts = np.bincount(bins, minlength=N_BINS)
    seen = np.flatnonzero(counts)
    means = np.bincount(bins, probability, minlength=N_BINS)[seen] / counts[seen]
    shares = np.bincount(bins, is_right, minlength=N_BINS)[seen] / counts[seen]
    errors = 1.96 * np.sqrt(shares * (1 - shares) / counts[seen])
    figure, axes = plt.subplots(figsize=(5, 4.6), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", label="as told")
    axes.errorbar(means, shares, errors, marker="o", capsize=3, color="tab:blue", label="as found, 95 %")
    for mean, share, count in zip(means, shares, counts[seen], strict=True):
        axes.annotate(f"{count}", (mean, share), xytext=(6, -12), textcoords="offset points", fontsize=8)
    axes.set(xlabel="probability of a word", ylabel="share of such words that are right")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), title="Words by their probability, and how many there are")
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    add_part(parser)
    parser.add_argument("--languages", nargs="+", default=["en", "de", "es", "fr", "it", "nl", "pl", "pt"])
    parser.add_argument("--clips", type=int, help="of each set and language in turn; all where not given")
    parser.add_argument("--beam-size", type=int, default=5, help="1 is greedy")
    parser.add_argument("--live", action="store_true", help="words of live sessions, of one language each")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(given.model, device="cpu")
    spoken = clips(given.shared / "data", given.part, with_text=True)
    known = [one for one in spoken if len(one.languages) == 1 and one.language in given.languages]
    chosen = spread(known, given.clips) if given.clips else known
    words = []
    for number, clip in enumerate(chosen, 1):
        print(f"{number} of {len(chosen)}", end="\r", file=sys.stderr)
        beam_size = given.beam_size if given.beam_size > 1 else None
        written = live_words(model, clip) if given.live else file_words(model, clip, beam_size)
        words.append(judged(clip, written))
    if given.plot:
        plot(words, given.plot)
    report(words, given.part)


def report(words: Sequence[ClipWords], part: str) -> None:
    """Print both tables and the JSON line."""
    probability = np.concatenate([one.probability for one in words])
    is_right = np.concatenate([one.is_right for one in words])
    bins = bins_of(probability)
    show_heads("probability", "words", "mean", "right")
    for one in range(N_BINS):
        inside = bins == one
        if inside.any():
            mean, right = probability[inside].mean(), is_right[inside].mean()
            show_row(
                f"{one / N_BINS:.1f} to {(one + 1) / N_BINS:.1f}", inside.sum(), f"{mean:.1%}", f"{right:.1%}"
            )
    print()
    columns = ("calibration error, 95 %", "marked", "of these wrong", "of the wrong")
    show_heads("language", "clips", "words", "mean", "right", *columns)
    groups = {"all": list(words)}
    for language in dict.fromkeys(one.language for one in words):
        groups[language] = [one for one in words if one.language == language]
    figures = {}
    for name, own in groups.items():
        if len(own) >= 10:
            error, (low, high) = calibration_error(own), interval(own)
            told = np.concatenate([one.probability for one in own])
            right = np.concatenate([one.is_right for one in own])
            cells = (f"{told.mean():.1%}", f"{right.mean():.1%}", f"{error:.3f} ({low:.3f} to {high:.3f})")
            show_row(name, len(own), len(told), *cells, *(f"{share:.1%}" for share in marks(told, right)))
            figures[name] = {"words": len(told), "error": error, "low": low, "high": high}
    show_json("text confidence", {"part": part, "languages": figures})
