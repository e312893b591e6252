"""What a second model gains where the first is not sure, and what it costs.

    python -m benchmarks files second_model ../shared --log second.jsonl          # clips that report
    python -m benchmarks files second_model ../shared --part dev --defer-word 0.3 0.4 0.5 0.6

English clips of people, and recordings of a dozen of them joined with pauses, read by the first model, by the
second, and by both, with a beam of 5 and one thread, in turns. Prints words wrong with their difference to
the second model alone (bootstrap 95 % interval over recordings), how much the second model read, and
processor seconds; then one JSON line. --log: texts, kept as they come; a later run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, joined, spread
from benchmarks.harness.log import add_row, read_rows
from benchmarks.harness.tables import apart, percent, show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.evaluation.wer import ScoredUtterance, compare, score
from sottovoce.offline.transcriber import SecondModel
from sottovoce.options.fallback import DeferralOptions

JOINED = 12


class Item(NamedTuple):
    """A recording, its clips in order, and which kind it is."""

    kind: str
    clips: Sequence[Clip]

    @property
    def name(self) -> str:
        return self.clips[0].name

    @property
    def text(self) -> str:
        return " ".join(clip.text or "" for clip in self.clips)


def items(data: Path, part: str, n_clips: int) -> Iterator[Item]:
    """Clips one by one, and joined."""
    chosen = spread(clips(data, "test" if part == "test" else "dev", language="en", with_text=True), n_clips)
    for clip in chosen:
        yield Item("clips", [clip])
    for first in range(0, len(chosen) - JOINED + 1, JOINED):
        yield Item("joined", chosen[first : first + JOINED])


def read(model: Model, item: Item, second: SecondModel | None) -> dict[str, Any]:
    """Transcribe a recording; its text and processor seconds, and how much a second model read."""
    source = item.clips[0].file if item.kind == "clips" else joined(item.clips, 3600.0)
    begin = time.process_time()
    transcription = model.transcribe(source, language="en", beam_size=5, second=second)
    text = transcription.collect().text
    return {
        "text": text,
        "cpu_s": time.process_time() - begin,
        "second_s": transcription.second_s,
        "duration_s": transcription.duration,
    }


def measure(found: Sequence[Item], given: Any) -> Iterator[dict[str, Any]]:
    """The rows of all recordings by all sides, those of the log first."""
    models = [load_model(name) for name in given.models]
    sides: list[tuple[str, Model, SecondModel | None]] = [
        (given.models[0], models[0], None),
        (given.models[1], models[1], None),
    ]
    for limit in given.defer_word:
        sides.append((f"both, {limit:g}", models[0], models[1].as_second(DeferralOptions(word=limit))))
    rows = {(row["side"], row["kind"], row["name"]): row for row in read_rows(given.log)}
    for item in found:
        for side, model, second in sides:
            key = (side, item.kind, item.name)
            if key not in rows:
                named = {"side": side, "kind": item.kind, "name": item.name, "said": item.text}
                rows[key] = named | read(model, item, second)
                add_row(given.log, rows[key])
            yield rows[key]


def show(rows: Sequence[dict[str, Any]], large: str) -> list[dict[str, Any]]:
    figures = []
    show_heads("recordings", "read by", "words wrong", f"beside {large}, 95 %", "read twice", "processor s")
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind]
        scored = {
            side: [ScoredUtterance(row["said"], row["text"], "en") for row in of_kind if row["side"] == side]
            for side in dict.fromkeys(row["side"] for row in of_kind)
        }
        for side, utterances in scored.items():
            own = [row for row in of_kind if row["side"] == side]
            wrong = score(utterances).overall.wer.rate
            cpu_s = sum(row["cpu_s"] for row in own)
            share = sum(row["second_s"] for row in own) / sum(row["duration_s"] for row in own)
            beside = "" if side == large else apart(compare(scored[large], utterances))
            show_row(f"{kind} ({len(own)})", side, percent(wrong), beside, percent(share), f"{cpu_s:.1f}")
            figures.append({"kind": kind, "side": side, "wer": wrong, "share": share, "cpu_s": cpu_s})
    return figures


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser)
    parser.add_argument("--models", nargs=2, default=["tiny.en", "base"], metavar=("FIRST", "SECOND"))
    parser.add_argument("--clips", type=int, default=141)
    parser.add_argument("--defer-word", type=float, nargs="+", default=[DeferralOptions().word])
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = list(measure([*items(given.shared / "data", given.part, given.clips)], given))
    show_json("files second_model", {"part": given.part, "rows": show(rows, given.models[1])})
