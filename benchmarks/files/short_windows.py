"""Words wrong and processor seconds of clips in short and full windows, with and without the language given.

    python -m benchmarks files short_windows ../shared --log short.jsonl   # goes on where the log ends

The clips of `files beside errors`, a beam of 5, one thread. Full windows are those of `--audio-ctx 1500`.
Prints a Markdown table and one JSON line; compare processor seconds of one run.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks.files.beside import spoken
from benchmarks.harness.report import Log, add_shared, benchmark_parser, show_json, show_table
from sottovoce.api import load_model
from sottovoce.evaluation.scores import ScoredUtterance, score
from sottovoce.options.transcribe import TranscribeOptions

WAYS = {
    "short": (True, None),
    "full": (True, 1500),
    "short, detected": (False, None),
    "full, detected": (False, 1500),
}
"""Whether the language is given, and frames of the window."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--log", type=Path, help="readings so far: a file of JSON lines that is added to")
    parser.add_argument("--per-language", type=int, default=40, help="clips of a language at most")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, log = load_model(arguments.model), Log(arguments.log)
    items = spoken(arguments.shared / "data", arguments.per_language)
    for item in items:
        for way, (is_given, audio_ctx) in WAYS.items():
            if log.get(way, item.name) is None:
                began = time.process_time()
                text = model.transcribe(
                    item.samples,
                    language=item.language if is_given else "auto",
                    beam_size=5,
                    options=TranscribeOptions(audio_ctx=audio_ctx),
                ).collect()
                seconds = time.process_time() - began
                log.add(way, item.name, {"text": text.text, "language": text.language, "cpu_s": seconds})
    rows, figures = [], {}
    for way in WAYS:
        values = [log.found[way, item.name] for item in items]
        utterances = [
            ScoredUtterance(item.truth, value["text"], item.language)
            for item, value in zip(items, values, strict=True)
        ]
        counts, cpu_s = score(utterances).overall.wer.counts, sum(value["cpu_s"] for value in values)
        error = counts.n_errors / max(1, counts.n_reference)
        n_other = sum(value["language"] != item.language for item, value in zip(items, values, strict=True))
        rows.append([way, f"{error:.1%}", f"{cpu_s:.1f} s", str(n_other)])
        figures[way] = {"errors": round(error, 4), "cpu_s": round(cpu_s, 2), "other": n_other}
    show_table(["windows", "words wrong", "processor time", "other languages"], rows)
    show_json("files short_windows", figures)


if __name__ == "__main__":
    main()
