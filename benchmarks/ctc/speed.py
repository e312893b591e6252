"""CTC decoding in turn in one run: ours, pyctcdecode, flashlight-text, NeMo on the same emissions and beam.

    python -m benchmarks ctc speed --lm words.arpa
    python -m benchmarks ctc speed --lm words.arpa --vocabulary 32 --batch 16 --doubt doubtful
    python -m benchmarks ctc speed --lm words.arpa --threads 1 2
    python -m benchmarks ctc speed --lm words.arpa --device cuda --batch 16 64

Tasks: no language model; an n-gram over labels (NeMo's way); a word n-gram with unknown words allowed
(pyctcdecode's way); a word n-gram and its words as a lexicon (flashlight's way, through its own KenLM).
Sides: "ours" prunes nothing; "ours, pruned" and "flashlight, pruned" keep beams within 10 nats of the best
and extend by 8 tokens a frame; "flashlight" keeps everything within 1e4 and extends by all tokens;
"pyctcdecode" has its defaults, beams within 10 nats and tokens above -5; "nemo" has its own, beams within
20 nats. On a GPU ours copies the emissions to the host. Emissions: see `ctc.emissions`.

Prints a table of utterances per second (median of the repeats) with the share of utterances whose text
equals that of the first side, then one JSON line. With one thread on a CPU seconds are those of the
processor, so that a busy machine counts for neither side; with several threads and on a GPU they are those
of the clock. Sides that decode one utterance at a time use as many processes as threads, and are timed on
at most 8 of a batch, on one a thread if they are slow. References that are not installed are left out and
named.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.ctc.emissions import Vocabulary, made_emissions, token_models, vocabulary, words_of_arpa
from benchmarks.ctc.sides import Batched, Side, Task, sides
from benchmarks.harness.report import benchmark_parser, show_json
from sottovoce.lm.ngram import NgramModel

SLOW_S = 1.0
N_FRAMES, BEAM_SIZE, N_WORDS = 200, 16, 20_000


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - begin


def share_of(side: Side, emissions: Tensor, n_threads: int) -> Tensor:
    """The emissions that a side is timed on."""
    if isinstance(side, Batched):
        return emissions
    with side.ready(emissions[:1], 1) as decode:
        seconds = timed(decode, time.process_time)
    return emissions[: n_threads if seconds > SLOW_S else 8]


def compare(
    task: Task, candidates: dict[str, Side], n_batch: int, n_threads: int, options: argparse.Namespace
) -> dict[str, object]:
    emissions = made_emissions(task.known, n_batch, N_FRAMES, options.doubt).to(options.device)
    given = {name: share_of(side, emissions, n_threads) for name, side in candidates.items()}
    clock = time.process_time if n_threads == 1 and options.device == "cpu" else time.perf_counter
    with ExitStack() as stack:
        ready = {
            name: stack.enter_context(side.ready(given[name], n_threads)) for name, side in candidates.items()
        }
        texts = {name: decode() for name, decode in ready.items()}  # the warm-up
        seconds: dict[str, list[float]] = {name: [] for name in ready}
        for _ in range(options.repeats):
            for name, decode in ready.items():
                seconds[name].append(timed(decode, clock))
    rates = {name: len(given[name]) / statistics.median(times) for name, times in seconds.items()}
    first = next(iter(candidates))
    agree = {
        name: sum(a == b for a, b in zip(result, texts[first], strict=False)) / len(result)
        for name, result in texts.items()
    }
    row = {"vocabulary": len(task.known.labels), "batch": n_batch, "task": task.name, "threads": n_threads}
    shown = "  ".join(f"{name} {rate:.1f}/s ({agree[name]:.0%})" for name, rate in rates.items())
    title = f"V {row['vocabulary']:5d}  B {n_batch:3d}  {task.name:12s}  {n_threads} thread(s)"
    print(f"{title}  {shown}", flush=True)
    return {**row, "utterances_per_s": rates, "same_text": agree}


def look_ups(model: NgramModel, path: Path, repeats: int) -> dict[str, float]:
    """Look-ups per second of word sequences: ours in batches of 4096 states, KenLM's package one by one."""
    tokens = np.random.default_rng(0).integers(0, model.n_tokens, (20, 4096))

    def batched() -> None:
        states = model.start(4096)
        for row in tokens:
            _, states = model.score(states, row)

    rates = {
        "ours": tokens.size / statistics.median(timed(batched, time.process_time) for _ in range(repeats))
    }
    if importlib.util.find_spec("kenlm") is not None:
        import kenlm

        reference = kenlm.Model(str(path))
        words = list(model.vocabulary)
        rows = [[words[min(token, len(words) - 1)] for token in row] for row in tokens[:, :512].T.tolist()]

        def one_by_one() -> None:
            for row in rows:
                state, after = kenlm.State(), kenlm.State()
                reference.BeginSentenceWrite(state)
                for word in row:
                    reference.BaseScore(state, word, after)
                    state, after = after, state

        median = statistics.median(timed(one_by_one, time.process_time) for _ in range(repeats))
        rates["kenlm"] = sum(map(len, rows)) / median
    return rates


def tasks(known: Vocabulary, model: NgramModel, folder: Path, options: argparse.Namespace) -> Iterator[Task]:
    shared = (known, BEAM_SIZE, options.device)
    words = (options.lm, model)
    every = (
        Task(*shared),
        Task(*shared, tokens=token_models(known, folder)),
        Task(*shared, *words),
        Task(*shared, *words, closed=True),
    )
    yield from (task for task in every if task.name in options.tasks)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[32, 1024, 5000])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--doubt", choices=["clear", "doubtful"], default="clear")
    parser.add_argument("--lm", type=Path, required=True, help="ARPA; its likeliest words are said")
    parser.add_argument("--tasks", nargs="+", default=["no LM", "token LM", "word LM", "LM + lexicon"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="each in turn")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--references", nargs="*", default=["pyctcdecode", "flashlight", "nemo"])
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    missing = [name for name in options.references if importlib.util.find_spec(name) is None]
    options.references = [name for name in options.references if name not in missing]
    model = NgramModel.load(options.lm)
    words = words_of_arpa(options.lm)[:N_WORDS]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for n_labels in options.vocabulary:
            for task in tasks(vocabulary(n_labels, words), model, Path(folder), options):
                candidates = dict(sides(task, options))
                for n_batch in options.batch:
                    rows += [compare(task, candidates, n_batch, n, options) for n in options.threads]
    torch.set_num_threads(1)
    matches = look_ups(model, options.lm, options.repeats)
    print("look-ups: " + "  ".join(f"{name} {rate:,.0f}/s" for name, rate in matches.items()))
    machine = {"processor": platform.processor() or platform.machine(), "threads": options.threads}
    settings = {"frames": N_FRAMES, "doubt": options.doubt, "beam_size": BEAM_SIZE}
    result = {**machine, **settings, "torch": torch.__version__, "missing": missing, "rows": rows}
    show_json("ctc speed", {**result, "look_ups_per_s": matches})
