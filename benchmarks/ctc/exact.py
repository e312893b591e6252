"""How good the readings are that a beam finds, by their exact score, beside pyctcdecode and flashlight-text.

    python -m benchmarks ctc exact --data ../shared/data
    python -m benchmarks ctc exact --data ../shared/data --lm words.arpa   # another n-gram

Emissions: those of base's CTC head on English clips of people that report. The n-gram is trained here, a
trigram of the text of `ctc.people` with its 20 000 most used words, unless an ARPA file is named; its words
are what is known. Weights, and the price of an unknown word, are one for all sides. Every reading is scored
by a way that searches nothing: all paths of the text are summed in 64-bit floats, n-gram and word scores come
on top. So a higher mean is a better search, whatever the words. Where flashlight drops an unfinished last
word, the text that it gives is scored. "Pruned": 10 nats and 8 tokens a frame; pyctcdecode has its own
prunings, 10 nats and tokens above -5.

Prints mean score, words wrong with their bootstrap 95 % interval, and the median over repeats of the speed
(processor time, sides in turn) as a ratio to the first side; then one JSON line.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.ctc.emissions import BLANK, Vocabulary
from benchmarks.ctc.people import Said, Texts, held_out, reported
from benchmarks.ctc.sides import (
    PRUNED,
    WEIGHT,
    WORD_SCORE,
    Batched,
    Side,
    Task,
    flashlight,
    ours,
    pyctcdecode,
)
from benchmarks.ctc.texts import frequencies, letters_of, rate_of, shown, write_ngrams
from benchmarks.harness.report import benchmark_parser, show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.cli.ctc import recorded_emissions
from sottovoce.ctc import CtcFusionOptions
from sottovoce.ctc.options import CtcOptions
from sottovoce.lm.ngram import NgramModel

SPECIAL = ("<s>", "</s>", "<unk>", "<UNK>")
UNKNOWN_SCORE = CtcFusionOptions().unknown_score
BEAM_SIZES, REPEATS = (16, 100), 5
DecodeAll = Callable[[list[Tensor]], list[str]]


def english(model: Model, clips: list[Said]) -> tuple[list[str], list[Tensor]]:
    """Labels of English, blank first and the space second, and emissions (T, V) of them alone.

    A frame of the space ends each: flashlight drops a last word without one.
    """
    head = model.ctc_head
    assert head is not None
    labels = ["", " ", *"abcdefghijklmnopqrstuvwxyz'"]
    places = [head.blank, *(head.labels.index(label) for label in labels[1:])]
    heard = [recorded_emissions(clip.path, model).values for clip in clips]
    end = torch.full((1, len(labels)), -12.0)
    end[0, 1] = 0.0
    rows = [torch.cat((each.reshape(-1, each.shape[-1])[:, places], end)) for each in heard]
    return labels, [row.log_softmax(dim=1) for row in rows]


def one_by_one(side: Side) -> DecodeAll:
    if isinstance(side, Batched):
        return lambda emissions: [side.decode(each[None])[0] for each in emissions]
    return lambda emissions: [side.decode(each) for each in emissions]


def acoustic(emissions: np.ndarray, text: str, labels: list[str]) -> float:
    """Log-probability of a text in emissions (T, V), summed over all paths.

    A separator may be said again, and before the first word and after the last; a last word needs none.
    """
    gap = labels.index(" ")
    spelled = [gap, *(labels.index(letter) for letter in text), gap]
    states = np.array([BLANK, *(each for label in spelled for each in (label, BLANK))])
    after = states == gap
    may_skip = np.zeros(len(states), bool)  # the blank between two labels that differ
    may_skip[3:] = (states[3:] != BLANK) & (states[3:] != states[1:-2])
    now = np.full(len(states), -np.inf)
    now[:4] = [emissions[0, BLANK], emissions[0, gap], -np.inf, emissions[0, states[3]]]
    for frame in emissions[1:]:
        moved = np.logaddexp(now, np.concatenate(([-np.inf], now[:-1])))
        skipped = np.concatenate(([-np.inf, -np.inf], now[:-2]))
        moved = np.logaddexp(moved, np.where(may_skip, skipped, -np.inf))
        # A first separator may be left out altogether; every one may be said again after its blank.
        moved[3] = np.logaddexp(moved[3], now[0])
        again = np.concatenate((now[1:], [-np.inf]))
        now = np.logaddexp(moved, np.where(after, again, -np.inf)) + frame[states]
    ends = now[[-1, -2, -3, -4]]
    return float(np.logaddexp.reduce(ends))


def sides(task: Task) -> Iterator[tuple[str, DecodeAll]]:
    """Open vocabularies, or the n-gram's words alone; the first is what others are compared with."""
    plain = CtcOptions(times=False)
    if task.closed:
        yield "flashlight-text, pruned", one_by_one(flashlight(task, **PRUNED))
    else:
        yield "pyctcdecode", one_by_one(pyctcdecode(task, unknown_score=UNKNOWN_SCORE))
    yield "ours", one_by_one(ours(task, plain))
    yield "ours, pruned", one_by_one(ours(task, replace(plain, **PRUNED)))


