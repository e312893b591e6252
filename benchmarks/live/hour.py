"""One long live session of joined human speech: loops, level cost, false switches."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness.clips import PAUSES_S
from benchmarks.harness.report import percent, resident_bytes, show_table
from benchmarks.live.counts import errors, is_long, is_loop
from benchmarks.live.plots import plot_hour
from benchmarks.live.runs import AUTO, Bench, Item, add_clips, chosen, run_command, settings, show_live_json
from sottovoce.evaluation.latency import LiveRun, run_live
from sottovoce.evaluation.wer import ErrorCounts
from sottovoce.streaming.session import Session
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Event, Samples, Word

HELP = """An hour of joined human speech in one session: loops, processor time and memory, false switches.

Clips of one language (--spoken, en) with pauses between them, said again in another order where they do not
fill the hour. A word belongs to the clip in whose time it begins; "file": the same clips, each read by itself
as a whole file in float32. "frames": encoder frames computed for each frame of audio. "long": clips of which
half as many words again were heard as were said, which are printed; "loops": those that say the same again.
With base half an hour of processor time."""

FOLLOWS = ("restart", AUTO)
EVERY_MIN = 10.0
EARLY_S = 0.3
"""A word may begin so long before its clip: word times are not that right."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_clips(parser, n_clips=1000)
    parser.set_defaults(spoken=["en"])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--picture", type=Path, help="processor time and memory")


@dataclass(frozen=True, slots=True)
class Said:
    item: Item
    start_s: float
    end_s: float


