"""Words wrong of live words, of finals after the second pass, and of the file; processor time; partials."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from benchmarks.harness.report import apart, percent, show_table
from benchmarks.live.counts import beside, error_rate, errors
from benchmarks.live.runs import (
    Bench,
    Item,
    Live,
    Setting,
    add_clips,
    chosen,
    counted,
    run_command,
    settings,
    show_live_json,
)
from sottovoce.api import load_model
from sottovoce.errors import OptionError
from sottovoce.offline import transcription
from sottovoce.streaming.session import Session
from sottovoce.types import SAMPLE_RATE, SpeechEnded

HELP = """Words wrong of a second pass, beside live words and the file (both passes: the beam of a file).

For the first setting of `live errors`, on its clips, with committed finals and with read ones. Processor
seconds are those of the process, for each second of audio."""
HEADS = ("words wrong", "minus the file, 95 %", "minus live words, 95 %", "processor s a second")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_clips(parser)
    parser.add_argument("--realtime", type=int, default=0, help="measure delays on so many recordings [0]")
    parser.add_argument(
        "--fit", action="store_true", help="read every utterance, and fit the words that are certain"
    )
    parser.add_argument("--final-model", default="", help="of the second pass and the file [--model]")


def run(given: argparse.Namespace) -> None:
    bench, items = Bench(given.log), chosen(given)
    if not items:
        raise OptionError("finals: expected clips of one language with text, got none")
    committed = settings(given)[0]
    read = replace(committed, finals="read", final_model=given.final_model)
    if given.fit:
        transcription.CERTAIN = math.inf
        read = replace(read, label=f"{read.label}, all read")
    files = file_texts(bench, read, items)
    live = [bench.live(committed, item) for item in counted(items, "committed")]
    passes = [bench.live(read, item) for item in counted(items, "read")]
    alike = sum(
        one.run.words == other.run.words and one.run.delays_s == other.run.delays_s
        for one, other in zip(live, passes, strict=True)
    )
    texts = {"the file": files, "live words": [one.text for one in live]}
    texts["finals"] = [one.run.final_text for one in passes]
    figures: dict[str, object] = {}
    rows = []
    for name, found in texts.items():
        of = {"live words": live, "finals": passes}.get(name, [])
        minus_file, minus_live = (beside(items, texts[base], found) for base in ("the file", "live words"))
        rate, cpu = error_rate(items, found), processor(of)
        differences = {"minus_file": asdict(minus_file), "minus_live": asdict(minus_live)}
        figures[name] = {"rate": rate, "cpu": cpu, **differences}
        shown = [percent(rate), apart(minus_file), apart(minus_live), f"{cpu:.3f}" if of else ""]
        rows.append([name, *shown])
    n_words = sum(errors(item, "").n_reference for item in items)
    show_table([f"{len(items)} recordings, {n_words} words", *HEADS], rows)
    if given.fit:
        show_certainty([each for one in passes for each in one.run.readings])
    timed = items[: given.realtime]
    delays_s = [late for item in timed for late in final_delays_s(bench.session(read, item), item)]
    if delays_s:
        median, most = (f"{float(np.quantile(delays_s, share)):.2f} s" for share in (0.5, 0.95))
        print(f"\n{len(delays_s)} finals after the detected end of speech: median {median}, 95 % {most}")
    print(f"\n{alike} of {len(items)} recordings with the same partials, bit by bit")
    figures |= {"alike": alike, "delays_s": delays_s}
    show_live_json("finals", [committed, read], {"part": given.part, "found": figures})


MOST_CHANGED = 0.01
"""Share of unread utterances whose words a second pass would change."""


def show_certainty(readings: Sequence[tuple[float, bool]]) -> None:
    """Print, by least probability of a word, the share of utterances, and of these the changed ones; and the
    least probability with at most MOST_CHANGED of them.
    """
    ordered = sorted(readings, reverse=True)
    changed = np.cumsum([is_changed for _, is_changed in ordered]) / np.arange(1, len(ordered) + 1)
    rows = []
    for least in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        n = sum(each >= least for each, _ in ordered)
        rows.append([f"{least:g}", percent(n / len(ordered)), percent(changed[n - 1]) if n else ""])
    show_table(["all words at least", "utterances", "of these changed"], rows)
    n = max((at for at, share in enumerate(changed, 1) if share <= MOST_CHANGED), default=0)
    print(f"\nfitted: {ordered[n - 1][0] if n else 1.0:.3f}, {percent(n / len(ordered))} of utterances")


def file_texts(bench: Bench, setting: Setting, items: Sequence[Item]) -> list[str]:
    """Return the transcript of each whole recording, at the defaults of a file."""
    name = setting.final_model or setting.model
    key = f"file of {name}, {setting.dtype}, {setting.label}"
    model = None
    texts: list[str] = []
    for item in counted(items, "files"):
        found = bench.log.get(key, item.name)
        if found is None:
            model = model or load_model(name, device="cpu", dtype=setting.dtype)
            choice = setting.choice(item)
            found = {"text": model.transcribe(item.samples(), language=choice).text}
            bench.log.add(key, item.name, found)
        texts.append(found["text"])
    return texts


def final_delays_s(session: Session, item: Item) -> list[float]:
    """Push a recording and silence in real time; return the delay of each final, on the clock."""
    ready: list[float] = []
    session.on_finals(lambda: ready.append(time.monotonic()))
    samples = np.concatenate((item.samples(), np.zeros(3 * SAMPLE_RATE, np.float32)))
    step, ended, began = SAMPLE_RATE // 4, list[float](), time.monotonic()
    for start in range(0, len(samples), step):
        due = began + (start + step) / SAMPLE_RATE
        time.sleep(max(0.0, due - time.monotonic()))
        events = session.push(samples[start : start + step], realtime=True)
        ended += [due for event in events if isinstance(event, SpeechEnded)]
    session.close()
    return [at - due for at, due in zip(ready, ended, strict=False)]


def processor(lives: Sequence[Live]) -> float:
    audio_s = sum(live.run.duration_s for live in lives)
    return sum(live.run.cpu_s for live in lives) / audio_s if audio_s else 0.0


def main() -> None:
    run_command(HELP, add_arguments, run)
