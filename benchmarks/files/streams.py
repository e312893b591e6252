"""Long files in batches: windows without earlier text, and in streams that have it (arXiv 2608.31170).

    python -m benchmarks files streams ../shared --log streams.jsonl
    python -m benchmarks files streams ../shared --log dev.jsonl --part dev --minutes 3

Clips of one set become a recording, 0.5 to 1 s of silence between them, up to --minutes; the two large sets
give a second recording, for the first two rows alone. Rows are called MODE-SIZE-CONDITIONED: vad-8-no,
seek-1-yes, streams-8-yes; a row of streams also gives "-again", where first windows are read again. A window
is encoded once a recording, alone, and its time counted in every row, so that rows differ in prompts alone.
Words are shared among clips by their alignment; intervals are over clips. Goes on where the log ends.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.harness.report import (
    add_shared,
    benchmark_parser,
    listed,
    show_heads,
    show_json,
    show_row,
)
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.latency import ReferenceSegment, resegment
from sottovoce.evaluation.wer import ScoredUtterance, ScoreOptions, compare, score
from sottovoce.models.backend import Backend
from sottovoce.offline import batched
from sottovoce.offline.pieces import PackedWindow
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.normalize import composed, normalizer_for
from sottovoce.types import SAMPLE_RATE, EncoderOutput, Features, Samples, Segment

ROWS = (
    *("vad-8-no", "streams-8-yes", "vad-1-yes", "streams-4-yes"),
    *("vad-1-no", "seek-1-yes", "vad-4-no", "seek-1-no"),
)
AGAIN = "-again"
BASE, CONDITIONED = "vad-8-no", "vad-1-yes"
LONGEST_PHRASE, LEAST_COPIES = 6, 4
"""As many copies in a row of so many words are counted as repeated text."""
PLAIN = ScoreOptions(normalization="none", n_resamples=2000)


class Said(NamedTuple):
    start_s: float
    end_s: float
    text: str


class Joined(NamedTuple):
    name: str
    language: str
    clips: list[Said]
    samples: Samples


def recordings(data: Path, part: str, minutes: float) -> Iterator[Joined]:
    """Yield recordings; training clips of even number develop, those of odd number and tests report."""
    lines = (data / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("human") and row.get("text")]

    def of(group: str, split: str = "") -> list[dict[str, Any]]:
        found = [row for row in rows if row["id"].startswith(f"{group}/")]
        return [row for row in found if str(row.get("split") or "").startswith(split)]

    def book_order(row: dict[str, Any]) -> str:
        found = re.search(r"_([ab]\d{4})_", row["id"])
        return found.group(1) if found else "z" + row["id"]

    odd = int(part == "test")
    english = _once(of("kathleen-en", "test") * odd + of("kathleen-en", "train")[odd::2])
    german = _once(of("kerstin-de", "test") * odd + of("kerstin-de", "train")[odd::2])
    english.sort(key=book_order)
    sets = [("en-kathleen", english), ("de-kerstin", german)]
    if part == "test":
        libri = sorted(of("librispeech-mini", "test"), key=lambda row: str(row["id"]))
        hindi = sorted(of("hindi-hsc"), key=lambda row: str(row["id"]))
        sets += [("en-librispeech", libri), ("es-dona", of("dona-es"))]
        sets += [("pl-nemo", _once(of("nemo-pl"))), ("hi-hsc", hindi)]
    draws = np.random.default_rng(0)
    n_clips = {}
    for name, chosen in sets:
        one = _joined(name, chosen, data, minutes, draws)
        n_clips[name] = len(one.clips)
        yield one
    draws = np.random.default_rng(1)
    for name, chosen in (("de-kerstin", german), ("en-kathleen", english)) if odd else ():
        yield _joined(f"{name}-2", chosen[n_clips[name] :], data, minutes, draws)


def _once(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["text"], row)
    return list(found.values())


def _joined(
    name: str, rows: Sequence[dict[str, Any]], data: Path, minutes: float, draws: np.random.Generator
) -> Joined:
    clips: list[Said] = []
    pieces: list[Samples] = []
    at = 0
    for row in rows:
        audio = load_audio(data / row["file"])
        clips.append(Said(at / SAMPLE_RATE, (at + len(audio)) / SAMPLE_RATE, row["text"]))
        pieces += [audio, np.zeros(int(draws.uniform(0.5, 1.0) * SAMPLE_RATE), np.float32)]
        at += len(pieces[-2]) + len(pieces[-1])
        if at > minutes * 60 * SAMPLE_RATE:
            break
    return Joined(name, name.split("-", maxsplit=1)[0], clips, np.concatenate(pieces))


class Meter:
    """Counts the calls of a backend, and keeps encoder states by their window."""

    def __init__(self, backend: Backend) -> None:
        self.counts: Counter[str] = Counter()
        self._kept: dict[tuple[bytes, int, int], tuple[EncoderOutput, float]] = {}
        kind = type(backend)
        self._encode = kind.encode
        kind.encode = lambda own, features: self._encoded(own, features)  # type: ignore[method-assign, assignment]
        for name in ("step", "step_best"):
            setattr(kind, name, self._counted(getattr(kind, name)))

    def forget(self) -> None:
        self._kept.clear()

    def _counted(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(backend: Backend, tokens: torch.Tensor, *rest: Any, **named: Any) -> Any:
            began = time.process_time()
            found = own(backend, tokens, *rest, **named)
            spent = time.process_time() - began
            self.counts.update(passes=1, rows=len(tokens), tokens=tokens.numel(), decode_s=spent)  # type: ignore[call-overload]
            return found

        return call

    def _encoded(self, backend: Backend, features: Features) -> EncoderOutput:
        found = []
        for index, n_frames in enumerate(features.n_content_frames):
            mel = features.mel[index : index + 1].contiguous()
            key = hashlib.sha1(mel.numpy().tobytes()).digest(), n_frames, mel.shape[-1]
            if key not in self._kept:
                began = time.process_time()
                one = self._encode(backend, Features(mel, (n_frames,)))
                self._kept[key] = one, time.process_time() - began
            else:
                self.counts.update(saved_s=self._kept[key][1])  # type: ignore[call-overload]
            self.counts.update(encoded=1, encode_s=self._kept[key][1])  # type: ignore[call-overload]
            found.append(self._kept[key][0])
        return EncoderOutput(torch.cat([one.states for one in found]), features.n_content_frames)


def plain(segments: Sequence[Segment]) -> list[list[Any]]:
    return [[round(one.start, 2), round(one.end, 2), one.text] for one in segments]


class Runs:
    """Texts and costs by row and recording, in a log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        if log.exists():
            for line in log.read_text(encoding="utf-8").splitlines():
                run = json.loads(line)
                self.found[run["row"]][run["recording"]] = run

    def read(self, model: Model, meter: Meter, row: str, one: Joined) -> None:
        kind, size, conditioned = row.split("-")
        key = row + AGAIN * (kind == "streams")
        if one.name in self.found[key]:
            return
        options = TranscribeOptions(
            mode="seek" if kind == "seek" else "vad",
            batch_size=int(size),
            condition_on_previous_text=conditioned == "yes",
        )
        before, began = Counter(meter.counts), time.process_time()

        def add(key: str, segments: Sequence[Segment]) -> None:
            spent = Counter(meter.counts)
            spent.subtract(before)
            cpu_s = time.process_time() - began + spent.pop("saved_s", 0)
            run = {"row": key, "recording": one.name, "segments": plain(segments), "cpu_s": cpu_s, **spent}
            self.found[key][one.name] = run
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run, ensure_ascii=False) + "\n")

        own = batched._StreamsLoop._with_first_windows_again

        def again(
            loop: batched._StreamsLoop,
            parts: Sequence[Sequence[PackedWindow]],
            streams: Sequence[batched._Stream],
        ) -> list[list[Segment]]:
            add(row, [segment for stream in streams for segment in stream.segments])
            return own(loop, parts, streams)

        batched.CONDITIONS_BATCHES = kind == "streams"
        batched._StreamsLoop._with_first_windows_again = again  # type: ignore[method-assign]
        segments = list(model.transcribe(one.samples, language=one.language, options=options))
        batched._StreamsLoop._with_first_windows_again = own  # type: ignore[method-assign]
        add(key, segments)