def exact_score(task: Task, emissions: np.ndarray, text: str) -> float:
    """The sum of all paths of a text over emissions (T, V), and what n-gram and words add to it."""
    model = task.model
    assert isinstance(model, NgramModel)
    words, states = text.split(), model.start(1)
    total = WORD_SCORE * len(words) + UNKNOWN_SCORE * sum(word not in task.known.words for word in words)
    for word in words:
        token = model.vocabulary[word] if word in task.known.words else model.unknown
        score, states = model.score(states, torch.tensor([token]))
        total += WEIGHT * float(score[0])
    total += WEIGHT * float(model.finish(states)[0])
    return total + acoustic(emissions, text, task.known.labels)


def measured(task: Task, clips: Sequence[Said], emissions: list[Tensor]) -> Iterator[dict[str, Any]]:
    """Of each side: mean exact score, words wrong, and speed against the first."""
    rows = list(sides(task))
    texts = [decode(emissions) for _, decode in rows]
    seconds: list[list[float]] = [[] for _ in rows]
    for _ in range(REPEATS):
        for taken, (_, decode) in zip(seconds, rows, strict=True):
            begin = time.process_time()
            decode(emissions)
            taken.append(time.process_time() - begin)
    frames = [each.double().numpy() for each in emissions]
    for (name, _), found, taken in zip(rows, texts, seconds, strict=True):
        wrong = rate_of([clip.text for clip in clips], found)
        scores = [exact_score(task, row, text) for row, text in zip(frames, found, strict=True)]
        ratios = [a / b for a, b in zip(seconds[0], taken, strict=True)]
        yield {
            "side": name,
            "score": statistics.mean(scores),
            "scores": scores,
            "words": wrong.rate,
            "interval": (wrong.low, wrong.high),
            "speed": statistics.median(ratios),
        }


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print()
    show_heads(title, "mean exact score", "words wrong, 95 %", "speed")
    for row in rows:
        wrong = shown(row["words"], *row["interval"])
        show_row(row["side"], f"{row['score']:.2f}", wrong, f"{row['speed']:.1f}")


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the clips")
    parser.add_argument("--lm", type=Path, help="an ARPA file of words, in the place of the one trained here")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    model = load_model("base")
    letters = letters_of(model)
    clips = reported(options.data, ("en",), letters)
    dev = held_out(options.data, ("en",), letters)
    labels, emissions = english(model, clips)
    with tempfile.TemporaryDirectory() as folder:
        lm = options.lm or Path(folder) / "words.arpa"
        if options.lm is None:
            texts = Texts.read(options.data, "en", letters, {clip.text for clip in (*dev, *clips)})
            write_ngrams(texts, lm, frequent=frequencies(options.data, "en", letters, 20_000))
        ngram = NgramModel.load(lm)
        spelled = (word for word in ngram.vocabulary if word not in SPECIAL and set(word) <= set(labels))
        words = {word: [labels.index(letter) for letter in word] for word in spelled}
        task = Task(Vocabulary(labels, words), 0, "cpu", lm, ngram)
        print(f"{len(clips)} clips, {sum(map(len, emissions))} frames, {len(words)} words", flush=True)
        blocks = []
        for beam_size in BEAM_SIZES:
            for closed in (False, True):
                part = replace(task, beam_size=beam_size, closed=closed)
                rows = list(measured(part, clips, emissions))
                title = f"{'the words of the n-gram' if closed else 'open vocabulary'}, beam {beam_size}"
                show(title, rows)
                blocks.append({"title": title, "rows": rows})
    show_json("ctc exact", {"clips": len(clips), "blocks": blocks})
