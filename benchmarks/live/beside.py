"""Live translation into English by Whisper after each utterance, against that of the whole file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.harness.report import seconds, show_table
from benchmarks.live.runs import Bench, Item, Setting, counted, run_command, settings, show_live_json
from benchmarks.live.translate import add_foreign_clips, chrf, foreign_clips, interval, scored
from sottovoce.evaluation.latency import run_live
from sottovoce.streaming.session import Session
from sottovoce.translation.live_translator import LiveTranslator, mark_newest
from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator
from sottovoce.types import Event, Final, Samples

HELP = """English beside live speech, by Whisper itself: chrF against the translation of the whole file.

Clips of other languages than English; their finals' translations one after the other. Behind: processor
time from a final to its translation. Early: finals before which something was shown; kept: those that begin
with it. Cpu: for each second of audio, of the translation and of the transcription without it. With base some
three seconds of processor time for each clip and row. Needs sacrebleu."""

NEVER = 10**6
"""Words that no utterance has: nothing is translated before its end."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What came of a recording.

    finals: their translations. early: what was shown before each. behind_s: processor seconds from each final
    to its translation. session_cpu_s, own_cpu_s: of the transcription, and of the translation.
    """

    finals: tuple[str, ...]
    early: tuple[str, ...]
    behind_s: tuple[float, ...]
    session_cpu_s: float
    own_cpu_s: float
    duration_s: float


class Translated:
    """A session whose audio and events a translator gets too. cpu_s: processor seconds of the translation."""

    def __init__(self, session: Session, translator: WhisperTranslator, n_new_words: int) -> None:
        self._session, self._translator = session, translator
        self._live = LiveTranslator(translator, n_new_words)
        self._shown: list[str] = []
        self.finals: list[str] = []
        self.early: list[str] = []
        self.behind_s: list[float] = []
        self.cpu_s = 0.0

    def push(self, pcm: Samples) -> list[Event]:
        self._translator.push(pcm)
        return self._translate(self._session.push(pcm))

    def close(self) -> list[Event]:
        return self._translate(self._session.close())

    def _translate(self, events: list[Event]) -> list[Event]:
        began = time.process_time()
        for event, is_newest in mark_newest(events):
            for told in self._live.take(event, is_newest=is_newest):
                if told.is_final:
                    self.finals.append(told.text)
                    self.behind_s.append(time.process_time() - began)
                else:
                    self._shown.append(told.text)
            if isinstance(event, Final) and event.text.strip():
                self.early.append(" ".join(self._shown))
                self._shown.clear()
        self.cpu_s += time.process_time() - began
        return events


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_foreign_clips(parser, n_clips=16)
    parser.add_argument(
        "--new-words",
        type=lambda text: [int(one) or NEVER for one in text.split(",")],
        default=[N_NEW_WORDS],
        metavar="N[,N…]",
        help=f"words before an utterance is translated again; 0: at its end alone [{N_NEW_WORDS}]",
    )


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items, wholes = foreign_clips(given, bench)
    references = [whole.text for whole in wholes]
    rows, figures, asked = [], {}, settings(given)
    for setting in asked:
        for n_words in given.new_words:
            name = setting.name + (", at the end alone" if n_words == NEVER else f", every {n_words} words")
            found = [beside(bench, setting, item, n_words) for item in counted(items, name)]
            figures[name] = figures_of(found, references)
            rows.append([name, *cells(figures[name])])
    heads = ("chrF, 95 %", "behind, median", "90 %", "early", "kept", "cpu s/s", "without")
    show_table([f"{len(items)} clips", *heads], rows)
    show_live_json("beside", asked, {"part": given.part, "clips": len(items), "found": figures})


def beside(bench: Bench, setting: Setting, item: Item, n_new_words: int) -> Beside:
    """What a session of this setting, and the translator beside it, make of a recording."""
    key = json.dumps({"program": "beside", "words": n_new_words, **asdict(setting)}, sort_keys=True)
    found = bench.log.get(key, item.name)
    if found is None:
        found = asdict(_run(bench, setting, item, n_new_words))
        bench.log.add(key, item.name, found)
    lists = {name: tuple(found[name]) for name in ("finals", "early", "behind_s")}
    return Beside(**{**found, **lists})


def _run(bench: Bench, setting: Setting, item: Item, n_new_words: int) -> Beside:
    session = bench.session(setting, item)
    both = Translated(session, WhisperTranslator(bench.model(setting.model, setting.dtype)), n_new_words)
    run = run_live(both, item.samples(), chunk_s=setting.chunk_s)
    lists = tuple(both.finals), tuple(both.early), tuple(both.behind_s)
    return Beside(*lists, run.cpu_s - both.cpu_s, both.cpu_s, run.duration_s)


def text_of(one: Beside) -> str:
    return " ".join(one.finals)


def figures_of(found: Sequence[Beside], references: Sequence[str]) -> dict[str, float]:
    texts = [text_of(one) for one in found]
    low, high = interval(texts, references)
    behind = [delay for one in found for delay in one.behind_s]
    pairs = [pair for one in found for pair in zip(one.early, one.finals, strict=True) if pair[0]]
    audio_s = sum(one.duration_s for one in found)
    return {
        "chrf": chrf(texts, references),
        "low": low,
        "high": high,
        "behind_s": float(np.median(behind)),
        "behind_90_s": float(np.quantile(behind, 0.9)),
        "early": len(pairs),
        "kept": sum(final.startswith(shown) for shown, final in pairs),
        "finals": len(behind),
        "cpu": sum(one.own_cpu_s for one in found) / audio_s,
        "session_cpu": sum(one.session_cpu_s for one in found) / audio_s,
    }


def cells(one: dict[str, float]) -> list[str]:
    return [
        scored(one),
        seconds(one["behind_s"]),
        seconds(one["behind_90_s"]),
        f"{one['early']} of {one['finals']}",
        str(one["kept"]),
        f"{one['cpu']:.2f}",
        f"{one['session_cpu']:.2f}",
    ]


def main() -> None:
    run_command(HELP, add_arguments, run)
