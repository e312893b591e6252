"""Words wrong of live words, of finals after the second pass, and of the file; processor time; partials."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import Any, cast

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
from sottovoce.evaluation.scores import run_live
from sottovoce.offline import transcription
from sottovoce.streaming.live_session import LiveSession
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Samples, SpeechEnded, Word

HELP = """Words wrong of a second pass, beside live words and the file (both passes: the beam of a file).

For the first setting of `live errors`, on its clips, with committed finals and with read ones. Processor
seconds are those of the process, for each second of audio."""
HEADS = ("words wrong", "minus the file, 95 %", "minus live words, 95 %", "processor s a second")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_clips(parser)
    parser.add_argument("--realtime", type=int, default=0, help="measure delays on so many recordings [0]")
    parser.add_argument(
        "--fit",
        action="store_true",
        help="errors and cost by window, and by the probability from which words are certain",
    )
    parser.add_argument("--break-s", type=float, default=0.0, help="a pause in the middle of each recording")
    parser.add_argument("--final-model", default="", help="of the second pass and the file [--model]")


def run(given: argparse.Namespace) -> None:
    bench, items = Bench(given.log), chosen(given)
    if given.break_s:
        items = [broken(item, given.break_s) for item in items]
    if not items:
        raise OptionError("finals: expected clips of one language with text, got none")
    committed = settings(given)[0]
    read = replace(committed, finals="read", final_model=given.final_model)
    if given.fit:
        fit(bench, read, items)
        return
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
    timed = items[: given.realtime]
    delays_s = [late for item in timed for late in final_delays_s(bench.session(read, item), item)]
    if delays_s:
        median, most = (f"{float(np.quantile(delays_s, share)):.2f} s" for share in (0.5, 0.95))
        print(f"\n{len(delays_s)} finals after the detected end of speech: median {median}, 95 % {most}")
    print(f"\n{alike} of {len(items)} recordings with the same partials, bit by bit")
    figures |= {"alike": alike, "delays_s": delays_s}
    show_live_json("finals", [committed, read], {"part": given.part, "found": figures})


WINDOWS_S = (0.0, 10.0, 15.0)
PROBABILITIES = (0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.4, 0.3)
MOST_MORE, MOST_CHANGED = 0.001, 0.01
"""Words wrong that a shorter window may add, and utterances of certain words that may change."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """An utterance: its first sample and the one behind it, and its committed words."""

    start: int
    end: int
    words: tuple[Word, ...]


def fit(bench: Bench, setting: Setting, items: Sequence[Item]) -> None:
    """Print errors and cost by window, and with the fitted one, by the probability from which words stay."""
    files = file_texts(bench, setting, items)
    spoken = [utterances(bench, setting, item) for item in counted(items, "utterances")]
    texts = [text_of(one.words for one in some) for some in spoken]
    rows, found = [["live words", *rates(items, texts, files), ""]], {}
    audio_s = sum(len(item.samples()) for item in items) / SAMPLE_RATE
    for window_s in WINDOWS_S:
        pairs = zip(items, spoken, strict=True)
        found[window_s] = [again(bench, setting, window_s, *pair) for pair in pairs]
        texts = [text_of(words) for words, _ in found[window_s]]
        cpu = sum(cpu_s for _, cpu_s in found[window_s]) / audio_s
        rows.append([f"{window_s:g} s", *rates(items, texts, files), f"{cpu:.3f}"])
    wrong = {at: error_rate(items, [text_of(words) for words, _ in some]) for at, some in found.items()}
    window_s = min(at for at, rate in wrong.items() if rate <= min(wrong.values()) + MOST_MORE)
    n_utterances = sum(map(len, spoken))
    show_table([f"{len(items)} recordings, {n_utterances} utterances", *HEADS[:2], HEADS[-1]], rows)
    print(f"\nfitted: {window_s:g} s\n")
    rows, readings, certain = [], [], 1.0
    for some, (words, _) in zip(spoken, found[window_s], strict=True):
        for one, read in zip(some, words, strict=True):
            readings.append((least_of(one), plain(text_of([one.words])) != plain(text_of([read]))))
    for probability in PROBABILITIES:
        texts = [
            text_of(
                one.words if least_of(one) >= probability else read for one, read in zip(*pair, strict=True)
            )
            for pair in zip(spoken, (words for words, _ in found[window_s]), strict=True)
        ]
        changed = [is_changed for least, is_changed in readings if least >= probability]
        if changed and sum(changed) <= MOST_CHANGED * len(changed):
            certain = probability
        share = percent(sum(changed) / len(changed)) if changed else ""
        unread = percent(len(changed) / n_utterances)
        rows.append([f"{probability:g}", unread, share, percent(error_rate(items, texts))])
    show_table(["all words at least", "unread", "of these changed", "words wrong"], rows)
    print(f"\nfitted: {certain:g}")


def rates(items: Sequence[Item], texts: Sequence[str], files: Sequence[str]) -> tuple[str, str]:
    return percent(error_rate(items, texts)), apart(beside(items, files, texts))


def least_of(spoken: Spoken) -> float:
    return min(word.probability for word in spoken.words)


def text_of(utterances: Iterable[Sequence[Word]]) -> str:
    return "".join(word.word for words in utterances for word in words).strip()


def broken(item: Item, pause_s: float) -> Item:
    """A recording with a pause at the quietest moment of its middle third."""
    samples, frame = item.samples(), SAMPLE_RATE // 50
    n_frames = len(samples) // frame
    energy = np.convolve(
        (samples[: n_frames * frame].reshape(-1, frame) ** 2).sum(axis=1), np.ones(5), "same"
    )
    at = frame * (n_frames // 3 + int(energy[n_frames // 3 : 2 * n_frames // 3].argmin()))
    pause = np.zeros(round(pause_s * SAMPLE_RATE), np.float32)
    source = np.concatenate([samples[:at], pause, samples[at:], pause])
    return replace(item, name=f"{item.name}, broken by {pause_s:g} s", source=source)


def utterances(bench: Bench, setting: Setting, item: Item) -> list[Spoken]:
    """The utterances that a session gives to its second pass."""
    found: list[Spoken] = []

    def note(pcm: Samples, start_s: float, words: Sequence[Word], stopped: Event) -> None:
        start = round(start_s * SAMPLE_RATE)
        found.append(Spoken(start, start + len(pcm), tuple(words)))

    key = f"utterances of {setting.key}"
    kept = bench.log.get(key, item.name)
    if kept is not None:
        rows = kept["utterances"]
        return [Spoken(one["start"], one["end"], words_from(one["words"])) for one in rows]
    session = bench.session(setting, item)
    assert session._second_pass is not None
    session._second_pass._read_utterance = note
    run_live(session, item.samples(), chunk_s=setting.chunk_s)
    bench.log.add(key, item.name, {"utterances": [asdict(one) for one in found]})
    return found


def again(
    bench: Bench, setting: Setting, window_s: float, item: Item, spoken: Sequence[Spoken]
) -> tuple[list[tuple[Word, ...]], float]:
    """Return the words of each utterance after a second pass that reads all, and processor seconds."""
    key = f"windows of {window_s:g} s of {setting.key}"
    kept = bench.log.get(key, item.name)
    if kept is not None:
        return [words_from(one) for one in kept["words"]], kept["cpu_s"]
    transcription.WINDOW_S, transcription.CERTAIN = window_s, math.inf
    session, samples = bench.session(setting, item), item.samples()
    assert session._second_pass is not None
    reader = cast("Any", session._second_pass._read_utterance).__self__
    began = time.process_time()
    words = [
        reader.words(samples[one.start : one.end], one.start / SAMPLE_RATE, one.words, Event())
        for one in spoken
    ]
    cpu_s = time.process_time() - began
    session.close()
    rows = [[asdict(word) for word in some] for some in words]
    bench.log.add(key, item.name, {"words": rows, "cpu_s": cpu_s})
    return words, cpu_s


def words_from(rows: Iterable[Mapping[str, Any]]) -> tuple[Word, ...]:
    return tuple(Word(**word) for word in rows)


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


def final_delays_s(session: LiveSession, item: Item) -> list[float]:
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
