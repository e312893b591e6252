"""How often captions take back words that they show before they are sure, and how soon they show them."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import torch

from benchmarks.harness.report import show_table
from benchmarks.live.runs import (
    Bench,
    Item,
    Setting,
    add_clips,
    built,
    chosen,
    counted,
    run_command,
    settings,
    show_live_json,
)
from sottovoce.streaming.options import StreamOptions
from sottovoce.types import SAMPLE_RATE, Partial, Unstable, Word

HELP = """Captions that show words before they are committed (`--captions revisable`): words taken back for
each word of the final text (normalized erasure, Arivazhagan et al. 2020), the share of shown words that are
taken back, and for how long one stood; audio received when a word was shown for good and when it was
committed, minus the end of the word by its own times; audio received after the end of the last word shown, at
the updates with words; and processor time.

Takes the processor time of `errors` with one setting."""


@dataclass(frozen=True, slots=True)
class Captions:
    """shown: the letters of all words on the screen after each update. at_s: audio received then. words: the
    final text. committed_s: audio received when each was committed. behind_s: audio received after the last
    word shown, at each update before the end with words. cpu_s: processor time.
    """

    shown: tuple[tuple[str, ...], ...]
    at_s: tuple[float, ...]
    words: tuple[Word, ...]
    committed_s: tuple[float, ...]
    behind_s: tuple[float, ...]
    cpu_s: float

    @property
    def erased_s(self) -> list[float]:
        """How long each word that was taken back was shown."""
        found: list[float] = []
        since_s: list[float] = []
        for (before, after), at_s in zip(pairwise([(), *self.shown]), self.at_s, strict=True):
            n_kept = n_alike(before, after)
            found += [at_s - shown_s for shown_s in since_s[n_kept:]]
            since_s = since_s[:n_kept] + [at_s] * (len(after) - n_kept)
        return found

    @property
    def shown_s(self) -> list[float]:
        """Audio received from which on each word of the final text was shown at its place."""
        found = list(self.committed_s)
        final = tuple(letters(word.word) for word in self.words)
        n_good = len(final)
        for state, at_s in zip(reversed(self.shown), reversed(self.at_s), strict=True):
            n_good = min(n_good, n_alike(state, final))
            found[:n_good] = [min(at_s, known) for known in found[:n_good]]
        return found


def letters(word: str) -> str:
    return "".join(sign for sign in word.casefold() if sign.isalnum())


def n_alike(before: Sequence[str], after: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))


def captions(bench: Bench, setting: Setting, item: Item) -> Captions:
    torch.manual_seed(0)
    session = bench.model(setting.model, setting.dtype).session(
        setting.choice(item),
        switching=setting.switching,  # type: ignore[arg-type]
        captions="revisable",
        stream=built(StreamOptions, setting.stream),
    )
    samples, step = item.samples(), round(setting.chunk_s * SAMPLE_RATE)
    words: list[Word] = []
    committed_s: list[float] = []
    shown, ends_s, unstable, behind_s, last_s = [], [], "", [], 0.0
    began_s = time.process_time()
    for start in [*range(0, len(samples), step), len(samples)]:
        events = session.push(samples[start : start + step]) if start < len(samples) else session.close()
        end_s = min(start + step, len(samples)) / SAMPLE_RATE
        for event in events:
            if isinstance(event, Partial):
                words += event.words
                committed_s += [end_s] * len(event.words)
                unstable, last_s = "", event.end
            elif isinstance(event, Unstable):
                unstable, last_s = event.text, event.end
        shown.append(tuple(filter(None, map(letters, [*(one.word for one in words), *unstable.split()]))))
        ends_s.append(end_s)
        behind_s += [end_s - last_s] if shown[-1] and start < len(samples) else []
    kept = [(word, at_s) for word, at_s in zip(words, committed_s, strict=True) if letters(word.word)]
    return Captions(
        tuple(shown),
        tuple(ends_s),
        tuple(word for word, _ in kept),
        tuple(at_s for _, at_s in kept),
        tuple(behind_s),
        time.process_time() - began_s,
    )


def run(given: argparse.Namespace) -> None:
    bench, items, asked = Bench(given.log), chosen(given), settings(given)
    rows, figures = [], {}
    for setting in asked:
        found = [captions(bench, setting, item) for item in counted(items, setting.name)]
        ends_s = [word.end for one in found for word in one.words]
        erased_s = [seconds for one in found for seconds in one.erased_s]
        shown, committed = (
            statistics.median(at_s - end_s for at_s, end_s in zip(times, ends_s, strict=True))
            for times in (
                [at_s for one in found for at_s in one.shown_s],
                [at_s for one in found for at_s in one.committed_s],
            )
        )
        figures[setting.name] = {
            "erasure": len(erased_s) / max(1, len(ends_s)),
            "taken_back": len(erased_s) / max(1, len(erased_s) + len(ends_s)),
            "stood_s": statistics.median(erased_s or [0.0]),
            "shown_s": shown,
            "committed_s": committed,
            "behind_s": statistics.median(seconds for one in found for seconds in one.behind_s),
            "cpu": sum(one.cpu_s for one in found) / sum(one.at_s[-1] for one in found),
        }
        rows.append([setting.name, *(f"{figure:.2f}" for figure in figures[setting.name].values())])
    heads = [
        f"{len(items)} clips",
        "normalized erasure",
        "taken back, of words shown",
        "a word taken back stood, median s",
        "shown for good, median s",
        "committed, median s",
        "last word shown is behind by, median s",
        "processor s a second",
    ]
    show_table(heads, rows)
    show_live_json("flicker", asked, {"found": figures})


def main() -> None:
    run_command(HELP, add_clips, run)
