"""Recordings in one language, by default: no false switch, and openai-whisper's text otherwise.

    python -m benchmarks language one_language ../shared/data run --log one.jsonl   # goes on where it stopped
    python -m benchmarks language one_language ../shared/data show --log one.jsonl

Clips of people of every set, and long recordings joined from clips of one language. Systems: `auto` is the
default; `openai` is openai-whisper with the same weights; `plain` is --no-follow-languages --no-read-again.
All greedy (openai-whisper's default as a library), in float32, one thread; `native auto` and `native plain`
are the same in the runtime that is the default on processors. Shown are false switches, every place where the
text is not openai-whisper's, or not `native plain`'s, and processor seconds. Needs `make test-all`'s
environment.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.clips import NOISE, Clip, Part, clips, joined, spread
from benchmarks.harness.programs import openai_model
from benchmarks.harness.report import add_part, benchmark_parser, show_json
from benchmarks.language.systems import Outcome, System, ours, outcomes, read_missing
from sottovoce.api import as_whisper, load_model
from sottovoce.audio.io import load_audio
from sottovoce.models.load import load_checkpoint
from sottovoce.types import SAMPLE_RATE, Samples

LONG_S = 90.0
LEAST_CLIPS = 4
"""Clips that a long recording is joined from at least."""


@dataclass(frozen=True, slots=True)
class Item:
    """A recording in one language. text: where it is known."""

    name: str
    language: str
    files: tuple[Clip, ...]

    def audio(self) -> Samples:
        return load_audio(self.files[0].file) if len(self.files) == 1 else joined(self.files, LONG_S)

    @property
    def text(self) -> str | None:
        texts = [clip.text for clip in self.files]
        return None if None in texts else " ".join(text or "" for text in texts)


def items(data: Path, part: Part, n_clips: int, n_long: int) -> list[Item]:
    """Clips, then long recordings: languages with enough clips in turn, no clip in two of them."""
    one_language = [clip for clip in clips(data, part) if not clip.languages[1:] and clip.group != NOISE]
    result = [Item(clip.name, clip.language, (clip,)) for clip in spread(one_language, n_clips)]
    by_language: dict[str, list[Clip]] = {}
    for clip in one_language:
        by_language.setdefault(clip.language, []).append(clip)
    piles = {code: pile for code, pile in sorted(by_language.items()) if len(pile) >= LEAST_CLIPS}
    most = sorted(piles, key=lambda code: -len(piles[code]))
    long: list[Item] = []
    while most and len(long) < n_long:
        for code in list(most):
            pile, taken, length = piles[code], [], 0.0
            while pile and length < LONG_S:
                taken.append(pile.pop(0))
                length += len(load_audio(taken[-1].file)) / SAMPLE_RATE + 1.0
            if len(taken) < LEAST_CLIPS or length < LONG_S / 2:
                most.remove(code)
            elif len(long) < n_long:
                long.append(Item(f"long-{code}-{len(long)}", code, tuple(taken)))
    return [*result, *long]


def own(dtype: str, **options: Any) -> System:
    """Ours, greedy, without word times."""
    model = as_whisper(load_model("base", device="cpu", dtype=dtype), "one language")
    return ours(model, lambda item: None, words=False, beam_size=None, **options)


def openai() -> System:
    program = openai_model(load_checkpoint("base"), Path(tempfile.mkdtemp()))

    def read(item: Item, samples: Samples) -> Outcome:
        started = time.process_time()
        torch.manual_seed(0)
        result = program.transcribe(samples, fp16=False)
        spent = time.process_time() - started
        spans = [(entry["start"], entry["end"], result["language"]) for entry in result["segments"]]
        text = " ".join(entry["text"] for entry in result["segments"])
        return Outcome(text, [], spans, spent)

    return read


PLAIN = {"follow_languages": False, "read_again": False}
SYSTEMS: dict[str, Callable[[], System]] = {
    "auto": lambda: own("float32"),
    "plain": lambda: own("float32", **PLAIN),
    "openai": openai,
    "native auto": lambda: own("auto"),
    "native plain": lambda: own("auto", **PLAIN),
}
BESIDE = {"native auto": "native plain"}
"""Whose texts a system's are compared with, if not openai-whisper's."""


def difference(item: str, other: str) -> str:
    """The words in which two texts differ, in a line."""
    a, b = other.split(), item.split()
    parts = []
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind != "equal":
            parts.append(f"-[{' '.join(a[a0:a1])}] +[{' '.join(b[b0:b1])}]")
    return " ".join(parts)


def show(chosen: Sequence[Item], log: Path) -> None:
    """Every switch and every difference, then a table and one JSON line."""
    result = outcomes(log)
    rows: list[dict[str, Any]] = []
    for kind, some in (
        ("clips", [item for item in chosen if len(item.files) == 1]),
        ("long", [item for item in chosen if len(item.files) > 1]),
    ):
        for name in dict.fromkeys(system for system, _ in result):
            read = [(item, result[name, item.name]) for item in some if (name, item.name) in result]
            if not read:
                continue
            switched = [item for item, outcome in read if len({span[2] for span in outcome.spans}) > 1]
            row = {"system": name, "kind": kind, "recordings": len(read)}
            row["in several languages"] = len(switched)
            for item in switched:
                print("SWITCH", name, item.name, item.language, result[name, item.name].spans)
            other = BESIDE.get(name, "openai")
            others_too = [
                (item, outcome, result[other, item.name])
                for item, outcome in read
                if (other, item.name) in result
            ]
            unlike = [each for each in others_too if each[1].text.split() != each[2].text.split()]
            for item, outcome, theirs in unlike:
                print(
                    "TEXT",
                    name,
                    item.name,
                    item.language,
                    difference(outcome.text, theirs.text),
                    "|",
                    item.text,
                )
            row |= {f"beside {other}": len(others_too), "other text": len(unlike)}
            row["unread s"] = round(sum(end - start for _, item in read for start, end in item.told), 1)
            row["audio s"] = round(sum(len(item.audio()) for item, _ in read) / SAMPLE_RATE, 1)
            row["cpu s"] = round(sum(outcome.cpu_s for _, outcome in read), 1)
            rows.append(row)
    for row in rows:
        print(" | ".join(f"{key} {value}" for key, value in row.items()))
    show_json("language one_language", {"rows": rows})


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("action", choices=("run", "show"))
    add_part(parser)
    parser.add_argument("--clips", type=int, default=500)
    parser.add_argument("--long", type=int, default=20)
    parser.add_argument("--systems", default="auto,openai,plain")
    parser.add_argument("--first", type=int, help="read only so many of the clips")
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = items(given.data, given.part, given.clips, given.long)
    if given.action == "run":
        n_clips = given.clips if given.first is None else given.first
        some = [item for index, item in enumerate(chosen) if index < n_clips or len(item.files) > 1]
        read_missing(some, {name: SYSTEMS[name] for name in given.systems.split(",")}, given.log)
    show(chosen, given.log)
