"""What people say, through the CTC heads of real models, step by step.

    python -m benchmarks ctc people --data ../shared/data

Clips: recordings of people whose text is known, of the part that reports (`harness.clips`): base's head was
not trained on them. Weights are chosen, for each model, on the clips that `recipes.ctc_head` held out of its
training (nano has heard those). The language models are trained here, per language, on text that holds no
sentence of any of these clips: a trigram, and a lexicon of its words and the 20 000 most used ones. "file"
and "live" are the head as a model, with the trigram: `transcribe`, and sessions.

Prints letters and words wrong of every set, words also with a bootstrap 95 % interval over all clips; then
one JSON line.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.ctc.texts import (
    frequencies,
    holds_any,
    letters_of,
    passages,
    rate_of,
    shown,
    spelled,
    write_ngrams,
)
from benchmarks.harness import clips as human_clips
from benchmarks.harness.report import benchmark_parser, show_heads, show_json, show_row
from recipes.ctc_head.material import human_clips_of, is_spelt
from sottovoce.api import Model, as_whisper, load_model
from sottovoce.audio.io import load_audio
from sottovoce.cli.ctc import recorded_emissions
from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.emissions import batch_of
from sottovoce.ctc.options import CtcOptions, DecoderConfig
from sottovoce.evaluation.scores import run_live
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.ngram import NgramModel
from sottovoce.network_model import CtcModel
from sottovoce.streaming.options import StreamOptions
from sottovoce.types import Hypothesis

LANGUAGES = ("en", "de", "es", "fr")
LARGE_SETS = ("kathleen-en", "kerstin-de", "librispeech-mini", "dona-es")
BEAM = 32
LM_WEIGHTS, WORD_SCORES = (0.2, 0.4, 0.6, 0.9), (0.0, 1.0, 2.0)
UNKNOWN_SCORE = -5.0


@dataclass(frozen=True, slots=True)
class Said:
    """A recording, its text in the labels' letters, its language and its set."""

    path: Path
    text: str
    language: str
    group: str


def reported(data: Path, languages: Sequence[str], letters: str) -> list[Said]:
    """The clips of the reporting part whose letters say how they sound."""
    result = [
        clip
        for language in languages
        for clip in human_clips.clips(data, "test", language=language, with_text=True)
        if is_spelt(language, clip.text or "")
    ]
    return [
        Said(clip.file, spelled(clip.text or "", letters), clip.language, group_of(clip.group, clip.language))
        for clip in result
    ]


def held_out(data: Path, languages: Sequence[str], letters: str) -> list[Said]:
    """The clips that choose: known text, not trained on."""
    return [
        Said(Path(clip.file), spelled(clip.text, letters), clip.language, group_of(clip.group, clip.language))
        for clip in human_clips_of(data)
        if clip.split == "dev" and clip.text and clip.language in languages
    ]


def group_of(name: str, language: str) -> str:
    """Sets of a handful of clips go together by language."""
    return name if name in LARGE_SETS else f"other {language}"


class Texts:
    """The language models of each language, of text without any sentence of the clips."""

    def __init__(self, data: Path, folder: Path, clips: Sequence[Said], letters: str) -> None:
        self.files: dict[str, Path] = {}
        self.ngrams: dict[str, NgramModel] = {}
        self.words: dict[str, list[str]] = {}
        languages = list(dict.fromkeys(clip.language for clip in clips))
        for language in languages:
            spoken = {clip.text for clip in clips if clip.language == language}
            texts = self.read(data, language, letters, spoken)
            frequent = frequencies(data, language, letters, 20_000)
            path = self.files[language] = folder / f"{language}.arpa"
            write_ngrams(texts, path, frequent=frequent)
            self.ngrams[language] = NgramModel.load(path)
            self.words[language] = list(
                dict.fromkeys([*(word for text in texts for word in text.split()), *frequent])
            )

    @staticmethod
    def read(data: Path, language: str, letters: str, spoken: set[str]) -> list[str]:
        taught = human_clips.clips(data, "dev", language=language, with_text=True)
        lines = [*passages(data, language, letters), *(spelled(clip.text or "", letters) for clip in taught)]
        return [text for text in dict.fromkeys(lines) if text and not holds_any(text, spoken)]


