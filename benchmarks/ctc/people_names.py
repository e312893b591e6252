"""Rare names that people say, as hotwords of a CTC search: how many are written, and how many nobody said.

    python -m benchmarks ctc people_names --data ../shared/data --model base

Two readers, English and German. A name is a word with a capital inside its sentence that is not among the
20,000 most frequent of its language; all names of a part are boosted in every clip of the part, in those that
hold none too. The weight is chosen on the clips that `recipes.ctc_head` held out of its training, by recall
less the share of clips with a false alarm; the part that reports is reported. Beam 32, no language model.

Prints a table and then one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.ctc.people import BEAM
from benchmarks.ctc.steps import letters_of
from benchmarks.ctc.texts import spelled
from benchmarks.harness import clips as human_clips
from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_heads, show_json, show_row
from benchmarks.text.names import frequent_words, names_of
from recipes.ctc_head.human import human_clips_of
from sottovoce.api import Model, load_model
from sottovoce.cli.ctc_decode import recorded_emissions
from sottovoce.ctc import CtcDecoder
from sottovoce.evaluation.wer import count_edits

READERS = {"en": "kathleen-en", "de": "kerstin-de"}
WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, slots=True)
class NamedClip:
    """A sentence in the labels' letters, the names in it, and its emissions (T, V)."""

    text: str
    names: tuple[str, ...]
    emissions: Tensor


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one weight: names said and written, clips with a name that nobody said, words wrong and said."""

    said: int
    written: int
    alarmed: int
    n_clips: int
    wrong: int
    words: int

    @property
    def gain(self) -> float:
        return self.written / max(1, self.said) - self.alarmed / max(1, self.n_clips)


def clips_of(model: Model, data: Path, language: str, part: str, n_clips: int) -> list[NamedClip]:
    letters, frequent = letters_of(model), frequent_words(data.parent, language)
    if part == "test":
        found = human_clips.clips(data, "test", sets={READERS[language]}, with_text=True)
        rows = [(clip.file, clip.text or "") for clip in found]
    else:
        rows = [
            (Path(clip.file), clip.text or "")
            for clip in human_clips_of(data)
            if clip.split == "dev" and clip.group == READERS[language]
        ]
    return [
        NamedClip(
            spelled(text, letters),
            tuple(spelled(name, letters) for name in names_of(text, frequent)),
            recorded_emissions(path, model).values,
        )
        for path, text in rows[:: max(1, len(rows) // n_clips)]
    ]


def counted(model: Model, clips: Sequence[NamedClip], weight: float) -> Counts:
    """Decode every clip with all names boosted by a weight."""
    assert model.ctc_head is not None
    names = sorted({name for clip in clips for name in clip.names})
    hotwords = dict.fromkeys(names, weight) if weight else None
    decoder = CtcDecoder(list(model.ctc_head.labels), model.ctc_head.blank, hotwords=hotwords, beam_size=BEAM)
    said = written = alarmed = wrong = words = 0
    for clip in clips:
        found = decoder.decode(clip.emissions)[0]
        heard = found[0].text.split() if found else []
        said += len(clip.names)
        written += sum(name in heard for name in clip.names)
        alarmed += any(name in heard and name not in clip.text.split() for name in names)
        count = count_edits(clip.text.split(), heard)
        wrong, words = wrong + count.n_errors, words + count.n_reference
    return Counts(said, written, alarmed, len(clips), wrong, words)


def show(model: Model, data: Path, language: str, n_clips: int) -> dict[str, object]:
    parts = {
        part: {weight: counted(model, clips, weight) for weight in WEIGHTS}
        for part in ("dev", "test")
        for clips in [clips_of(model, data, language, part, n_clips)]
    }
    best = max(WEIGHTS, key=lambda weight: parts["dev"][weight].gain)
    for weight in WEIGHTS:
        mark = " (best on dev)" if weight == best else ""
        cells = [
            f"{c.written} of {c.said} | {c.alarmed} of {c.n_clips} | {c.wrong / max(1, c.words):.1%}"
            for c in (parts["test"][weight], parts["dev"][weight])
        ]
        show_row(language, f"{weight:g}{mark}", *cells)
    rows = {
        part: {
            weight: [c.said, c.written, c.alarmed, c.n_clips, c.wrong, c.words] for weight, c in of.items()
        }
        for part, of in parts.items()
    }
    return {"language": language, "chosen": best, "counts": rows}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="manifest.jsonl and text/freqwords")
    parser.add_argument("--model", default="base")
    parser.add_argument("--languages", nargs="+", default=list(READERS), choices=list(READERS))
    parser.add_argument("--clips", type=int, default=90, help="of each part, about")
    options = parser.parse_args()
    begin = time.process_time()
    torch.set_num_threads(1)
    model = load_model(options.model)
    titles = ("names written", "clips with a false alarm", "words wrong")
    show_heads("language", "weight", *titles, *(f"dev: {title}" for title in titles))

    rows = [show(model, options.data, language, options.clips) for language in options.languages]
    seconds = round(time.process_time() - begin)
    print(f"{seconds} s of processor time")
    show_json("ctc people_names", {"model": options.model, "rows": rows, "seconds": seconds})