def by_clip(one: Joined, run: dict[str, Any]) -> list[ScoredUtterance]:
    normalize = normalizer_for(one.language)
    truths = [normalize(composed(clip.text)) for clip in one.clips]
    segments = [
        ReferenceSegment(tuple(truth.split()), clip.start_s, clip.end_s)
        for truth, clip in zip(truths, one.clips, strict=True)
    ]
    words = normalize(composed(" ".join(text.strip() for _, _, text in run["segments"]))).split()
    return [
        ScoredUtterance(truth, " ".join(words[piece.start : piece.stop]), one.name)
        for truth, piece in zip(truths, resegment(words, segments), strict=True)
    ]


def n_repeated(words: Sequence[str]) -> int:
    """Count words of LEAST_COPIES and more copies in a row of a phrase, without the first copy."""
    n = at = 0
    while at < len(words):
        most = 0
        for length in range(1, LONGEST_PHRASE + 1):
            phrase = words[at : at + length]
            copies = 1
            while words[at + copies * length : at + (copies + 1) * length] == phrase:
                copies += 1
            if copies >= LEAST_COPIES:
                most = max(most, (copies - 1) * length)
        n += most
        at += max(1, most)
    return n


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--part", choices=("dev", "test"), default="test")
    parser.add_argument("--minutes", type=float, default=13.0)
    parser.add_argument("--rows", type=listed(), default=list(ROWS))
    parser.add_argument("--only", type=listed(), help="recordings to score")
    show(parser.parse_args())


