"""Rare names as hotwords: how many are written that were said, and how many that were not, by weight.

    python -m benchmarks ctc names
    python -m benchmarks ctc names --beam-size 5 10
    python -m benchmarks ctc names --beam-size 5 --weights 2 2.5 3 3.5 --dev-only

espeak-ng's held-out English voice says sentences with a name each and others without; every name of the list
is boosted in every clip. Two sets that share neither names nor sentences: the weight is chosen on "dev", by
recall less the shares of names that were not said, and "test" is reported. Two decoders: Whisper's beam
search of the model, without fallback, and the beam search over its CTC head's emissions. Needs espeak-ng.

Prints a table and then one JSON line.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.ctc.texts import VOICES, speak, spelled
from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.cli.ctc_inputs import recorded_emissions
from sottovoce.ctc import CtcDecoder
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions

VOICE = VOICES["en"]
WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)
Write = Callable[["Clips", float], list[str]]


@dataclass(frozen=True, slots=True)
class Names:
    """names: said once in each of the frames; plain: sentences without any."""

    names: tuple[str, ...]
    frames: tuple[str, ...]
    plain: tuple[str, ...]


SETS = {
    "dev": Names(
        ("Siobhan Kelly", "Dmitri Volkov", "Chidi Eze", "Yuki Tanaka", "Ingrid Lund", "Terraform",
         "Nebuchadnezzar", "Rashid Aziz"),
        ("we met {} at the station", "I will ask {} for the key"),
        ("we met my sister at the station", "I will ask the woman for the key",
         "the children are in the garden", "there is a new shop in our street",
         "he wrote a long letter to his mother", "the winter was very cold this year"),
    ),
    "test": Names(
        ("Aoife Brennan", "Tadeusz Kowal", "Ngozi Okafor", "Xiulan Zhao", "Bjarne Holm", "Priya Raman",
         "Kubernetes", "Zarathustra", "Mozzarella Palace", "Loch Lomond", "Quetzal", "Wolfram Vogel"),
        ("yesterday {} came to see us", "please tell {} about the house"),
        ("yesterday my brother came to see us", "we have not heard of the train today",
         "please tell the doctor about the house", "the weather is very good this morning",
         "our friends will be here on sunday", "she has read all the books in the room",
         "the water in the river is cold", "he went to the market with his wife"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Clips:
    """Recordings of a set: the name said in each ("": none), all names, and the files."""

    names: tuple[str, ...]
    said: tuple[str, ...]
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, given: Names, folder: Path) -> Clips:
        folder.mkdir()
        pairs = [(name, frame.format(name)) for name in given.names for frame in given.frames]
        pairs += [("", text) for text in given.plain]
        paths = [speak(folder, "en", VOICE, text, i).path for i, (_, text) in enumerate(pairs)]
        return cls(given.names, tuple(name for name, _ in pairs), tuple(paths))


@dataclass(frozen=True, slots=True)
class Row:
    """Shares: names written where said, other names where one was said, names where none was."""

    weight: float
    recall: float
    other_names: float
    false_alarms: float

    @property
    def gain(self) -> float:
        return self.recall - self.other_names - self.false_alarms


def counted(clips: Clips, texts: Sequence[str], letters: str, weight: float) -> Row:
    words = [f" {spelled(text, letters)} " for text in texts]
    shown = {name: f" {spelled(name, letters)} " for name in clips.names}
    written = [{name for name in clips.names if shown[name] in text} for text in words]
    said = [(name, found) for name, found in zip(clips.said, written, strict=True) if name]
    plain = [found for name, found in zip(clips.said, written, strict=True) if not name]
    return Row(
        weight=weight,
        recall=sum(name in found for name, found in said) / len(said),
        other_names=sum(bool(found - {name}) for name, found in said) / len(said),
        false_alarms=sum(map(bool, plain)) / len(plain),
    )


def by_decoder(model: Model, beam_size: int) -> Write:
    """Transcripts by Whisper's beam search."""
    options = TranscribeOptions(fallback=FallbackOptions(temperatures=(0.0,)))

    def write(clips: Clips, weight: float) -> list[str]:
        fusion = model.fusion(hotwords=dict.fromkeys(clips.names, weight)) if weight else None
        texts = []
        for path in clips.paths:
            found = model.transcribe(
                str(path), language="en", beam_size=beam_size, fusion=fusion, options=options
            )
            texts.append(" ".join(segment.text for segment in found))
        return texts

    return write


