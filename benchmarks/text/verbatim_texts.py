"""What the rules of --clean change in text: edited sentences, in which nobody hesitates, and transcripts.

    python -m benchmarks text verbatim_texts ../shared [--spoken en=TRANSCRIPT.txt]

Edited: `data/text/sentences`, in the languages that have rules; every change there is one too many, or a slip
of the author. Spoken: a file of utterances, one a line, that somebody wrote down as they were said; counted
are fillers and immediate repetitions of one to three words, those that stand there by right among them. Needs
no model. Prints Markdown and one JSON line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json, show_row
from benchmarks.text.verbatim import REPEATED, fillers_of, words_of
from sottovoce.text.disfluency import clean_text
from sottovoce.text.disfluency_rules import DISFLUENCIES


def show_edited(folder: Path) -> dict[str, Any]:
    """How many sentences the rules change; the changed ones are printed."""
    figures: dict[str, Any] = {}
    for language in DISFLUENCIES:
        lines = (folder / f"{language}.txt").read_text(encoding="utf-8").splitlines()
        changed = [(line, clean_text(line, language)) for line in lines]
        changed = [(line, clean) for line, clean in changed if line != clean]
        figures[language] = {"sentences": len(lines), "changed": len(changed)}
        for line, clean in changed:
            print(f"{language}: {line}\n    {clean}")
    print("\n| edited text | sentences | changed |\n|---|---|---|")
    for language, found in figures.items():
        show_row(language, f"{found['sentences']}", f"{found['changed']}")
    return figures


def show_spoken(language: str, lines: Sequence[str]) -> dict[str, Any]:
    """What is in a transcript before and after."""
    print("\n| transcript | words | fillers | repetitions |\n|---|---|---|---|")
    figures: dict[str, Any] = {}
    for label, kept in (("before", lines), ("after", [clean_text(line, language) for line in lines])):
        words = [words_of(line) for line in kept]
        counts = {
            "words": sum(map(len, words)),
            "fillers": sum(fillers_of(line, language) for line in kept),
            "repetitions": sum(len(REPEATED.findall(" ".join(line))) for line in words),
        }
        figures[f"{language} {label}"] = counts
        show_row(f"{language} {label}", *map(str, counts.values()))
    return figures


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("shared", type=Path, help="folder that holds data/text")
    parser.add_argument("--spoken", action="append", default=[], metavar="LANGUAGE=FILE")
    arguments = parser.parse_args()
    figures = show_edited(arguments.shared / "data" / "text" / "sentences")
    for one in arguments.spoken:
        language, _, name = one.partition("=")
        figures |= show_spoken(language, Path(name).read_text(encoding="utf-8").splitlines())
    show_json("text verbatim_texts", figures)