def show(given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    joined = list(recordings(given.shared / "data", given.part, given.minutes))
    model, runs = load_model("base"), Runs(given.log)
    meter = Meter(model.backend)
    for one in joined:
        meter.forget()
        is_second = one.name.endswith("-2")
        for row in given.rows[:2] if is_second else given.rows:
            runs.read(model, meter, row, one)
    joined = [one for one in joined if not given.only or one.name in given.only]
    names = [one.name for one in joined]
    rows = {row: found for row, found in runs.found.items() if all(name in found for name in names)}
    scored = {row: [clip for one in joined for clip in by_clip(one, rows[row][one.name])] for row in rows}
    heads = (f"minus {BASE}", f"minus {CONDITIONED}", "too many", "missing", "other", "repeated")
    show_heads("row", *names, "all", *heads, "processor s", "passes", "rows")
    for row, clips in scored.items():
        report = score(clips, PLAIN)
        all_, own = report.overall.wer, [report.by_language[name].wer.rate or 0.0 for name in names]
        counts = all_.counts
        differences = [
            f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
            for found in (compare(scored[base], clips, "word", PLAIN) for base in (BASE, CONDITIONED))
        ]
        costs = [sum(rows[row][name][key] for name in names) for key in ("cpu_s", "passes", "rows")]
        texts = [[text for _, _, text in rows[row][name]["segments"]] for name in names]
        loops = sum(n_repeated(" ".join(text).casefold().split()) for text in texts)
        show_row(
            row,
            *(f"{100 * rate:.1f}" for rate in own),
            f"{100 * (all_.rate or 0):.1f} ({100 * (all_.low or 0):.1f} to {100 * (all_.high or 0):.1f})",
            *differences,
            *(counts.insertions, counts.deletions, counts.substitutions, loops),
            *(f"{cost:.0f}" for cost in costs),
        )
    show_json("files streams", {row: score(clips, PLAIN).to_dict() for row, clips in scored.items()})


if __name__ == "__main__":
    main()
