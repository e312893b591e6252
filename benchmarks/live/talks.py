"""What does a talk of minutes cost, part by part, and how many of its words are wrong, how late?

    python -m benchmarks live talks ../shared --minutes 5 --settings "" "mode.recompute_s=2" --log talks.jsonl

A talk is joined from people's clips (`harness.clips`): English almost without pauses, with pauses, or in
noise, and four languages in turn, with a list of them or all of the model's. A setting is a list of options
of `StreamOptions`, and of the checkpoint's encoder mode as `mode.NAME`. Processor time (user and system) is
the process's own; its parts are the encoder, the decoder's keys and values over the audio, its steps, and all
else. Delays are from a word's end in the file's transcript, in several languages its own. For another
checkout, set PYTHONPATH to its `src`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import sottovoce_kernels as kernels
import torch

from benchmarks.harness.clips import NOISE, PAUSES_S, VOXLINGUA, Clip, Part, clips
from benchmarks.harness.report import (
    Log,
    add_part,
    add_shared,
    benchmark_parser,
    listed,
    percent,
    seconds,
    show_json,
    show_table,
)
from benchmarks.harness.sounds import in_noise, noise_files
from benchmarks.language.mixed_recordings import NOISE_DB
from benchmarks.live.counts import errors, timing
from benchmarks.live.runs import (
    Bench,
    Item,
    Setting,
    built,
    options_from,
    run_from,
    source_version,
    spoken_on,
)
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.scores import ErrorCounts, run_live
from sottovoce.streaming.options import StreamOptions
from sottovoce.types import SAMPLE_RATE

LANGUAGES = ("en", "de", "es", "pl")
TURN_S = 40.0
"""Speech in one language before the next one."""
SHORT_PAUSES_S = (0.05, 0.2, 0.35, 0.1, 0.3)


@dataclass(frozen=True, slots=True)
class Kind:
    """languages: in turns. pauses_s: between clips, over and over. allowed: those of the session."""

    languages: tuple[str, ...] = ("en",)
    pauses_s: tuple[float, ...] = SHORT_PAUSES_S
    allowed: str = "given"
    has_noise: bool = False


KINDS = {
    "plain": Kind(),
    "pauses": Kind(pauses_s=PAUSES_S),
    "noise": Kind(has_noise=True),
    "listed": Kind(LANGUAGES),
    "any": Kind(LANGUAGES, allowed="auto"),
}


def talk(name: str, data: Path, part: Part, minutes: float) -> Item:
    """A recording of at most so many minutes, of whole clips."""
    kind = KINDS[name]
    piles = {
        language: _in_turns(clips(data, part, language=language, with_text=True))
        for language in kind.languages
    }
    used: list[Clip] = []
    pieces: list[np.ndarray[Any, Any]] = []
    spoken_s, left = 0.0, minutes * 60
    for language in kind.languages * 20:
        turn_s = 0.0
        while turn_s < (TURN_S if kind.languages[1:] else left) and (clip := next(piles[language], None)):
            samples = load_audio(clip.file)
            turn_s += len(samples) / SAMPLE_RATE
            used.append(clip)
            pieces.append(samples)
        spoken_s += turn_s
        if spoken_s >= left:
            break
    samples = spoken_on(pieces, kind.pauses_s)
    if kind.has_noise:
        noise = load_audio(sorted(noise_files(data).values())[0])
        samples = in_noise(samples, np.resize(noise, len(samples)), NOISE_DB)
    text = " ".join(clip.text or "" for clip in used)
    return Item(f"{name} {part} {minutes:g}", samples, kind.languages, text)


def _in_turns(chosen: Sequence[Clip]) -> Iterator[Clip]:
    """The clips of all sets in turn."""
    by_set: dict[str, list[Clip]] = {}
    for clip in chosen:
        if clip.group not in (NOISE, VOXLINGUA):
            by_set.setdefault(clip.group, []).append(clip)
    piles = [iter(pile) for pile in by_set.values()]
    while piles:
        for pile in list(piles):
            some = list(islice(pile, 1))
            yield from some
            if not some:
                piles.remove(pile)


@dataclass(eq=False)
class Parts:
    """Processor seconds in the encoder, in keys and values and in steps; their calls and frames."""

    encoder_s: float = 0.0
    keys_values_s: float = 0.0
    steps_s: float = 0.0
    n_updates: int = 0
    n_encoded: int = 0
    n_key_frames: int = 0
    n_steps: int = 0
    n_rows: int = 0

    @contextmanager
    def counted(self, backend: Any) -> Iterator[None]:
        with ExitStack() as patches:
            for owner, name, part in (
                (type(backend), "encode_incremental", self._encoder),
                (kernels.Decoder, "cross_keys_values", self._keys_values),
                (kernels.Decoder, "step", self._steps),
            ):
                patches.enter_context(patch.object(owner, name, part(getattr(owner, name))))
            yield

    def _encoder(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def encode(backend: Any, windows: Any) -> Any:
            inner_s, began = self.keys_values_s, time.process_time()
            results = compute(backend, windows)
            self.encoder_s += time.process_time() - began - (self.keys_values_s - inner_s)
            self.n_updates += len(windows)
            self.n_encoded += sum(one.n_computed for one in results)
            return results

        return encode

    def _keys_values(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def cross_keys_values(decoder: Any, states: int, n_frames: int, *others: Any) -> None:
            began = time.process_time()
            compute(decoder, states, n_frames, *others)
            self.keys_values_s += time.process_time() - began
            self.n_key_frames += n_frames

        return cross_keys_values

    def _steps(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def step(decoder: Any, rows: Any, *others: Any, **options: Any) -> None:
            began = time.process_time()
            compute(decoder, rows, *others, **options)
            self.steps_s += time.process_time() - began
            self.n_steps += 1
            self.n_rows += len(rows)

        return step


def run(bench: Bench, setting: Setting, item: Item) -> dict[str, Any]:
    key = json.dumps([setting.key, kernels.in_use(), torch.get_num_threads()])
    found = bench.log.get(key, item.name)
    if found is None:
        model = bench.model(setting.model, setting.dtype)
        options = dict(setting.stream)
        if mode := options.pop("mode", None):
            mode = {name: tuple(value) if isinstance(value, list) else value for name, value in mode.items()}
            options["encoder"] = replace(model.backend.encoder_mode, **mode)
        parts = Parts()
        session = (
            bench.session(replace(setting, stream={}), item)
            if not options
            else model.session(
                setting.choice(item),
                switching=setting.switching,  # type: ignore[arg-type]
                stream=built(StreamOptions, options),
            )
        )
        with parts.counted(model.backend._inner):  # type: ignore[attr-defined]
            live = run_live(session, item.samples(), chunk_s=setting.chunk_s)
        found = asdict(live) | {"parts": asdict(parts)}
        bench.log.add(key, item.name, found)
    return found


HEADS = (
    *(
        "",
        "words wrong",
        "delay",
        "90 %",
        "processor s a second",
        "encoder",
        "keys and values",
        "steps",
        "else",
    ),
    *("updates", "frames encoded", "key frames", "steps", "rows"),
)


def row(
    name: str, bench: Bench, model: str, runs: Sequence[tuple[Item, dict[str, Any]]]
) -> tuple[list[str], dict[str, float]]:
    """Cells and figures of one setting over recordings."""
    counts, delays, total = ErrorCounts(), list[float](), Counter[str]()
    for item, found in runs:
        live = run_from(found)
        counts += errors(item, live.text)
        delays += (
            timing(live, bench.whole(model, item), item.language).latencies_s
            if not item.languages[1:]
            else [delay - word.end for delay, word in zip(live.delays_s, live.words, strict=True)]
        )
        total.update(found["parts"] | {"cpu_s": live.cpu_s, "duration_s": live.duration_s})
    delay_s, late_s = (float(np.quantile(delays, at)) for at in (0.5, 0.9))
    duration_s, n = total["duration_s"], max(1, total["n_updates"])
    spent = [total[part] / duration_s for part in ("encoder_s", "keys_values_s", "steps_s")]
    cpu = total["cpu_s"] / duration_s
    spent.append(cpu - sum(spent))
    each = [total[count] / n for count in ("n_encoded", "n_key_frames", "n_steps", "n_rows")]
    cells = [name, percent(counts.rate or 0.0), seconds(delay_s), seconds(late_s), f"{cpu:.3f}"]
    cells += [f"{part:.3f}" for part in spent] + [f"{n / duration_s:.2f} a s"]
    cells += [f"{count:.1f}" for count in each]
    return cells, {"wrong": counts.rate or 0.0, "delay_s": delay_s, "late_s": late_s, "cpu": cpu}


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser, "dev")
    parser.add_argument("--kinds", type=listed(), default=[*KINDS])
    parser.add_argument("--minutes", type=float, default=2.5)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--settings", nargs="+", default=[""], metavar='"NAME=VALUE …"')
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--label", help="stands for the source in the log [its digest]")
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    bench = Bench(Log(given.log))
    torch.set_num_threads(given.threads)
    items = [talk(name, given.shared / "data", given.part, given.minutes) for name in given.kinds]
    runs: dict[tuple[str, str], list[tuple[Item, dict[str, Any]]]] = {}
    for name, item in zip(given.kinds, items, strict=True):
        for words in given.settings:
            setting = Setting(
                given.model,
                given.dtype,
                KINDS[name].allowed,
                "restart" if item.languages[1:] else "off",
                options_from(words.split()),
                given.label or source_version(),
            )
            runs[name, words] = [(item, run(bench, setting, item))]
    if given.kinds[1:]:
        for words in given.settings:
            runs["all", words] = [one for name in given.kinds for one in runs[name, words]]
    rows, figures = [], {}
    for (name, words), several in runs.items():
        shown = f"{name}, {words or 'as published'}"
        cells, figures[shown] = row(shown, bench, given.model, several)
        rows.append(cells)
    show_table(HEADS, rows)
    show_json("live talks", figures)


if __name__ == "__main__":
    main()
