"""What language models do for nano's CTC head, step by step. For names and hotwords see `ctc.names`.

    python -m benchmarks ctc steps --data ../shared/data

Clips: held-out readers (kathleen, kerstin) and sentences spoken by espeak-ng's held-out voices (en, de, es,
fr). Three of four clips are for development: weights are chosen on those, by the search that `sottovoce ctc
tune` makes, and only the others are reported. The language models are trained here, per language, on text
that holds no sentence of any clip: a trigram; a lexicon of its words and the 20 000 most used ones; a small
causal transformer over words, which rescores all that the beam ends with beside a share of the trigram. Both
weights are chosen on the dev clips of all languages together. Needs espeak-ng and transformers.

Prints word error rates with bootstrap 95 % intervals, of all clips and of differences to the step before;
then one JSON line.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.ctc.network import trained
from benchmarks.ctc.texts import VOICES, Clip, Corpus, corpus, frequencies, write_ngrams
from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.cli.ctc_decode import recorded_emissions
from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.evaluation.wer import count_edits
from sottovoce.lm.base import WordHistory
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.neural import NeuralRescorer, ReplacedModel
from sottovoce.lm.ngram import NgramModel
from sottovoce.types import Hypothesis

LM_WEIGHTS, WORD_SCORES = (0.3, 0.6, 1.0), (0.0, 1.5)
NEURAL_WEIGHTS, NGRAM_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0), (1.0, 0.75, 0.5, 0.0)
"""Times the weight that the trigram had; what is left of it beside."""
Emissions = dict[Path, Tensor]
Texts = list[list[Hypothesis]]
Scored = list[list[tuple[str, float, float, float]]]
"""Of every clip and hypothesis: text, score, and what the neural model and the n-gram say in all."""


class Bench:
    """The steps of the table, each over clips of one language; weights are chosen on dev clips."""

    def __init__(self, model: Model, parts: Corpus, data: Path, folder: Path, neural_s: float) -> None:
        assert model.ctc_head is not None
        self._labels = list(model.ctc_head.labels)
        self._blank = model.ctc_head.blank
        letters = letters_of(model)
        self._parts, self._folder = parts, folder
        self._emissions = {
            clip.path: recorded_emissions(clip.path, model).values for clip in (*parts.dev, *parts.test)
        }
        self._ngrams: dict[str, NgramModel] = {}
        self._lexicons: dict[str, list[tuple[str, list[int]]]] = {}
        self._neural: dict[str, CausalWordModel] = {}
        for language, texts in parts.texts.items():
            frequent = frequencies(data, language, letters, 20_000)
            path = folder / f"{language}.arpa"
            write_ngrams(texts, path, frequent=frequent)
            self._ngrams[language] = NgramModel.from_arpa(path)
            words = dict.fromkeys([*(word for text in texts for word in text.split()), *frequent])
            ids = {label: i for i, label in enumerate(self._labels)}
            self._lexicons[language] = [(word, [ids[c] for c in word]) for word in words]
            self._neural[language] = trained(texts, frequent, neural_s / len(parts.texts))
        self.chosen: dict[str, dict[str, float]] = {}
        self._decoders: dict[str, CtcDecoder] = {}

    def steps(self) -> Iterator[tuple[str, list[str]]]:
        """The texts of the test clips after every step."""
        yield "greedy", self._over_languages(lambda _, clips: self._greedy(clips))
        yield "beam", self._over_languages(lambda _, clips: self._best(self._decoder(), clips))
        yield "+ n-gram", self._over_languages(lambda code, clips: self._tuned(code, clips, lexicon=False))
        yield "+ lexicon", self._over_languages(lambda code, clips: self._tuned(code, clips, lexicon=True))
        yield "+ neural rescoring", self._over_languages(self._rescored)

    def _over_languages(self, decode: Callable[[str, list[Clip]], list[str]]) -> list[str]:
        texts: dict[Path, str] = {}
        for language in VOICES:
            clips = [clip for clip in self._parts.test if clip.language == language]
            texts |= zip((clip.path for clip in clips), decode(language, clips), strict=True)
        return [texts[clip.path] for clip in self._parts.test]

    def _decoder(
        self, language: str | None = None, fusion: CtcFusionOptions | None = None, *, lexicon: bool = False
    ) -> CtcDecoder:
        return CtcDecoder(
            self._labels,
            self._blank,
            lm=None if language is None else self._ngrams[language],
            lexicon=self._lexicons[language] if language is not None and lexicon else None,
            beam_size=32,
            n_best=32,
            fusion=fusion,
        )

    def _decode(self, decoder: CtcDecoder, clips: Sequence[Clip]) -> Texts:
        rows = [self._emissions[clip.path] for clip in clips]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return decoder.decode(batch, torch.tensor([len(row) for row in rows]))

    def _greedy(self, clips: Sequence[Clip]) -> list[str]:
        decoder = self._decoder()
        return [decoder.greedy(self._emissions[clip.path])[0].text for clip in clips]

    def _best(self, decoder: CtcDecoder, clips: Sequence[Clip]) -> list[str]:
        return [found[0].text if found else "" for found in self._decode(decoder, clips)]

    def _tuned(self, language: str, clips: Sequence[Clip], *, lexicon: bool) -> list[str]:
        return self._best(self._tuned_decoder(language, lexicon=lexicon), clips)

    def _tuned_decoder(self, language: str, *, lexicon: bool) -> CtcDecoder:
        """The decoder of the weights that are best on the dev clips of a language."""
        name = f"{language}, {'lexicon' if lexicon else 'n-gram'}"
        if name in self._decoders:
            return self._decoders[name]
        dev = [clip for clip in self._parts.dev if clip.language == language]
        rates: dict[float, tuple[CtcDecoder, dict[str, float]]] = {}
        for lm_weight, word_score in itertools.product(LM_WEIGHTS, WORD_SCORES):
            fusion = CtcFusionOptions(lm_weight=lm_weight, word_score=word_score, unknown_score=-5.0)
            decoder = self._decoder(language, fusion, lexicon=lexicon)
            rate = word_error_rate(dev, self._best(decoder, dev))
            rates.setdefault(rate, (decoder, {"lm_weight": lm_weight, "word_score": word_score}))
        self._decoders[name], self.chosen[name] = rates[min(rates)]
        return self._decoders[name]

    def _rescored(self, language: str, clips: list[Clip]) -> list[str]:
        return reranked(self._scored(language, clips), *self._neural_weights())

    @cache  # noqa: B019  # one bench a run
    def _neural_weights(self) -> tuple[float, float]:
        """The neural weight and the n-gram's share that are best on the dev clips of all languages."""
        rates: dict[tuple[float, float], float] = {}
        dev = {code: [clip for clip in self._parts.dev if clip.language == code] for code in VOICES}
        scored = {code: self._scored(code, clips) for code, clips in dev.items()}
        every = [clip for clips in dev.values() for clip in clips]
        for weights in itertools.product(NEURAL_WEIGHTS, NGRAM_SHARES):
            texts = [text for code in VOICES for text in reranked(scored[code], *weights)]
            rates[weights] = word_error_rate(every, texts)
        weight, share = min(rates, key=lambda weights: rates[weights])
        self.chosen["neural"] = {"weight": weight, "share": share, "dev": rates[weight, share]}
        self.chosen["n-gram alone"] = {"dev": rates[0.0, 1.0]}
        return weight, share

    def _scored(self, language: str, clips: Sequence[Clip]) -> Scored:
        listed = self._decode(self._tuned_decoder(language, lexicon=True), clips)
        weight = self.chosen[f"{language}, lexicon"]["lm_weight"]
        ngram = ReplacedModel(self._ngrams[language], weight)
        alone = NeuralRescorer(self._neural[language], weight)
        instead = NeuralRescorer(self._neural[language], weight, replaces=ngram)
        scored: Scored = []
        beginning = WordHistory()
        for found in listed:
            histories = [beginning.with_words(h.text.split()) for h in found]
            neural = alone.adjustments(histories, final=True)
            change = instead.adjustments(histories, final=True)
            rows = zip(found, neural, change, strict=True)
            scored.append([(h.text, h.score, value, value - less) for h, value, less in rows])
            alone.forget()
            instead.forget()
        return scored


