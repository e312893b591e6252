"""The decoders that `benchmarks/ctc/speed.py` compares, each as a way to decode emissions of a task.

NeMo's computer works on tensors, on either device; it knows n-grams over labels alone. pyctcdecode and
flashlight-text decode one utterance after the other on the CPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.ctc.emissions import BLANK, TokenModels, Vocabulary
from sottovoce.ctc import CtcDecoder, CtcFusionOptions, compat
from sottovoce.ctc.options import CtcOptions
from sottovoce.lm.ngram import NgramModel

Decode = Callable[[Tensor], list[str]]
DecodeOne = Callable[[Tensor], str]
WEIGHT, WORD_SCORE = 0.3, 1.5
LN10 = 2.302585092994046
PRUNED = {"beam_threshold": 10.0, "top_tokens": 8}


@dataclass(frozen=True, slots=True)
class Task:
    """What a row of the table decodes.

    lm: the ARPA file of words and the model of it; closed: its words are all that may be said. tokens: n-gram
    models over labels instead.
    """

    known: Vocabulary
    beam_size: int
    device: str
    lm: Path | None = None
    model: NgramModel | None = None
    closed: bool = False
    tokens: TokenModels | None = None

    @property
    def name(self) -> str:
        if self.tokens is not None:
            return "token LM"
        return "no LM" if self.lm is None else "LM + lexicon" if self.closed else "word LM"


@dataclass(frozen=True, slots=True)
class Batched:
    """A side that decodes a batch at once; threads are torch's."""

    decode: Decode

    @contextmanager
    def ready(self, emissions: Tensor, n_threads: int) -> Iterator[Callable[[], list[str]]]:
        torch.set_num_threads(n_threads)
        yield lambda: self.decode(emissions)


@dataclass(frozen=True, slots=True)
class OneByOne:
    """A side that decodes one utterance at a time; n_threads are as many processes, which share the batch."""

    decode: DecodeOne

    @contextmanager
    def ready(self, emissions: Tensor, n_threads: int) -> Iterator[Callable[[], list[str]]]:
        emissions = emissions.cpu()
        if n_threads == 1:
            yield lambda: [self.decode(row) for row in emissions]
            return
        _SHARED.update(decode=self.decode, emissions=emissions)
        with multiprocessing.get_context("fork").Pool(n_threads) as pool:
            yield lambda: pool.map(_decode_shared, range(len(emissions)), chunksize=1)


Side = Batched | OneByOne
_SHARED: dict[str, object] = {}
"""What forked processes find in their memory."""


def _decode_shared(row: int) -> str:
    return _SHARED["decode"](_SHARED["emissions"][row])  # type: ignore[index,operator]


def sides(task: Task, options: argparse.Namespace) -> Iterator[tuple[str, Side]]:
    """Those that can do a task, ours first."""
    plain = CtcOptions(times=False)
    given = options.references
    yield "ours", ours(task, plain)
    yield "ours, pruned", ours(task, replace(plain, **PRUNED))
    if "nemo" in given and task.lm is None:
        yield "nemo", nemo(task)
    if "pyctcdecode" in given and not task.closed and task.tokens is None:
        from pyctcdecode import build_ctcdecoder

        yield "pyctcdecode", pyctcdecode(task, build_ctcdecoder)
        yield "ctc.compat", pyctcdecode(task, compat.build_ctcdecoder)
    if "flashlight" in given and task.tokens is None and (task.lm is None or task.closed):
        yield "flashlight", flashlight(task)
        yield "flashlight, pruned", flashlight(task, **PRUNED)


def ours(task: Task, options: CtcOptions) -> Side:
    needs_words = task.closed or task.known.has_pieces
    decoder = CtcDecoder(
        task.known.labels,
        BLANK,
        lm=task.model if task.tokens is None else task.tokens.ours,
        lexicon=list(task.known.words.items()) if task.lm and needs_words else None,
        unknown_words=None if task.lm is None else not task.closed,
        beam_size=task.beam_size,
        fusion=CtcFusionOptions(
            lm_weight=WEIGHT,
            word_score=WORD_SCORE if task.lm else 0.0,
            level="word" if task.tokens is None else "token",
        ),
        options=options,
        device=task.device,
    )
    return Batched(lambda emissions: [best[0].text if best else "" for best in decoder.decode(emissions)])


def nemo(task: Task) -> Side:
    """NeMo's batched beam search with its own defaults; it wants the blank last."""
    from nemo.collections.asr.parts.submodules.ctc_batched_beam_decoding import BatchedBeamCTCComputer
    from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel

    n_labels = len(task.known.labels)
    models = None
    if task.tokens is not None:
        models = [NGramGPULanguageModel.from_file(task.tokens.nemo, vocab_size=n_labels - 1)]
    computer = BatchedBeamCTCComputer(
        n_labels - 1, task.beam_size, fusion_models=models, fusion_models_alpha=models and [WEIGHT]
    )
    names = [*task.known.labels[1:], ""]

    def decode(emissions: Tensor) -> list[str]:
        lengths = torch.full((len(emissions),), emissions.shape[1], device=emissions.device)
        result = computer(emissions.roll(-1, dims=2), lengths).to_hyps_list(score_norm=False)
        texts = ("".join(names[token] for token in each.y_sequence.tolist()) for each in result)
        return [" ".join(text.replace("▁", " ").split()) for text in texts]

    return Batched(decode)


def pyctcdecode(task: Task, build: Callable[..., Any]) -> Side:
    """build: `build_ctcdecoder` of pyctcdecode or `ctc.compat`."""
    path = None if task.lm is None else str(task.lm)
    words = list(task.known.words) if task.lm else None
    decoder = build(task.known.labels, path, words, alpha=WEIGHT, beta=WORD_SCORE)
    return OneByOne(lambda row: str(decoder.decode(row.numpy(), beam_width=task.beam_size)))


def flashlight(task: Task, **pruning: float) -> Side:
    """Without a lexicon, or with one and an n-gram, whose KenLM scores are log10."""
    from flashlight.lib.text import decoder as library
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import Dictionary

    settings = {
        "beam_size": task.beam_size,
        "beam_size_token": int(pruning.get("top_tokens", len(task.known.labels))),
        "beam_threshold": pruning.get("beam_threshold", 1e4),
        "lm_weight": WEIGHT * LN10 if task.lm else 0.0,
        "sil_score": 0.0,
        "log_add": True,
        "criterion_type": library.CriterionType.CTC,
    }
    known, names = task.known, Dictionary()
    if task.lm is None:
        free_options = library.LexiconFreeDecoderOptions(**settings)
        free = library.LexiconFreeDecoder(free_options, library.ZeroLM(), 1, BLANK, [])
        return OneByOne(lambda row: spell(known, best_of(free, row).tokens))
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

    def read(row: Tensor) -> str:
        return " ".join(names.get_entry(i) for i in best_of(decoder, row).words if i >= 0)

    return OneByOne(read)


def best_of(decoder: object, row: Tensor):  # type: ignore[no-untyped-def]
    row = row.contiguous()
    result = decoder.decode(row.data_ptr(), *row.shape)  # type: ignore[attr-defined]
    return result[0]


def spell(known: Vocabulary, path: Sequence[int]) -> str:
    """The text of a path of labels: repeats and blanks taken out."""
    merged = [token for i, token in enumerate(path) if i == 0 or path[i - 1] != token]
    text = "".join(known.labels[token] for token in merged if token not in (BLANK, -1))
    return " ".join(text.replace("▁", " ").split())