class Bench:
    def __init__(
        self,
        model: Model,
        texts: Texts,
        dev: Sequence[Said],
        test: Sequence[Said],
        weights: Sequence[tuple[float, float]],
    ) -> None:
        """weights: pairs of lm_weight and word_score to choose among."""
        assert model.ctc_head is not None
        self._weights, self._network = weights, model.network
        self.dev, self.test, self._texts = dev, test, texts
        self._labels, self._blank = list(model.ctc_head.labels), model.ctc_head.blank
        self._emissions = {
            clip.path: recorded_emissions(clip.path, self._network).values for clip in (*dev, *test)
        }
        self.chosen: dict[str, dict[str, float]] = {}
        self._trees: dict[tuple[str, bool], Lexicon] = {}

    def steps(self) -> Iterator[tuple[str, list[str]]]:
        plain = self._decoder(self.test[0].language, lm=False)
        yield "greedy", [plain.greedy(self._emissions[clip.path])[0].text for clip in self.test]
        yield f"beam {BEAM}", _best(self._decoded(plain, self.test))
        yield "+ n-gram", self._tuned("n-gram", lexicon=False)
        yield "+ lexicon", self._tuned("lexicon", lexicon=True)
        fusion = CtcFusionOptions(**self.chosen["n-gram"], unknown_score=UNKNOWN_SCORE)
        models = {
            language: CtcModel(
                self._network,
                config=DecoderConfig(lm=path, fusion=fusion, options=CtcOptions(beam_size=BEAM)),
            )
            for language, path in self._texts.files.items()
        }
        yield "file", [models[clip.language].transcribe(clip.path).text for clip in self.test]
        yield "live", [live_text(models[clip.language], clip.path) for clip in self.test]

    def _decoder(
        self, language: str, fusion: CtcFusionOptions | None = None, *, lm: bool = True, lexicon: bool = False
    ) -> CtcDecoder:
        key = (language, lexicon)
        ids = {label: i for i, label in enumerate(self._labels)}
        words = [(word, [ids[c] for c in word]) for word in self._texts.words[language]] if lexicon else None
        decoder = CtcDecoder(
            self._labels,
            self._blank,
            lm=self._texts.ngrams[language] if lm else None,
            lexicon=self._trees.get(key, words) if lm else None,
            beam_size=BEAM,
            n_best=BEAM,
            fusion=fusion,
        )
        if decoder.lexicon is not None:
            self._trees[key] = decoder.lexicon
        return decoder

    def _decoded(self, decoder: CtcDecoder, clips: Sequence[Said]) -> list[list[Hypothesis]]:
        return decoder.decode(*batch_of([self._emissions[clip.path] for clip in clips]))

    def _listed(
        self, weights: tuple[float, float], clips: Sequence[Said], *, lexicon: bool
    ) -> list[list[Hypothesis]]:
        result: dict[Path, list[Hypothesis]] = {}
        fusion = CtcFusionOptions(lm_weight=weights[0], word_score=weights[1], unknown_score=UNKNOWN_SCORE)
        for language in dict.fromkeys(clip.language for clip in clips):
            of_language = [clip for clip in clips if clip.language == language]
            lists = self._decoded(self._decoder(language, fusion, lexicon=lexicon), of_language)
            result |= zip((clip.path for clip in of_language), lists, strict=True)
        return [result[clip.path] for clip in clips]

    def _words_wrong(self, pair: tuple[float, float], *, lexicon: bool) -> float:
        texts = _best(self._listed(pair, self.dev, lexicon=lexicon))
        return rate_of([clip.text for clip in self.dev], texts).rate or 0.0

    def _tuned(self, name: str, *, lexicon: bool) -> list[str]:
        """Texts at the weights that are best on all clips held out."""
        pairs = self._weights
        rates = {pair: self._words_wrong(pair, lexicon=lexicon) for pair in pairs if len(pairs) > 1}
        best = min(pairs, key=lambda pair: rates.get(pair, 0.0))
        self.chosen[name] = {"lm_weight": best[0], "word_score": best[1]}
        return _best(self._listed(best, self.test, lexicon=lexicon))


def live_text(model: CtcModel, path: Path) -> str:
    stream = StreamOptions()
    return run_live(model.session(stream=stream), load_audio(path), chunk_s=stream.chunk_s).text


def _best(lists: Sequence[Sequence[Hypothesis]]) -> list[str]:
    return [result[0].text if result else "" for result in lists]


def show(name: str, bench: Bench) -> list[dict[str, object]]:
    groups = list(dict.fromkeys(clip.group for clip in bench.test))
    sizes = [sum(clip.group == group for clip in bench.test) for group in groups]
    titles = [f"{group} ({size})" for group, size in zip(groups, sizes, strict=True)]
    print()
    show_heads(name, "all: letters", "all: words, 95 %", *titles)
    rows: list[dict[str, object]] = []
    for step, texts in bench.steps():
        texts = [" ".join(text.split()) for text in texts]
        parts = {}
        for group in groups:
            pairs = [(c.text, t) for c, t in zip(bench.test, texts, strict=True) if c.group == group]
            sides = [item for item, _ in pairs], [text for _, text in pairs]
            parts[group] = rate_of(*sides, letters=True).rate or 0.0, rate_of(*sides).rate or 0.0
        said = [clip.text for clip in bench.test]
        letters, words = rate_of(said, texts, letters=True).rate or 0.0, rate_of(said, texts)
        limits = words.low or 0.0, words.high or 0.0
        cells = (f"{item:.1%} · {other:.1%}" for item, other in parts.values())
        show_row(step, f"{letters:.1%}", shown(words.rate or 0.0, *limits), *cells)
        row = {"step": step, "letters": letters, "words": words.rate, "interval": limits, "sets": parts}
        rows.append(row)
    return rows


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="manifest.jsonl, text/sentences, text/freqwords"
    )
    parser.add_argument("--models", nargs="+", default=["base", "nano"])
    parser.add_argument("--languages", nargs="+", default=LANGUAGES, choices=LANGUAGES)
    parser.add_argument(
        "--weights",
        type=float,
        nargs=2,
        metavar=("LM", "WORD"),
        help="of the n-gram and a word, where a language has too few clips to choose by",
    )
    parser.add_argument("--clips", type=int, default=1000, help="at most, the same share of every set")
    options = parser.parse_args()
    weights = [tuple(options.weights)] if options.weights else [*itertools.product(LM_WEIGHTS, WORD_SCORES)]
    begin = time.process_time()
    torch.set_num_threads(1)
    models = [as_whisper(load_model(name), "CTC head") for name in options.models]
    letters = letters_of(models[0])
    test, dev = (select(options.data, options.languages, letters) for select in (reported, held_out))
    share = max(1, -(-len(test) // options.clips))
    test, dev = test[::share], dev[::share]
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        texts = Texts(options.data, Path(name), [*test, *dev], letters)
        for model in models:
            bench = Bench(model, texts, dev, test, weights)
            rows[model.name] = {"steps": show(model.name, bench), "chosen": bench.chosen}
    seconds = round(time.process_time() - begin)
    print(f"\n{len(test)} clips reported, {len(dev)} to choose by, {seconds} s of processor time")
    show_json("ctc people", {"models": rows, "seconds": seconds})