def reranked(scored: Scored, weight: float, share: float) -> list[str]:
    """The best of each list, with the neural model at a weight and a share of the n-gram."""
    return [
        max(rows, key=lambda row: row[1] + weight * row[2] - (1 - share) * row[3])[0] if rows else ""
        for rows in scored
    ]


def letters_of(model: Model) -> str:
    """The labels that words are made of: letters and the apostrophe."""
    assert model.ctc_head is not None
    single = (label for label in model.ctc_head.labels if len(label) == 1)
    return "".join(label for label in single if label.isalpha() or label == "'")


def errors_of(clips: Sequence[Clip], texts: Sequence[str]) -> np.ndarray:
    """Word errors and words of every clip: (n, 2)."""
    counts = [count_edits(c.text.split(), text.split()) for c, text in zip(clips, texts, strict=True)]
    return np.array([[count.n_errors, count.n_reference] for count in counts], dtype=np.float64)


def word_error_rate(clips: Sequence[Clip], texts: Sequence[str]) -> float:
    errors, words = errors_of(clips, texts).sum(axis=0)
    return float(errors / max(words, 1))


def interval(values: np.ndarray, words: np.ndarray, n_draws: int = 2000) -> tuple[float, float]:
    """Bootstrap 95 % interval of sum(values) / sum(words) over clips."""
    chosen = np.random.default_rng(0).integers(len(values), size=(n_draws, len(values)))
    rates = values[chosen].sum(axis=1) / words[chosen].sum(axis=1)
    low, high = np.quantile(rates, (0.025, 0.975))
    return float(low), float(high)