def by_ctc_head(model: Model, letters: str, beam_size: int) -> Write:
    """Texts by the search over the emissions of the CTC head."""
    assert model.ctc_head is not None
    labels, blank = list(model.ctc_head.labels), model.ctc_head.blank
    heard: dict[Path, torch.Tensor] = {}

    def write(clips: Clips, weight: float) -> list[str]:
        hot = {spelled(name, letters): weight for name in clips.names} if weight else None
        decoder = CtcDecoder(labels, blank, hotwords=hot, beam_size=beam_size)
        for path in clips.paths:
            if path not in heard:
                heard[path] = recorded_emissions(path, model).values
        rows = [heard[path] for path in clips.paths]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        found = decoder.decode(batch, torch.tensor([len(row) for row in rows]))
        return [best[0].text if best else "" for best in found]

    return write


def show(
    name: str, write: Write, sets: dict[str, Clips], letters: str, weights: Sequence[float]
) -> Iterator[dict[str, object]]:
    """Rows of a decoder over the weights; marks the one that is best on dev."""
    rows = {
        part: [counted(clips, write(clips, weight), letters, weight) for weight in weights]
        for part, clips in sets.items()
    }
    chosen = max(rows["dev"], key=lambda row: (row.gain, -row.weight)).weight
    for i, dev in enumerate(rows["dev"]):
        mark = " (best on dev)" if dev.weight == chosen else ""
        found = [rows[part][i] for part in ("test", "dev") if part in rows]
        shares = [share for row in found for share in (row.recall, row.other_names, row.false_alarms)]
        show_row(name, f"{dev.weight:g}{mark}", *(f"{share:.0%}" for share in shares))
        yield {"decoder": name, "weight": dev.weight, "chosen": bool(mark), "shares": shares}


def compare(
    model: Model, parts: Sequence[str], beam_sizes: Sequence[int], weights: Sequence[float]
) -> list[dict[str, object]]:
    """Print the table of a model over some of the sets."""
    head = model.ctc_head
    letters = "abcdefghijklmnopqrstuvwxyz'"
    decoders = {f"decoder, beam {size}": by_decoder(model, size) for size in beam_sizes}
    if head is not None:
        decoders["CTC head, beam 32"] = by_ctc_head(model, letters, 32)
    titles = {"test": "recall | another name | false alarms", "dev": "on dev: recall | another | false"}
    show_heads("decoder", "weight", *(titles[part] for part in parts))

    with tempfile.TemporaryDirectory() as name:
        sets = {part: Clips.of(SETS[part], Path(name) / part) for part in parts}
        return [
            row for title, write in decoders.items() for row in show(title, write, sets, letters, weights)
        ]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--beam-size", type=int, nargs="+", default=[5, 15])
    parser.add_argument("--weights", type=float, nargs="+", default=WEIGHTS)
    parser.add_argument("--dev-only", action="store_true", help="to choose a weight")
    options = parser.parse_args()
    begin = time.process_time()
    torch.set_num_threads(1)
    parts = ("dev",) if options.dev_only else ("test", "dev")
    rows = compare(load_model(options.model), parts, options.beam_size, options.weights)
    n_clips = {part: len(given.names) * len(given.frames) + len(given.plain) for part, given in SETS.items()}
    seconds = round(time.process_time() - begin)
    print(f"{n_clips['test']} clips for test, {n_clips['dev']} for dev, {seconds} s of processor time")
    show_json("ctc names", {"model": options.model, "rows": rows, "seconds": seconds})
