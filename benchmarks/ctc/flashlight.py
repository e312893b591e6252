"""Where flashlight-text and ours read differently with one lexicon and n-gram: whose reading scores higher.

    python -m benchmarks ctc flashlight --data ../shared/data --lm words.arpa --fifth

Emissions, n-gram, lexicon and prunings are those of `ctc.kenlm`. Of every clip that the two read differently,
both readings are scored by a third way that searches nothing: all paths of a fixed text (its separators as
often as they like) are summed, or the likeliest is taken, in 64-bit floats, frame by frame; the n-gram (0.3
times its natural logs) and 1.5 a word come on top. Who has less of the sum made an error of search; who has
less of the sum and more of the likeliest path optimises that instead. `--fifth` adds flashlight with the
weight divided by (ln 10)², as earlier tables had it by mistake.

Prints of each beam size: clips read differently, how many of them because one side ends inside a word (which
flashlight drops and ours gives as far as it goes), and of the others how often which side has more by either
measure; then one JSON line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.ctc.emissions import BLANK, Vocabulary, words_of_arpa
from benchmarks.ctc.kenlm import english
from benchmarks.ctc.people import reported
from benchmarks.ctc.sides import LN10, PRUNED, WEIGHT, WORD_SCORE, Task, decoder_of, flashlight_lexicon
from benchmarks.ctc.steps import errors_of, letters_of
from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json
from sottovoce.api import load_model
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.lm.ngram import NgramModel

Read = Callable[[Tensor], tuple[str, float]]
Join = Callable[[np.ndarray, np.ndarray], np.ndarray]
NEVER = -np.inf
ROUNDING = 1e-3


def acoustic(emissions: np.ndarray, text: str, labels: list[str], join: Join) -> float:
    """Log-probability of a text in emissions (T, V); `np.logaddexp` of all paths, or `np.maximum`.

    A separator may be said again, and before the first word and after the last; a last word needs none.
    """
    gap = labels.index(" ")
    spelled = [gap, *(labels.index(letter) for letter in text), gap]
    states = np.array([BLANK, *(each for label in spelled for each in (label, BLANK))])
    after = states == gap
    may_skip = np.zeros(len(states), bool)  # the blank between two labels that differ
    may_skip[3:] = (states[3:] != BLANK) & (states[3:] != states[1:-2])
    now = np.full(len(states), NEVER)
    now[:4] = [emissions[0, BLANK], emissions[0, gap], NEVER, emissions[0, states[3]]]
    for frame in emissions[1:]:
        moved = join(now, np.concatenate(([NEVER], now[:-1])))
        skipped = np.concatenate(([NEVER, NEVER], now[:-2]))
        moved = join(moved, np.where(may_skip, skipped, NEVER))
        # A first separator may be left out altogether; every one may be said again after its blank.
        moved[3] = join(moved[3], now[0])
        again = np.concatenate((now[1:], [NEVER]))
        now = join(moved, np.where(after, again, NEVER)) + frame[states]
    ends = now[[-1, -2, -3, -4]]
    return float(join.reduce(ends))  # type: ignore[attr-defined]


def language(model: NgramModel, text: str) -> float:
    """What n-gram and word score add to a text."""
    words, states, total = text.split(), model.start(1), 0.0
    for token in model.ids(words):
        score, states = model.score(states, torch.tensor([token]))
        total += float(score[0])
    return WEIGHT * (total + float(model.finish(states)[0])) + WORD_SCORE * len(words)


def ours(task: Task) -> Read:
    decoder = decoder_of(task, CtcOptions(times=False, **PRUNED))

    def read(row: Tensor) -> tuple[str, float]:
        best = decoder.decode(row[None])[0]
        if not best or best[0].is_unfinished:
            return (best[0].text if best else ""), np.inf
        return best[0].text, best[0].score

    return read


def scored(task: Task, row: np.ndarray, text: str) -> tuple[float, float]:
    """The sum and the likeliest path of a text over emissions (T, V), with all that language adds."""
    assert isinstance(task.model, NgramModel)
    added = language(task.model, text)
    total, best = (acoustic(row, text, task.known.labels, join) for join in (np.logaddexp, np.maximum))
    return total + added, best + added


def judged(
    task: Task, weight: float, emissions: list[Tensor]
) -> tuple[list[tuple[str, str]], dict[str, object]]:
    """Both readings of every clip, and how the ones that differ score; weight: that of flashlight."""
    assert isinstance(task.model, NgramModel)
    theirs = flashlight_lexicon(task, weight, PRUNED)
    read, pairs, gains, n_cut = ours(task), [], [], 0
    for row in emissions:
        found = (read(row), theirs(row))
        texts = [text for text, _ in found]
        pairs.append((texts[0], texts[1]))
        if texts[0] == texts[1]:
            continue
        both = [scored(task, row.double().numpy(), text) for text in texts]
        # Some paths are no more than all: what scores above the sum has a word that its text leaves out.
        less = (
            (WEIGHT - weight) * (language(task.model, texts[1]) - WORD_SCORE * len(texts[1].split())) / WEIGHT
        )
        own = [mine for _, mine in found]
        if own[0] > both[0][0] + 1.0 or own[1] > both[1][0] - less + 1.0:
            n_cut += 1
            continue
        gains.append([a - b for a, b in zip(*both, strict=True)])
    total, best = np.array(gains).reshape(-1, 2).T
    return pairs, {
        "differ": sum(a != b for a, b in pairs),
        "of these without the unfinished last word": n_cut,
        "sum: ours, theirs": [int((total > ROUNDING).sum()), int((total < -ROUNDING).sum())],
        "likeliest: ours, theirs": [int((best > ROUNDING).sum()), int((best < -ROUNDING).sum())],
        "the two measures disagree": int((total * best < 0).sum()),
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the clips")
    parser.add_argument("--lm", type=Path, required=True, help="an ARPA file of words")
    parser.add_argument("--clips", type=int, default=1000, help="at most, the same share of every set")
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[16, 100])
    parser.add_argument(
        "--fifth", action="store_true", help="flashlight with the weight of earlier tables too"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    model = load_model("base")
    clips = reported(options.data, ("en",), letters_of(model))
    clips = clips[:: max(1, -(-len(clips) // options.clips))]
    labels, emissions = english(model, clips)
    ngram = NgramModel.from_arpa(options.lm)
    words = {word: [labels.index(letter) for letter in word] for word in words_of_arpa(options.lm)}
    plain = Task(Vocabulary(labels, words), 16, "cpu", options.lm, ngram, closed=True)
    found = []
    for beam_size in options.beam_sizes:
        task = replace(plain, beam_size=beam_size)
        for weight in [WEIGHT, *([WEIGHT / LN10**2] if options.fifth else [])]:
            pairs, row = judged(task, weight, emissions)
            wrong = [errors_of(clips, texts).sum(axis=0) for texts in zip(*pairs, strict=True)]
            row = {
                "beam_size": beam_size,
                "their weight": weight,
                "words wrong: ours, theirs": [float(errors / n) for errors, n in wrong],
                **row,
            }
            print("  ".join(f"{name}: {value}" for name, value in row.items()), flush=True)
            found.append(row)
    show_json("ctc flashlight", {"clips": len(clips), "rows": found})
