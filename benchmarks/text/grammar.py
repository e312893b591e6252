"""Does a grammar help where only certain things are said, and what does it cost?

    python -m benchmarks text grammar ../shared

Single spoken digits of people (half a second between silence, as a command is), read as they are, with the
words of the digits as prompt, and with a grammar of one digit, hard and with penalties; digits of even number
in the manifest are `dev`. What is written is compared in words ("3" is "three"). Prints the recordings that
are right, and those where nothing was written, seconds, and what a hypothesis and token takes in the grammar;
then one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce import load_model
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.lm.grammar import Grammar, GrammarModel
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Samples

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = 'root ::= digit "."?\ndigit ::= [0-9] | ' + " | ".join(f'"{name.capitalize()}"' for name in NAMES)
SILENCE = np.zeros(SAMPLE_RATE // 2, np.float32)
SETTINGS: dict[str, tuple[bool, float | None]] = {
    "as it is": (False, None),
    "digits as prompt": (False, None),
    "grammar": (True, None),
    "grammar, penalty 5": (True, 5.0),
    "grammar, penalty 100": (True, 100.0),
}


class Clock:
    """Seconds within a grammar, and the hypotheses whose next tokens it told."""

    def __init__(self) -> None:
        self.seconds, self.n_rows = 0.0, 0

    def watch(self) -> None:
        scored = GrammarModel.score

        def timed(
            model: GrammarModel, states: torch.Tensor, tokens: torch.Tensor | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            begun = time.perf_counter()
            found = scored(model, states, tokens)
            self.seconds += time.perf_counter() - begun
            self.n_rows += len(states) if tokens is None else 0
            return found

        GrammarModel.score = timed  # type: ignore[method-assign]


def words(text: str) -> list[str]:
    """The digits of a text, as words; whatever else was written counts too."""
    apart = "".join(f" {NAMES[int(letter)]} " if letter in "0123456789" else letter for letter in text)
    return plain(apart).split()


def digits(data: Path, part: str, n_clips: int) -> list[tuple[Samples, str]]:
    """Recordings of one digit and its name, evenly over speakers and digits."""
    rows = [json.loads(line) for line in (data / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    every = [row for row in rows if row["id"].startswith("fsdd-en/")]
    found = every[1::2] if part == "test" else every[::2]
    chosen = [found[i] for i in np.random.default_rng(0).permutation(len(found))[:n_clips]]
    return [
        (np.concatenate([SILENCE, load_audio(data / row["file"]), SILENCE]), row["text"]) for row in chosen
    ]


def read(model: Model, samples: Samples, setting: str) -> list[str]:
    has_grammar, penalty = SETTINGS[setting]
    prompt = ", ".join(NAMES) + "." if setting == "digits as prompt" else None
    options = TranscribeOptions(decoding=DecodingOptions(beam_size=5), initial_prompt=prompt)
    fusion = model.fusion(grammar=Grammar(DIGITS), grammar_penalty=penalty) if has_grammar else None
    return words(model.transcribe(samples, language="en", options=options, fusion=fusion).text)


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="auto")
    add_part(parser)
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model, dtype=given.dtype)
    items = digits(given.shared / "data", given.part, given.clips)
    print(f"{len(items)} recordings of a digit, {given.model}, a beam of 5")
    show_heads("reading", "right", "nothing written", "s a recording", "ms a hypothesis and token")

    rows = {}
    clock = Clock()
    clock.watch()
    for setting in SETTINGS:
        clock.seconds, clock.n_rows, begun = 0.0, 0, time.perf_counter()
        found = [read(model, samples, setting) for samples, _ in items]
        seconds = (time.perf_counter() - begun) / len(items)
        row = rows[setting] = {
            "right": sum(heard == [name] for heard, (_, name) in zip(found, items, strict=True)),
            "nothing": found.count([]),
            "seconds": round(seconds, 2),
            "ms_a_token": round(1000 * clock.seconds / clock.n_rows, 3) if clock.n_rows else None,
        }
        told = "-" if row["ms_a_token"] is None else f"{row['ms_a_token']:.2f}"
        show_row(setting, f"{row['right']}", f"{row['nothing']}", f"{seconds:.2f}", told)
        wrong = [
            (" ".join(heard), name) for heard, (_, name) in zip(found, items, strict=True) if heard != [name]
        ]
        print(setting, wrong[:12], file=sys.stderr)
    show_json("text grammar", {"model": given.model, "part": given.part, "n_clips": len(items), "rows": rows})
