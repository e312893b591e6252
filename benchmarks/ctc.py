"""CTC decoding in turn in one run: ours, pyctcdecode and flashlight-text on the same emissions and beam.

    python benchmarks/ctc.py                       # made emissions, no language model
    python benchmarks/ctc.py --lm words.arpa       # a word n-gram, spelled in the labels' letters
    python benchmarks/ctc.py --device cuda --vocabulary 32 1024 5000 --batch 1 16 64

Prints a table of utterances per second (median of the repeats) and ratios to ours, then one JSON line.
References that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.decoding.ctc_options import CtcOptions
from sottovoce.lm.ngram import NgramModel

BLANK = 0
Decode = Callable[[], object]


def made_labels(n: int) -> list[str]:
    """A blank, a space, letters, and then single characters that stand for pieces."""
    letters = [chr(ord("a") + i) for i in range(26)] + ["'"]
    return ["", " ", *letters, *(chr(0x4E00 + i) for i in range(n))][:n]


def made_emissions(n_batch: int, n_frames: int, n_labels: int) -> Tensor:
    """Log-probabilities (B, T, V), peaked as those of trained models: mostly blank, some doubt."""
    torch.manual_seed(0)
    logits = torch.randn(n_batch, n_frames, n_labels)
    said = torch.randint(1, n_labels, (n_batch, n_frames, 1))
    is_said = (torch.rand(n_batch, n_frames, 1) < 0.25).float()
    logits.scatter_add_(2, said, 9 * is_said)
    logits[:, :, BLANK] += 9 * (1 - is_said[:, :, 0])
    return logits.log_softmax(dim=2)


def ours(labels: list[str], emissions: Tensor, options: argparse.Namespace, lm: NgramModel | None) -> Decode:
    decoder = CtcDecoder(
        labels,
        BLANK,
        lm=lm,
        beam_size=options.beam_size,
        fusion=CtcFusionOptions(lm_weight=0.3, level="word"),
        options=CtcOptions(times=False, top_tokens=options.top_tokens, blank_skip=options.blank_skip),
        device=options.device,
    )
    moved = emissions.to(options.device)
    return lambda: decoder.decode(moved)


def pyctcdecode(labels: list[str], emissions: Tensor, options: argparse.Namespace) -> Decode:
    from pyctcdecode import build_ctcdecoder

    path = None if options.lm is None else str(options.lm)
    decoder = build_ctcdecoder(labels, path, alpha=0.3)
    arrays = list(emissions.numpy())
    return lambda: [decoder.decode(array, beam_width=options.beam_size) for array in arrays]


def flashlight(labels: list[str], emissions: Tensor, options: argparse.Namespace) -> Decode:
    from flashlight.lib.text.decoder import (
        CriterionType,
        LexiconFreeDecoder,
        LexiconFreeDecoderOptions,
        ZeroLM,
    )

    settings = LexiconFreeDecoderOptions(
        beam_size=options.beam_size,
        beam_size_token=options.top_tokens or len(labels),
        beam_threshold=1e4,
        lm_weight=0.0,
        sil_score=0.0,
        log_add=True,
        criterion_type=CriterionType.CTC,
    )
    decoder = LexiconFreeDecoder(settings, ZeroLM(), 1, BLANK, [])
    rows = [row.contiguous() for row in emissions]
    return lambda: [decoder.decode(row.data_ptr(), *row.shape) for row in rows]


def timed(decode: Decode, device: str) -> float:
    """Seconds; on a CPU those that this process had, so that a busy machine counts for neither side."""
    if device.startswith("cuda"):
        begin = time.perf_counter()
        decode()
        torch.cuda.synchronize()
        return time.perf_counter() - begin
    begin = time.process_time()
    decode()
    return time.process_time() - begin


def measure(candidates: dict[str, Decode], repeats: int, device: str) -> dict[str, list[float]]:
    """Seconds of every repeat; one warm-up each, then in turn."""
    for decode in candidates.values():
        timed(decode, device)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, decode in candidates.items():
            seconds[name].append(timed(decode, device))
    return seconds


def look_ups(path: Path, repeats: int) -> dict[str, float]:
    """Look-ups per second of word sequences: ours in batches of 4096 states, KenLM's package one by one."""
    model = NgramModel.from_arpa(path)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.n_tokens, (20, 4096), generator=generator)

    def batched() -> None:
        states = model.start(4096)
        for row in tokens:
            _, states = model.score(states, row)

    rates = {"ours": tokens.numel() / statistics.median(timed(batched, "cpu") for _ in range(repeats))}
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

        median = statistics.median(timed(one_by_one, "cpu") for _ in range(repeats))
        rates["kenlm"] = sum(map(len, rows)) / median
    return rates


def compare(
    options: argparse.Namespace, n_labels: int, n_batch: int, lm: NgramModel | None
) -> dict[str, object]:
    labels = made_labels(n_labels)
    emissions = made_emissions(n_batch, options.frames, n_labels)
    candidates = {"ours": ours(labels, emissions, options, lm)}
    if "pyctcdecode" in options.references and importlib.util.find_spec("pyctcdecode") is not None:
        candidates["pyctcdecode"] = pyctcdecode(labels, emissions, options)
    if (
        "flashlight" in options.references
        and lm is None
        and importlib.util.find_spec("flashlight") is not None
    ):
        candidates["flashlight"] = flashlight(labels, emissions, options)
    seconds = measure(candidates, options.repeats, options.device)
    rates = {name: n_batch / statistics.median(times) for name, times in seconds.items()}
    shown = "  ".join(
        f"{name} {rate:8.2f}/s (ours x{rates['ours'] / rate:.2f})" for name, rate in rates.items()
    )
    print(f"V {n_labels:5d}  B {n_batch:3d}  {'word LM' if lm else 'no LM  '}  {shown}")
    return {"vocabulary": n_labels, "batch": n_batch, "lm": lm is not None, "utterances_per_s": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[32, 1024])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--beam-size", type=int, default=16)
    parser.add_argument(
        "--top-tokens", type=int, help="tokens of a frame to extend by, ours and flashlight's"
    )
    parser.add_argument("--blank-skip", type=float, help="ours: skip runs of frames this blank")
    parser.add_argument("--lm", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--references", nargs="*", default=["pyctcdecode", "flashlight"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lms = [None] if options.lm is None else [None, NgramModel.from_arpa(options.lm)]
    rows = [
        compare(options, n_labels, n_batch, lm)
        for n_labels in options.vocabulary
        for n_batch in options.batch
        for lm in (lms if n_labels <= 32 else [None])
    ]
    found = {} if options.lm is None else look_ups(options.lm, options.repeats)
    if found:
        print("look-ups: " + "  ".join(f"{name} {rate:,.0f}/s" for name, rate in found.items()))
    machine = {"processor": platform.processor() or platform.machine(), "threads": options.threads}
    print(json.dumps({**machine, "torch": torch.__version__, "rows": rows, "look_ups_per_s": found}))


if __name__ == "__main__":
    main()
