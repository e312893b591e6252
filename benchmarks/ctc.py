"""CTC decoding in turn in one run: ours, pyctcdecode and flashlight-text on the same emissions and beam.

    python benchmarks/ctc.py --lm words.arpa
    python benchmarks/ctc.py --lm words.arpa --vocabulary 32 --batch 16 --doubt doubtful
    python benchmarks/ctc.py --device cuda --batch 16 64

Tasks: no language model; a word n-gram with unknown words allowed (pyctcdecode's way); a word n-gram and its
words as a lexicon (flashlight's way, through its own KenLM). Sides: "ours" prunes nothing; "ours, pruned" and
"flashlight, pruned" keep beams within 10 nats of the best and extend by 8 tokens a frame; "flashlight" keeps
everything within 1e4 and extends by all tokens; "pyctcdecode" has its defaults, beams within 10 nats and
tokens above -5; "ours, tensors" is the search that runs on GPUs. Emissions: see `ctc_emissions`.

Prints a table of utterances per second (median of the repeats; processor time, on a GPU wall time) with the
share of utterances whose text equals that of "ours", then one JSON line. References that are not installed
are left out and named; those that decode one utterance at a time are timed on at most 8 of a batch, on one
if they are slow.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from ctc_emissions import BLANK, Vocabulary, made_emissions, vocabulary, words_of_arpa
from torch import Tensor

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.decoding.ctc.options import CtcOptions
from sottovoce.lm.ngram import NgramModel

Decode = Callable[[Tensor], list[str]]
WEIGHT, WORD_SCORE = 0.3, 1.5
LN10 = 2.302585092994046
PRUNED = {"beam_threshold": 10.0, "top_tokens": 8}
SLOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Task:
    """What a row of the table decodes. lm: the ARPA file; closed: its words are all that may be said."""

    known: Vocabulary
    lm: Path | None
    model: NgramModel | None
    closed: bool
    beam_size: int
    device: str

    @property
    def name(self) -> str:
        return "no LM" if self.lm is None else "LM + lexicon" if self.closed else "word LM"


def ours(task: Task, options: CtcOptions) -> Decode:
    decoder = CtcDecoder(
        task.known.labels,
        BLANK,
        lm=task.model,
        lexicon=list(task.known.words.items())
        if task.lm and (task.closed or task.known.has_pieces)
        else None,
        unknown_words=None if task.lm is None else not task.closed,
        beam_size=task.beam_size,
        fusion=CtcFusionOptions(lm_weight=WEIGHT, word_score=WORD_SCORE, level="word"),
        options=options,
        device=task.device,
    )
    return lambda emissions: [best[0].text if best else "" for best in decoder.decode(emissions)]


def pyctcdecode(task: Task) -> Decode:
    from pyctcdecode import build_ctcdecoder

    path = None if task.lm is None else str(task.lm)
    words = list(task.known.words) if task.lm else None
    decoder = build_ctcdecoder(task.known.labels, path, words, alpha=WEIGHT, beta=WORD_SCORE)
    return lambda emissions: [
        str(decoder.decode(array, beam_width=task.beam_size)) for array in emissions.numpy()
    ]


def flashlight(task: Task, **pruning: float) -> Decode:
    from flashlight.lib.text import decoder as library

    n_labels = len(task.known.labels)
    settings = {
        "beam_size": task.beam_size,
        "beam_size_token": int(pruning.get("top_tokens", n_labels)),
        "beam_threshold": pruning.get("beam_threshold", 1e4),
        "lm_weight": WEIGHT / LN10,
        "sil_score": 0.0,
        "log_add": True,
        "criterion_type": library.CriterionType.CTC,
    }
    if task.lm is None:
        options = library.LexiconFreeDecoderOptions(**settings)
        free = library.LexiconFreeDecoder(options, library.ZeroLM(), 1, BLANK, [])
        return lambda emissions: [spell(task.known, best_of(free, row).tokens) for row in emissions]
    return flashlight_lexicon(task, settings)


def flashlight_lexicon(task: Task, settings: dict[str, object]) -> Decode:
    from flashlight.lib.text import decoder as library
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import Dictionary

    known, names = task.known, Dictionary()
    for word in (*known.words, "<unk>"):
        names.add_entry(word)
    model = KenLM(str(task.lm), names)
    separator = -1 if known.has_pieces else known.labels.index(" ")
    trie = library.Trie(len(known.labels), separator)
    start = model.start(False)
    for word, tokens in known.words.items():
        index = names.get_index(word)
        spelling = tokens if known.has_pieces else [*tokens, separator]
        trie.insert(spelling, index, model.score(start, index)[1])
    trie.smear(library.SmearingMode.MAX)
    options = library.LexiconDecoderOptions(**settings, word_score=WORD_SCORE, unk_score=float("-inf"))
    unknown = names.get_index("<unk>")
    decoder = library.LexiconDecoder(options, trie, model, separator, BLANK, unknown, [], False)
    return lambda emissions: [
        " ".join(names.get_entry(i) for i in best_of(decoder, row).words if i >= 0) for row in emissions
    ]


def best_of(decoder: object, row: Tensor):  # type: ignore[no-untyped-def]
    row = row.contiguous()
    found = decoder.decode(row.data_ptr(), *row.shape)  # type: ignore[attr-defined]
    return found[0]


def spell(known: Vocabulary, path: Sequence[int]) -> str:
    """The text of a path of labels: repeats and blanks taken out."""
    merged = [token for i, token in enumerate(path) if i == 0 or path[i - 1] != token]
    text = "".join(known.labels[token] for token in merged if token not in (BLANK, -1))
    return " ".join(text.replace("▁", " ").split())


def sides(task: Task, options: argparse.Namespace) -> Iterator[tuple[str, Decode]]:
    plain = CtcOptions(times=options.times)
    if task.device == "cpu":
        yield "ours", ours(task, replace(plain, engine="compiled"))
        yield "ours, pruned", ours(task, replace(plain, engine="compiled", **PRUNED))
    if task.device != "cpu" or (options.tensors and len(task.known.labels) * (1 + task.closed) <= 64):
        yield "ours, tensors", ours(task, replace(plain, engine="tensors"))
    if "pyctcdecode" in options.references and not task.closed:
        yield "pyctcdecode", pyctcdecode(task)
    if "flashlight" in options.references and (task.lm is None or task.closed):
        yield "flashlight", flashlight(task)
        yield "flashlight, pruned", flashlight(task, **PRUNED)


def timed(decode: Decode, emissions: Tensor) -> float:
    """Seconds; on a CPU those that this process had, so that a busy machine counts for neither side."""
    if emissions.is_cuda:
        begin = time.perf_counter()
        decode(emissions)
        torch.cuda.synchronize()
        return time.perf_counter() - begin
    begin = time.process_time()
    decode(emissions)
    return time.process_time() - begin


def share_of(name: str, decode: Decode, emissions: Tensor) -> Tensor:
    """What of the emissions a side is timed on."""
    if name.startswith("ours"):
        return emissions
    seconds = timed(decode, emissions[:1])
    return emissions[: 1 if seconds > SLOW_S else 8]


def compare(
    task: Task, candidates: dict[str, Decode], n_batch: int, options: argparse.Namespace
) -> dict[str, object]:
    emissions = made_emissions(task.known, n_batch, options.frames, options.doubt).to(options.device)
    given = {name: share_of(name, decode, emissions) for name, decode in candidates.items()}
    texts = {name: decode(given[name]) for name, decode in candidates.items()}  # the warm-up
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(options.repeats):
        for name, decode in candidates.items():
            seconds[name].append(timed(decode, given[name]))
    rates = {name: len(given[name]) / statistics.median(times) for name, times in seconds.items()}
    first = next(iter(candidates))
    agree = {
        name: sum(a == b for a, b in zip(found, texts[first], strict=False)) / len(found)
        for name, found in texts.items()
    }
    row = {"vocabulary": len(task.known.labels), "batch": n_batch, "task": task.name}
    shown = "  ".join(f"{name} {rate:.1f}/s ({agree[name]:.0%})" for name, rate in rates.items())
    print(f"V {row['vocabulary']:5d}  B {n_batch:3d}  {task.name:12s}  {shown}", flush=True)
    return {**row, "utterances_per_s": rates, "same_text": agree}


def look_ups(model: NgramModel, path: Path, repeats: int) -> dict[str, float]:
    """Look-ups per second of word sequences: ours in batches of 4096 states, KenLM's package one by one."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.n_tokens, (20, 4096), generator=generator)

    def batched(_: Tensor) -> list[str]:
        states = model.start(4096)
        for row in tokens:
            _, states = model.score(states, row)
        return []

    rates = {"ours": tokens.numel() / statistics.median(timed(batched, tokens) for _ in range(repeats))}
    if importlib.util.find_spec("kenlm") is not None:
        import kenlm

        reference = kenlm.Model(str(path))
        words = list(model.vocabulary)
        rows = [[words[min(token, len(words) - 1)] for token in row] for row in tokens[:, :512].T.tolist()]

        def one_by_one(_: Tensor) -> list[str]:
            for row in rows:
                state, after = kenlm.State(), kenlm.State()
                reference.BeginSentenceWrite(state)
                for word in row:
                    reference.BaseScore(state, word, after)
                    state, after = after, state
            return []

        median = statistics.median(timed(one_by_one, tokens) for _ in range(repeats))
        rates["kenlm"] = sum(map(len, rows)) / median
    return rates


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[32, 1024, 5000])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--doubt", choices=["clear", "doubtful"], default="clear")
    parser.add_argument("--beam-size", type=int, default=16)
    parser.add_argument("--lm", type=Path, required=True, help="ARPA; its likeliest words are said")
    parser.add_argument("--words", type=int, default=20000, help="how many of its words are known")
    parser.add_argument("--tasks", nargs="+", default=["no LM", "word LM", "LM + lexicon"])
    parser.add_argument("--times", action="store_true", help="ours: word times and probabilities too")
    parser.add_argument("--tensors", action="store_true", help="on a CPU: the search in tensors too")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--references", nargs="*", default=["pyctcdecode", "flashlight"])
    return parser.parse_args()


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    logging.disable(logging.WARNING)
    missing = [name for name in options.references if importlib.util.find_spec(name) is None]
    options.references = [name for name in options.references if name not in missing]
    model = NgramModel.from_arpa(options.lm)
    words = words_of_arpa(options.lm)[: options.words]
    rows = []
    for n_labels in options.vocabulary:
        known = vocabulary(n_labels, words)
        for lm, closed in ((None, False), (options.lm, False), (options.lm, True)):
            task = Task(known, lm, model if lm else None, closed, options.beam_size, options.device)
            if task.name in options.tasks:
                candidates = dict(sides(task, options))
                rows += [compare(task, candidates, n_batch, options) for n_batch in options.batch]
    found = look_ups(model, options.lm, options.repeats)
    print("look-ups: " + "  ".join(f"{name} {rate:,.0f}/s" for name, rate in found.items()))
    machine = {"processor": platform.processor() or platform.machine(), "threads": options.threads}
    settings = {"frames": options.frames, "doubt": options.doubt, "beam_size": options.beam_size}
    result = {**machine, **settings, "torch": torch.__version__, "missing": missing, "rows": rows}
    print(json.dumps({**result, "look_ups_per_s": found}))


if __name__ == "__main__":
    main()