class Metered:
    """A session, with a point a minute: processor seconds a second of audio, encoder frames for each frame of
    it, and memory (the hour's samples too: 220 MB). counted: returns the encoder frames computed so far.
    """

    def __init__(self, session: Session, counted: Callable[[], int]) -> None:
        self._session, self._counted = session, counted
        self._n_samples = 0
        self._last = 0.0, time.process_time(), counted()
        self.minutes: list[float] = []
        self.cpu_s: list[float] = []
        self.frames: list[float] = []
        self.resident_mb: list[float] = []

    def push(self, pcm: Samples) -> list[Event]:
        self._n_samples += len(pcm)
        events = self._session.push(pcm)
        self._note()
        return events

    def close(self) -> list[Event]:
        return self._session.close()

    def _note(self) -> None:
        at_s = self._n_samples / SAMPLE_RATE
        if at_s < 60.0 * (len(self.minutes) + 1):
            return
        last_s, began_s, before = self._last
        now, counted, passed_s = time.process_time(), self._counted(), at_s - last_s
        self.minutes.append(at_s / 60)
        self.cpu_s.append((now - began_s) / passed_s)
        self.frames.append((counted - before) / (FRAMES_PER_SECOND * passed_s))
        self.resident_mb.append(resident_bytes() / 2**20)
        self._last = at_s, now, counted
        print(f"\r{at_s / 60:.0f} min, {self.cpu_s[-1]:.3f} s/s", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Part:
    """What became of a clip: the text that was heard of it, live and from the file."""

    said: Said
    heard: str
    file: str

    @property
    def live(self) -> ErrorCounts:
        return errors(self.said.item, self.heard)

    @property
    def whole(self) -> ErrorCounts:
        return errors(self.said.item, self.file)

    @property
    def is_loop(self) -> bool:
        return is_loop(self.said.item, self.heard)


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    said, audio = joined(chosen(given), 60.0 * given.minutes)
    figures = {}
    for setting in settings(given):
        meter = Metered(bench.session(setting, said[0].item), partial(bench.n_encoded, setting))
        found = run_live(meter, audio, chunk_s=setting.chunk_s)
        files = {one.item.name: bench.whole(given.model, one.item).text for one in said}
        heard = zip(said, shared(said, found.words), strict=True)
        parts = [Part(one, text, files[one.item.name]) for one, text in heard]
        show(parts, found, meter, setting.name)
        show_long(parts)
        if given.picture:
            plot_hour(given.picture, meter.minutes, meter.cpu_s, meter.resident_mb)
        figures[setting.name] = {
            "errors": sum((one.live for one in parts), ErrorCounts()).rate,
            "errors_of_files": sum((one.whole for one in parts), ErrorCounts()).rate,
            "loops": sum(one.is_loop for one in parts),
            "long": sum(is_long(one.live) for one in parts),
            "first_language": found.first_language,
            "switches": [asdict(one) for one in found.switches],
            "cpu_s_per_s": [round(one, 4) for one in meter.cpu_s],
            "frames": [round(one, 2) for one in meter.frames],
            "resident_mb": [round(one) for one in meter.resident_mb],
        }
    n_different = len({one.item.name for one in said})
    show_live_json("hour", settings(given), {"clips": len(said), "different": n_different, "found": figures})


def joined(items: Sequence[Item], seconds: float) -> tuple[list[Said], Samples]:
    """Clips one after the other, round after round in another order, and their samples with the pauses."""
    said: list[Said] = []
    pieces: list[Samples] = []
    at, order = 0.0, random.Random(0)
    while at < seconds:
        for item in order.sample(list(items), len(items)):
            samples = item.samples()
            pause = np.zeros(round(PAUSES_S[len(said) % len(PAUSES_S)] * SAMPLE_RATE), np.float32)
            said.append(Said(item, at, at + len(samples) / SAMPLE_RATE))
            pieces += [samples, pause]
            at = said[-1].end_s + len(pause) / SAMPLE_RATE
            if at >= seconds:
                break
    return said, np.concatenate(pieces)


def shared(said: Sequence[Said], words: Sequence[Word]) -> list[str]:
    """The text that was heard of each clip."""
    texts = [""] * len(said)
    starts = np.array([one.start_s - EARLY_S for one in said])
    for word in words:
        at = max(0, int(np.searchsorted(starts, word.start, side="right")) - 1)
        texts[at] += word.word
    return texts


HEADS = ("errors", "file", "loops", "long", "switches", "cpu s/s", "frames", "memory")


def show(parts: Sequence[Part], found: LiveRun, meter: Metered, name: str) -> None:
    """A row for every ten minutes, and one for all."""
    rows = []
    total = max(meter.minutes or [0.0])
    spans = [(start, start + EVERY_MIN) for start in np.arange(0.0, total, EVERY_MIN)]
    for start, end in [*spans, (0.0, float("inf"))]:
        some = [one for one in parts if start <= one.said.start_s / 60 < end]
        switches = sum(start <= one.confirmed_s / 60 < end for one in found.switches)
        row = ["all" if end == float("inf") else f"{start:g}–{end:g} min"]
        for counts in ([one.live for one in some], [one.whole for one in some]):
            row.append(percent(sum(counts, ErrorCounts()).rate))
        row += [str(sum(one.is_loop for one in some)), str(sum(is_long(one.live) for one in some))]
        rows.append([*row, str(switches), *metered(meter, start, end)])
    show_table([name, *HEADS], rows)


def metered(meter: Metered, start: float, end: float) -> list[str]:
    """Processor time, frames and the most memory between two minutes."""
    at = [i for i, minute in enumerate(meter.minutes) if start < minute <= end]
    if not at:
        return ["", "", ""]
    cpu, frames = (np.mean([values[i] for i in at]) for values in (meter.cpu_s, meter.frames))
    return [f"{cpu:.3f}", f"{frames:.1f}", f"{max(meter.resident_mb[i] for i in at):.0f} MB"]


def show_long(parts: Sequence[Part]) -> None:
    for one in parts:
        if is_long(one.live):
            item, at = one.said.item, one.said
            what = "a loop" if one.is_loop else "too long"
            print(f"\n{what} at {at.start_s:.1f}–{at.end_s:.1f} s, {item.name}")
            print(f"  said: {item.text}\n  live: {one.heard.strip()}\n  file: {one.file}")


def main() -> None:
    run_command(HELP, add_arguments, run, FOLLOWS)