def show_steps(clips: Sequence[Clip], steps: Iterable[tuple[str, list[str]]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    before: np.ndarray | None = None
    print("| step | WER | 95 % | change, 95 % | " + " | ".join(VOICES) + " |")
    print("|---" * (4 + len(VOICES)) + "|")
    for name, texts in steps:
        errors, words = errors_of(clips, texts).T
        rate, change = errors.sum() / words.sum(), ""
        row = {"step": name, "wer": rate, "interval": interval(errors, words)}
        if before is not None:
            row["change"] = interval(errors - before, words)
            change = f"{(errors - before).sum() / words.sum():+.1%} ({shown(row['change'])})"
        parts = [f"{part:.1%}" for part in by_language(clips, texts)]
        show_row(name, f"{rate:.1%}", f"{shown(row['interval'])}", change, *parts)
        rows.append(row)
        before = errors
    return rows


def shown(limits: tuple[float, float]) -> str:
    return f"{limits[0]:.1%} to {limits[1]:.1%}"


def by_language(clips: Sequence[Clip], texts: Sequence[str]) -> list[float]:
    rates = []
    for language in VOICES:
        pairs = [pair for pair in zip(clips, texts, strict=True) if pair[0].language == language]
        rates.append(word_error_rate([clip for clip, _ in pairs], [text for _, text in pairs]))
    return rates


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="manifest.jsonl, text/sentences, text/freqwords"
    )
    parser.add_argument("--model", default="nano")
    parser.add_argument(
        "--spoken", type=int, default=12, help="synthetic clips a language, three times as many for dev"
    )
    parser.add_argument("--read", type=int, default=24, help="clips a reader, three times as many for dev")
    parser.add_argument(
        "--neural-seconds", type=float, default=120, help="processor time to train the networks"
    )
    options = parser.parse_args()
    begin = time.process_time()
    torch.set_num_threads(1)
    model = load_model(options.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = corpus(options.data, folder, letters_of(model), options.spoken, options.read)
        bench = Bench(model, parts, options.data, folder, options.neural_seconds)
        rows = show_steps(parts.test, bench.steps())
    seconds = round(time.process_time() - begin)
    print(f"{len(parts.test)} clips reported, {len(parts.dev)} for dev, {seconds} s of processor time")
    show_json("ctc steps", {"steps": rows, "chosen": bench.chosen, "seconds": seconds})
