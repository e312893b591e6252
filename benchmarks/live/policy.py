"""What single rules of the live policy are worth, one changed at a time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.tables import apart, percent, seconds, show_table
from benchmarks.live.command import run_command
from benchmarks.live.counts import Summary, beside, error_rate, summary
from benchmarks.live.frontier import FRONTIERS
from benchmarks.live.runs import Bench, Item, Live, Setting, counted
from benchmarks.live.settings import add_clips, chosen, settings, show_live_json
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE

HELP = """Rules of the live policy, one changed at a time, on clips of people and over long pauses.

Clips as they are: the defaults, end-of-word weights (--cif), the end of text forbidden as the first token of
an update, as offline decoding and SimulStreaming do, other ways to read the attention, and other waits for
the first word. Then the same clips, --turns of a set and language in one recording with pauses of --pause-s,
longer than an utterance is held: with what was said before as a prompt, and without. With base half a second
of processor time for each second of audio and row."""

HEADS = ("errors", "beside the first row, 95 %", "inserted", "loops", "latency, median", "90 %", "cpu s/s")


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table. meanwhile: a block in which the program does it another way."""

    name: str
    stream: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(default_factory=dict)
    meanwhile: Callable[[], AbstractContextManager[None]] | None = None

    def of(self, setting: Setting) -> Setting:
        label = f"{setting.label}, {self.name}" if self.meanwhile else setting.label
        stream, session = {**setting.stream, **self.stream}, {**setting.session, **self.session}
        return replace(setting, stream=stream, session=session, label=label)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_clips(parser, n_clips=40)
    parser.add_argument("--cif", type=Path, help="Simul-Whisper's weights for this size")
    parser.add_argument("--least-s", type=float, nargs="*", default=[1.0, 3.0], help="waits for a first word")
    parser.add_argument("--turns", type=int, default=4, help="clips a recording with long pauses [4]")
    parser.add_argument("--pause-s", type=float, default=4.0, help="between them [4]")


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    clips = chosen(given)
    long = with_pauses(clips, given.turns, given.pause_s)
    for setting in settings(given):
        show(bench, setting, clips, rules(given), "clips")
        print()
        show(bench, setting, long, prompts(), f"recordings with pauses of {given.pause_s:g} s")


def rules(given: argparse.Namespace) -> list[Rule]:
    found = [Rule("the defaults")]
    if given.cif:
        found.append(Rule("end-of-word weights", session={"end_of_word": str(given.cif)}))
    found.append(Rule("end of text not at once", meanwhile=end_of_text_waits))
    found += [Rule(name, meanwhile=other) for name, other in FRONTIERS.items()]
    for least in given.least_s:
        found.append(Rule(f"first word after {least:g} s", {"commit": {"min_audio_s": least}}))
    return found


def prompts() -> list[Rule]:
    return [
        Rule("what was said is the prompt"),
        Rule("no prompt", {"max_context_tokens": 0}),
        Rule("a prompt of 30 tokens at most", {"max_context_tokens": 30}),
    ]


def with_pauses(items: Sequence[Item], n_turns: int, pause_s: float) -> list[Item]:
    """So many clips of a set and language one after the other; what is left over is left out."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault((item.group, item.language), []).append(item)
    found = []
    for some in groups.values():
        for at in range(0, len(some) - n_turns + 1, n_turns):
            found.append(as_one(some[at : at + n_turns], pause_s))
    return found


def as_one(items: Sequence[Item], pause_s: float) -> Item:
    pause = np.zeros(round(pause_s * SAMPLE_RATE), np.float32)
    samples = np.concatenate([part for item in items for part in (item.samples(), pause)])
    name = " + ".join(item.name for item in items)
    text = " ".join(item.text for item in items)
    return Item(f"{name}, {pause_s:g} s apart", samples, items[0].languages, text, items[0].group)


def show(bench: Bench, setting: Setting, items: Sequence[Item], asked: Sequence[Rule], what: str) -> None:
    wholes = [bench.whole(setting.model, item) for item in counted(items, "files")]
    heard: dict[str, list[Live]] = {}
    for rule in asked:
        with (rule.meanwhile or nullcontext)():
            heard[rule.name] = [bench.live(rule.of(setting), item) for item in counted(items, rule.name)]
    first = [live.text for live in next(iter(heard.values()))]
    found = {name: summary(items, lives, wholes) for name, lives in heard.items()}
    rows = [["file", percent(error_rate(items, [one.text for one in wholes])), *[""] * (len(HEADS) - 1)]]
    for name, lives in heard.items():
        rows.append([name, *cells(found[name], apart(beside(items, first, [live.text for live in lives])))])
    show_table([f"{len(items)} {what}, {setting.name}", *HEADS], rows)
    figures = {name: asdict(one) for name, one in found.items()}
    show_live_json("policy", [setting], {"what": what, "recordings": len(items), "found": figures})


def cells(one: Summary, difference: str) -> list[str]:
    latencies = [seconds(one.latency_s), seconds(one.latency_p90_s)]
    return [percent(one.rate), difference, str(one.insertions), str(one.loops), *latencies, f"{one.cpu:.2f}"]


@contextmanager
def end_of_text_waits() -> Iterator[None]:
    """Sessions opened meanwhile may not end a text before its first token."""
    usual = LiveVocabulary.of

    @lru_cache(maxsize=8)
    def of(tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> LiveVocabulary:
        known = usual(tokenizer, n_vocab, device)
        end = (known.ids == tokenizer.eot).nonzero()[:, 0]
        return replace(known, blank=torch.cat((known.blank, end)))

    LiveVocabulary.of = of  # type: ignore[method-assign]
    try:
        yield
    finally:
        LiveVocabulary.of = usual  # type: ignore[method-assign]


def main() -> None:
    run_command(HELP, add_arguments, run)
