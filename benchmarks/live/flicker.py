"""How often captions take back words that they show before they are sure, and how soon they show them."""

from __future__ import annotations

import argparse
import statistics
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

HELP = """Captions that show words before they are committed (`unstable`): words taken back for each word of
the final text (normalized erasure, Arivazhagan et al. 2020), and audio received when a word was shown for
good and when it was committed, minus the end of the word by its own times.

Takes the processor time of `errors` with one setting."""


@dataclass(frozen=True, slots=True)
class Captions:
    """shown: the letters of all words on the screen after each update. at_s: audio received then. words: the
    final text. committed_s: audio received when each was committed.
    """

    shown: tuple[tuple[str, ...], ...]
    at_s: tuple[float, ...]
    words: tuple[Word, ...]
    committed_s: tuple[float, ...]

    @property
    def n_erased(self) -> int:
        return sum(len(before) - n_alike(before, after) for before, after in pairwise(self.shown))

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
        unstable=True,
        stream=built(StreamOptions, setting.stream),
    )
    samples, step = item.samples(), round(setting.chunk_s * SAMPLE_RATE)
    words: list[Word] = []
    committed_s: list[float] = []
    shown, ends_s, unstable = [], [], ""
    for start in [*range(0, len(samples), step), len(samples)]:
        events = session.push(samples[start : start + step]) if start < len(samples) else session.close()
        end_s = min(start + step, len(samples)) / SAMPLE_RATE
        for event in events:
            if isinstance(event, Partial):
                words += event.words
                committed_s += [end_s] * len(event.words)
                unstable = ""
            elif isinstance(event, Unstable):
                unstable = event.text
        shown.append(tuple(filter(None, map(letters, [*(one.word for one in words), *unstable.split()]))))
        ends_s.append(end_s)
    kept = [(word, at_s) for word, at_s in zip(words, committed_s, strict=True) if letters(word.word)]
    return Captions(
        tuple(shown), tuple(ends_s), tuple(word for word, _ in kept), tuple(at_s for _, at_s in kept)
    )


def run(given: argparse.Namespace) -> None:
    bench, items, asked = Bench(given.log), chosen(given), settings(given)
    rows, figures = [], {}
    for setting in asked:
        found = [captions(bench, setting, item) for item in counted(items, setting.name)]
        ends_s = [word.end for one in found for word in one.words]
        erasure = sum(one.n_erased for one in found) / max(1, len(ends_s))
        shown, committed = (
            statistics.median(at_s - end_s for at_s, end_s in zip(times, ends_s, strict=True))
            for times in (
                [at_s for one in found for at_s in one.shown_s],
                [at_s for one in found for at_s in one.committed_s],
            )
        )
        rows.append([setting.name, f"{erasure:.2f}", f"{shown:.2f} s", f"{committed:.2f} s"])
        figures[setting.name] = {"erasure": erasure, "shown_s": shown, "committed_s": committed}
    heads = [f"{len(items)} clips", "normalized erasure", "shown for good, median", "committed, median"]
    show_table(heads, rows)
    show_live_json("flicker", asked, {"found": figures})


def main() -> None:
    run_command(HELP, add_clips, run)
