"""The CTC search with a KenLM model beside pyctcdecode with the same file, in turn in one run.

    python benchmarks/ctc_kenlm.py --lm words.arpa

A trigram of made sentences is written to a file that both read through the `kenlm` package; `--lm` names
the ARPA file whose likeliest words are said. Rows are utterances a second of processor time, medians of the
repeats, and ratios to pyctcdecode. "cold": the table of what was asked is emptied before every repeat, as
pyctcdecode's is; "arpa": the same file read by sottovoce itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from ctc_emissions import made_emissions, vocabulary, words_of_arpa
from ctc_texts import write_ngrams
from pyctcdecode import build_ctcdecoder

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.lm.kenlm import KenlmModel

WEIGHT, WORD_SCORE = 0.5, 1.0


def _rate(work: Callable[[], object], n: int, repeats: int, before: Callable[[], object]) -> float:
    times = []
    for _ in range(repeats):
        before()
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return n / statistics.median(times)


def _write_model(words: list[str], n_sentences: int, path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    chances = 1 / torch.arange(1, len(words) + 1)
    drawn = torch.multinomial(chances, 8 * n_sentences, replacement=True, generator=generator).tolist()
    texts = [" ".join(words[i] for i in drawn[n : n + 8]) for n in range(0, len(drawn), 8)]
    write_ngrams(texts, path, frequent=dict.fromkeys(words, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--lm", type=Path, required=True)
    parser.add_argument("--words", type=int, default=5000)
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--utterances", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--doubt", choices=["clear", "doubtful"], nargs="+", default=["clear", "doubtful"])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    words = words_of_arpa(given.lm)[: given.words]
    known = vocabulary(29, words)
    n, repeats = given.utterances, given.repeats
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.arpa"
        _write_model(words, given.sentences, path)
        model = KenlmModel(path)
        fusion = CtcFusionOptions(lm_weight=WEIGHT, word_score=WORD_SCORE, level="word")
        shared = {"lexicon": list(known.words.items()), "unknown_words": True, "fusion": fusion}
        ours = CtcDecoder(known.labels, 0, lm=model, **shared)
        arpa = CtcDecoder(known.labels, 0, lm=path, **shared)
        theirs = build_ctcdecoder(known.labels, str(path), words, alpha=WEIGHT, beta=WORD_SCORE)
        for doubt in given.doubt:
            emissions = made_emissions(known, n, 200, doubt)
            frames = emissions.numpy()
            pairs = zip(ours.decode(emissions), arpa.decode(emissions), strict=True)
            same = sum(a[0].text == b[0].text for a, b in pairs)
            rates = {
                "kenlm, cold": _rate(lambda e=emissions: ours.decode(e), n, repeats, model.forget),
                "kenlm, warm": _rate(lambda e=emissions: ours.decode(e), n, repeats, lambda: None),
                "arpa": _rate(lambda e=emissions: arpa.decode(e), n, repeats, lambda: None),
                "pyctcdecode": _rate(
                    lambda f=frames: [theirs.decode(each, beam_width=16) for each in f],
                    n,
                    repeats,
                    lambda: None,
                ),
            }
            ratios = {name: round(rate / rates["pyctcdecode"], 1) for name, rate in rates.items()}
            shown = {name: round(rate) for name, rate in rates.items()}
            row = {"doubt": doubt, "utterances_per_s": shown, "ratios": ratios, "asked": model.n_asked}
            print(json.dumps(row | {"same_text_as_arpa": same}), flush=True)


if __name__ == "__main__":
    main()
