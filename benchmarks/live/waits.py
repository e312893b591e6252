"""What words wait for, and which words that were read turn out to be others."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.tables import seconds, show_row, show_table
from benchmarks.live.command import run_command
from benchmarks.live.counts import pairs, timed_units
from benchmarks.live.runs import Bench, Item, Setting, Whole, counted
from benchmarks.live.settings import add_clips, chosen, settings, show_live_json
from sottovoce.evaluation.latency import LiveRun, run_live
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.commit_policy import Agreement
from sottovoce.streaming.options import CommitOptions
from sottovoce.streaming.words import HypothesisWord
from sottovoce.types import FRAMES_PER_SECOND

HELP = """What words wait for after they were spoken, and which of the words that were read stay.

The first table: seconds from the end of a word in the file's transcript to its coming, by what held it
back, over words that both have. The second: words in readings while speech went on, by their probability and
their distance from the end of the audio (frames of 20 ms), and how many of them were others in the end; only
where all words before them stayed. With base half a second of processor time for each second of audio."""

PROBABILITIES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
DISTANCES = (0, 10, 15, 20, 25, 35, 50, 75, 125)
REASONS = (
    *("the next update", "it was not read yet", "another word was read", "little audio was in"),
    *("it was near the end", "it was unsure", "a word before it waited", "the rest was read out"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_clips(parser, n_clips=40)


@dataclass(frozen=True, slots=True)
class Seen:
    """A word in a reading. n_behind: frames from where it was attended to the end of the audio."""

    letters: str
    probability: float
    n_behind: int


@dataclass(frozen=True, slots=True)
class Update:
    """A reading: the audio it had, how many words were said before, its words, and how many were safe.

    early: whether little audio was in.
    """

    end_s: float
    n_said: int
    words: tuple[Seen, ...]
    n_safe: int
    early: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """A recording: its live run, the readings on the way, and the file's transcript."""

    item: Item
    whole: Whole
    run: LiveRun
    updates: tuple[Update, ...]


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items = chosen(given)
    wholes = [bench.whole(given.model, item) for item in counted(items, "files")]
    for setting in settings(given):
        both = zip(counted(items, setting.name), wholes, strict=True)
        found = [watched(bench, setting, item, whole) for item, whole in both]
        options = CommitOptions(**setting.stream.get("commit", {}))
        waits = [held for one in found for held in waited(one, options)]
        read = readings(found)
        show_waits(waits, setting.name)
        print()
        show_readings(read)
        figures = {"words": len(waits), "waits_s": mean_waits(waits), "readings": [list(one) for one in read]}
        show_live_json("waits", [setting], figures)


def watched(bench: Bench, setting: Setting, item: Item, whole: Whole) -> Watched:
    session = bench.session(setting, item)
    with watching() as updates:
        found = run_live(session, item.samples(), chunk_s=setting.chunk_s)
    return Watched(item, whole, found, tuple(updates))


@contextmanager
def watching() -> Iterator[list[Update]]:
    """Every reading of the session that runs meanwhile."""
    seen: list[Update] = []
    n_said = 0
    usual, usually_committed = Agreement.count_stable, Agreement.drop_committed

    def n_safe(self: Agreement, words: Sequence[HypothesisWord], window: AudioWindow) -> int:
        found = usual(self, words, window)
        known = tuple(
            Seen(one.letters, one.word.probability or 0.0, window.n_frames - one.last_frame) for one in words
        )
        early = window.n_frames < self._options.min_audio_s * FRAMES_PER_SECOND
        seen.append(Update(window.end_s, n_said, known, found, early))
        return found

    def committed(self: Agreement, n_words: int) -> None:
        nonlocal n_said
        n_said += n_words
        usually_committed(self, n_words)

    Agreement.count_stable, Agreement.drop_committed = n_safe, committed  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Agreement.count_stable, Agreement.drop_committed = usual, usually_committed  # type: ignore[method-assign]


def letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def waited(one: Watched, options: CommitOptions) -> Iterator[Counter[str]]:
    """Of each word that both transcripts have: seconds by what it waited for."""
    language = one.item.language
    known = pairs(timed_units(one.run.words, language), timed_units(one.whole.words, language))
    for unit, spoken in known:
        came_s, at_s = one.run.delays_s[unit.at], spoken.end_s
        held: Counter[str] = Counter()
        reason = REASONS[0]
        for update in (*one.updates, None):
            until_s = came_s if update is None else min(update.end_s, came_s)
            if until_s > at_s:
                held[reason] += until_s - at_s
                at_s = until_s
            if update is not None and update.end_s >= spoken.end_s:
                reason = why(update, unit.at, letters(one.run.words[unit.at].word), options)
        yield held


def why(update: Update, place: int, said: str, options: CommitOptions) -> str:
    """What a word waits for after a reading; place: among the words of the session."""
    at = place - update.n_said
    if at >= len(update.words):
        return "it was not read yet"
    if at < 0 or at < update.n_safe:
        return "the rest was read out"
    if update.words[at].letters != said:
        return "another word was read"
    if update.early:
        return "little audio was in"
    if at > update.n_safe:
        return "a word before it waited"
    is_sure = update.words[at].probability >= options.commit_prob
    return "it was near the end" if is_sure else "it was unsure"


def mean_waits(waits: Sequence[Counter[str]]) -> dict[str, float]:
    """Seconds a word, by reason."""
    return {reason: round(sum(one[reason] for one in waits) / max(1, len(waits)), 3) for reason in REASONS}


def readings(found: Sequence[Watched]) -> list[tuple[float, int, bool, int, int]]:
    """(least probability, least distance, whether little audio was in, words read, others in the end)."""
    cells: dict[tuple[float, int, bool], list[bool]] = defaultdict(list)
    for one in found:
        final = [letters(word.word) for word in one.run.words]
        for update in one.updates:
            for at, seen in enumerate(update.words, update.n_said):
                stays = at < len(final) and final[at] == seen.letters
                probability = PROBABILITIES[
                    int(np.searchsorted(PROBABILITIES, seen.probability, "right")) - 1
                ]
                distance = DISTANCES[max(0, int(np.searchsorted(DISTANCES, seen.n_behind, "right")) - 1)]
                cells[probability, distance, update.early].append(stays)
                if not stays:
                    break
    return [(*key, len(value), value.count(False)) for key, value in sorted(cells.items())]


def show_waits(waits: Sequence[Counter[str]], name: str) -> None:
    found = mean_waits(waits)
    rows = [[reason, seconds(value)] for reason, value in found.items()]
    show_table([f"{name}, {len(waits)} words wait until", "seconds a word"], rows)
    total = [sum(one.values()) for one in waits] or [0.0]
    show_median = [seconds(float(np.median(total))), seconds(float(np.quantile(total, 0.9)))]
    show_row(f"all: median {show_median[0]}, 90 % {show_median[1]}", f"{seconds(float(np.mean(total)))}")


def show_readings(read: Sequence[tuple[float, int, bool, int, int]]) -> None:
    for early in (True, False):
        rows = []
        for distance in DISTANCES:
            row = [f"{distance} frames"]
            for probability in PROBABILITIES:
                cell = [one[3:] for one in read if one[:3] == (probability, distance, early)]
                row.append(f"{cell[0][1]} of {cell[0][0]}" if cell else "")
            rows.append(row)
        show_table(
            ["in the first seconds" if early else "later", *(f"{one:g}–" for one in PROBABILITIES)], rows
        )
        print()


def main() -> None:
    run_command(HELP, add_arguments, run)
