"""pyctcdecode's interface to the CTC search, so that a program changes one import:

    from sottovoce.ctc.compat import build_ctcdecoder

Scores are those of pyctcdecode 0.5: natural logs, `unk_score_offset` in log10 times `alpha`,
`hotword_weight` for each word of `hotwords`. Both programs read the folders of `save_to_dir`.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.emissions import Emitted, as_arrays, batch_of, log_softmax
from sottovoce.ctc.labels import PIECE_START, Labels
from sottovoce.ctc.models import SPECIAL_WORDS, PhraseSpeller
from sottovoce.ctc.options import CtcFusionOptions, CtcOptions
from sottovoce.errors import InputError, expecting
from sottovoce.lm.base import Floats, Ints
from sottovoce.lm.boosting import ListedPhrase, usable
from sottovoce.lm.lexicon import Entries, Lexicon
from sottovoce.lm.ngram import load_ngram
from sottovoce.text.files import read_lines, read_text
from sottovoce.types import Hypothesis

if TYPE_CHECKING:
    from typing_extensions import Unpack

WordFrames = tuple[str, tuple[int, int]]
"""A word, its first frame and the one after its last."""
BatchBeam = tuple[str, list[WordFrames], float, float]
"""Text, words, log-probability of the labels, and the same with language model and hotwords."""
OutputBeam = tuple[str, int | None, list[WordFrames], float, float]
"""A `BatchBeam` with the language model's state after the text in the second place."""

BEAM_WIDTH, PRUNE_LOGP, MIN_TOKEN_LOGP, HOTWORD_WEIGHT = 100, -10.0, -5.0, 10.0
"""Defaults of pyctcdecode."""
_LEAST_PROBABILITY = 1e-15
"""pyctcdecode's, for emissions."""
_BATCH = 8
"""Utterances decoded together, as by `sottovoce ctc`."""
_NO_WEIGHTS = (0.0, 0.0, 0.0)
_NO_PRUNING = (_NO_WEIGHTS, 1, -math.inf, (), 0.0)
_DECODERS = 16
"""Combinations of weights, hotwords and pruning that stay in memory."""
_BLANKS, _UNKNOWN, _UNKNOWN_SIGN = ("<pad>", "[pad]", "_"), ("<unk>", "[unk]"), "⁇"
_ATTRIBUTES, _UNIGRAMS = "attrs.json", "unigrams.txt"


@dataclass(frozen=True)
class Alphabet:
    """Labels as the decoder writes them: the blank is "", the space " ", an unknown sign "⁇".

    is_bpe: labels are pieces of words, of which "▁" marks the first.
    """

    labels: list[str]
    is_bpe: bool

    @classmethod
    def build_alphabet(cls, labels: Sequence[str]) -> Alphabet:
        """Read the labels of a network; a blank is added at the end if none has its name."""
        is_marked = any(len(label) > 1 and label.startswith(PIECE_START) for label in labels)
        is_bpe = is_marked or any(label.startswith("##") for label in labels)
        named = ["" if label.lower() in _BLANKS else label for label in labels]
        unknown = f"{PIECE_START}{_UNKNOWN_SIGN}{PIECE_START}" if is_bpe else _UNKNOWN_SIGN
        named = [unknown if label.lower() in _UNKNOWN else label for label in named]
        if is_bpe and not is_marked:  # WordPiece marks the other pieces
            named = [
                label.removeprefix("##")
                if label.startswith("##") or label in ("", unknown)
                else PIECE_START + label
                for label in named
            ]
        if not is_bpe and " " not in named:
            named = [" " if label == "|" else label for label in named]
        return cls(named if "" in named else [*named, ""], is_bpe)


@dataclass
class LanguageModel:
    """An n-gram model over words (ARPA, KenLM binary or trie) and its weights.

    unigrams: the known words; None: those of the model. score_boundary: texts are whole sentences.
    """

    path: str
    unigrams: Collection[str] | None = None
    alpha: float = 0.5
    beta: float = 1.5
    unk_score_offset: float = -10.0
    score_boundary: bool = True


class SearchOptions(TypedDict, total=False):
    """Keywords of the methods of `BeamSearchDecoderCTC`.

    beam_prune_logp: drop hypotheses this much (negative) below the best. token_min_logp: skip labels of a
    frame below it, except the likeliest. prune_history: unused. hotwords: phrases, of which every word
    counts. lm_start_state: of the text before, from `decode_beams`.
    """

    beam_prune_logp: float
    token_min_logp: float
    prune_history: bool
    hotwords: Iterable[str] | None
    hotword_weight: float
    lm_start_state: int | None


class BeamSearchDecoderCTC:
    """Decodes logits, log-probabilities or probabilities (T, V) of utterances.

    beam_width: hypotheses kept. pool: unused; a batch runs on native threads.

    A decoder can be copied and pickled; files are read anew.

    Raises:
        InputError: a `ValueError`: logits of another shape, or without numbers.
        LanguageModelError: a model or hotwords that cannot be used.
    """

    _ALPHABET_SERIALIZED_FILENAME = "alphabet.json"
    _LANGUAGE_MODEL_SERIALIZED_DIRECTORY = "language_model"
    _model_key = "language_model"

    def __init__(self, alphabet: Alphabet, language_model: LanguageModel | None = None) -> None:
        self._alphabet, self._language_model = alphabet, language_model
        self._labels = Labels.of(alphabet.labels, alphabet.labels.index(""))
        self._speller = PhraseSpeller(self._labels)
        self._model = None if language_model is None else load_ngram(language_model.path)
        self._lexicon: Lexicon | None = None
        self._lexicon = self._make(*_NO_PRUNING, entries=self._entries()).lexicon
        self._decoder = lru_cache(maxsize=_DECODERS)(self._make)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """pyctcdecode's class once it is imported, which transformers' `Wav2Vec2ProcessorWithLM` checks."""
        return getattr(sys.modules.get("pyctcdecode"), "BeamSearchDecoderCTC", type(self))

    def __reduce__(self) -> tuple[object, ...]:
        return BeamSearchDecoderCTC, (self._alphabet, self._language_model)

    @property
    def model_container(self) -> Mapping[str, LanguageModel | None]:
        return {self._model_key: self._language_model}

    def reset_params(
        self,
        alpha: float | None = None,
        beta: float | None = None,
        unk_score_offset: float | None = None,
        lm_score_boundary: bool | None = None,
    ) -> None:
        """Change weights of the language model; None: as before."""
        given = {"alpha": alpha, "beta": beta, "unk_score_offset": unk_score_offset}
        for name, value in {**given, "score_boundary": lm_score_boundary}.items():
            if value is not None and self._language_model is not None:
                setattr(self._language_model, name, value)

    def decode(self, logits: Emitted, beam_width: int = BEAM_WIDTH, **options: Unpack[SearchOptions]) -> str:
        """Return the best text."""
        return self.decode_beams(logits, beam_width, **options)[0][0]

    def decode_beams(
        self, logits: Emitted, beam_width: int = BEAM_WIDTH, **options: Unpack[SearchOptions]
    ) -> list[OutputBeam]:
        """Return the texts, best first."""
        return self._beams([logits], beam_width, **options)[0]

    def decode_batch(
        self,
        pool: object,
        logits_list: Iterable[Emitted],
        beam_width: int = BEAM_WIDTH,
        **options: Unpack[SearchOptions],
    ) -> list[str]:
        """Return the best text of each utterance."""
        return [beams[0][0] for beams in self._beams(logits_list, beam_width, **options)]

    def decode_beams_batch(
        self,
        pool: object,
        logits_list: Iterable[Emitted],
        beam_width: int = BEAM_WIDTH,
        **options: Unpack[SearchOptions],
    ) -> list[list[BatchBeam]]:
        """Return the texts of each utterance, best first."""
        lists = self._beams(logits_list, beam_width, **options)
        return [
            [(text, words, logit_score, score) for text, _, words, logit_score, score in beams]
            for beams in lists
        ]

    def save_to_dir(self, filepath: str | Path) -> None:
        """Write labels, weights, known words and a copy of the model's file into a folder."""
        folder = Path(filepath)
        (folder / self._ALPHABET_SERIALIZED_FILENAME).write_text(
            json.dumps(asdict(self._alphabet)), encoding="utf-8"
        )
        model = self._language_model
        if model is None:
            return
        folder /= self._LANGUAGE_MODEL_SERIALIZED_DIRECTORY
        folder.mkdir()
        shutil.copy(model.path, folder)
        attributes = {key: value for key, value in asdict(model).items() if key not in ("path", "unigrams")}
        (folder / _ATTRIBUTES).write_text(json.dumps(attributes), encoding="utf-8")
        words = sorted(self._words if model.unigrams is None else model.unigrams)
        (folder / _UNIGRAMS).write_text("\n".join(words), encoding="utf-8")

    @classmethod
    def load_from_dir(cls, filepath: str | Path, unigram_encoding: str | None = None) -> BeamSearchDecoderCTC:
        """Read a folder of `save_to_dir`, or of pyctcdecode's. unigram_encoding: unused; it is detected.

        Raises:
            InputError: missing files.
        """
        folder = Path(filepath)
        alphabet = Alphabet(**_read_json(folder / cls._ALPHABET_SERIALIZED_FILENAME))
        folder /= cls._LANGUAGE_MODEL_SERIALIZED_DIRECTORY
        if not folder.is_dir():
            return cls(alphabet)
        models = [each for each in folder.iterdir() if each.name not in (_ATTRIBUTES, _UNIGRAMS)]
        models = [each for each in models if not each.name.startswith((".", "__"))]
        if len(models) != 1:
            raise InputError(f"{folder}: expected one n-gram model, got {len(models)}")
        listed = folder / _UNIGRAMS
        unigrams = read_lines(listed, "words, one a line") if listed.exists() else None
        return cls(alphabet, LanguageModel(str(models[0]), unigrams, **_read_json(folder / _ATTRIBUTES)))

    @classmethod
    def load_from_hf_hub(
        cls, model_id: str, cache_dir: str | None = None, **kwargs: Any
    ) -> BeamSearchDecoderCTC:
        """Download a folder from the Hugging Face hub. kwargs: of its `snapshot_download`."""
        from huggingface_hub import snapshot_download

        return cls.load_from_dir(snapshot_download(model_id, cache_dir=cache_dir, **kwargs))

    def _make(
        self,
        weights: tuple[float, float, float],
        beam_width: int,
        beam_prune_logp: float,
        hotwords: tuple[str, ...],
        hotword_weight: float,
        entries: Entries | None = None,
    ) -> CtcDecoder:
        alpha, beta, unk_score_offset = weights
        phrases = [ListedPhrase(word, hotword_weight, "hotwords") for word in hotwords]
        spelled = usable(phrases, lambda phrase: self._speller.spellings(phrase.text))
        return CtcDecoder(
            self._labels.names,
            self._labels.blank,
            lm=self._model,
            lexicon=self._lexicon or entries,
            unknown_words=True,
            hotwords={phrase.text: phrase.weight / len(ways[0]) for phrase, ways in spelled} or None,
            beam_size=beam_width,
            n_best=beam_width,
            fusion=CtcFusionOptions(
                lm_weight=alpha,
                level="word",
                word_score=beta,
                unknown_score=alpha * math.log(10) * unk_score_offset,
            ),
            options=CtcOptions(
                is_normalised=False,
                frame_s=1.0,
                beam_threshold=None if math.isinf(beam_prune_logp) else -beam_prune_logp,
            ),
        )

    def _entries(self) -> Entries | None:
        """Return the known words, with their labels where these are pieces; None: those of the model."""
        if self._model is None or self._language_model is None:
            return None
        words = self._language_model.unigrams
        if words is None and self._labels.separator is not None:
            return None
        vocabulary = self._model.vocabulary if words is None else words
        known = [word for word in vocabulary if word in self._model and word not in SPECIAL_WORDS]
        if self._labels.separator is not None:
            return known
        return [(word, way) for word in known for way in self._speller.segmentations(word)]

    @cached_property
    def _words(self) -> frozenset[str]:
        words = () if self._lexicon is None else self._lexicon.words
        return frozenset(word for word in words if word is not None)

    def _beams(
        self,
        logits_list: Iterable[Emitted],
        beam_width: int,
        beam_prune_logp: float = PRUNE_LOGP,
        token_min_logp: float = MIN_TOKEN_LOGP,
        prune_history: bool = False,
        hotwords: Iterable[str] | None = None,
        hotword_weight: float = HOTWORD_WEIGHT,
        lm_start_state: int | None = None,
    ) -> list[list[OutputBeam]]:
        model, settings = self._model, self._language_model
        words = tuple(dict.fromkeys(word for phrase in hotwords or () for word in phrase.split()))
        weights = (settings.alpha, settings.beta, settings.unk_score_offset) if settings else _NO_WEIGHTS
        decoder = self._decoder(weights, beam_width, beam_prune_logp, words, hotword_weight)
        rows = [self._emissions(logits, token_min_logp) for logits in logits_list]
        beams: list[list[OutputBeam]] = []
        for at in range(0, len(rows), _BATCH):
            values, lengths = batch_of(rows[at : at + _BATCH])
            state, first = decoder.start(len(values)), np.zeros(1, np.int64)
            if model is not None and settings is not None:
                first = (model.start if settings.score_boundary else model.null_context)(1)
                first = first if lm_start_state is None else np.array([lm_start_state])
                state.scores[:, :, 1] = first  # behind the lexicon's node
            for hypotheses in decoder.decode(values, lengths, state=state, homophones=False):
                states = self._states_after([each.text for each in hypotheses], first)
                ends = np.zeros(len(states), np.float32)
                if model is not None and settings is not None and not settings.score_boundary:
                    ends = settings.alpha * model.finish(states)
                beams.append(
                    _merged(hypotheses, states.tolist() if model else [None] * len(states), ends.tolist())
                )
        return beams

    def _emissions(self, logits: Emitted, token_min_logp: float) -> Floats:
        values = as_arrays(logits, None)[0]
        if values.ndim != 2 or values.shape[1] != len(self._labels):
            raise InputError(
                f"logits: expected (T, {len(self._labels)}), got an array of shape {values.shape}"
            )
        is_probability = len(values) and math.isclose(values.sum(axis=1).mean(), 1)
        logs = np.log(values.clip(_LEAST_PROBABILITY, 1)) if is_probability else log_softmax(values)
        logs = logs.clip(math.log(_LEAST_PROBABILITY), 0).astype(np.float32)
        is_likely = (logs >= token_min_logp) | (logs == logs.max(axis=1, keepdims=True, initial=-np.inf))
        if self._lexicon is not None and self._labels.separator is None:
            is_likely[:, self._labels.blank] = True  # a likely piece may continue no word
        return np.where(is_likely, logs, np.float32(-np.inf))

    def _states_after(self, texts: Sequence[str], first: Ints) -> Ints:
        """Return the model's states (N,) after texts from a state (1,)."""
        states = first.repeat(len(texts))
        if self._model is None:
            return states
        lists = [[word if word in self._words else "<unk>" for word in text.split()] for text in texts]
        for place in range(max(map(len, lists), default=0)):
            rows = np.array([row for row, words in enumerate(lists) if len(words) > place])
            ids = np.array(self._model.ids([lists[row][place] for row in rows]))
            states[rows] = self._model.score(states[rows], ids)[1]
        return states


def _merged(
    hypotheses: Sequence[Hypothesis], states: Sequence[int | None], ends: Sequence[float]
) -> list[OutputBeam]:
    """Return hypotheses as beams; those of one text, which differ in separators, become one.

    ends: scores of the sentence's end, to subtract.
    """
    beams: dict[str, OutputBeam] = {}
    listed: set[tuple[str, tuple[int, ...]]] = set()
    for each, state, end in zip(hypotheses, states, ends, strict=True):
        if (each.text, each.tokens) in listed:  # a known word's labels that count as an unknown word too
            continue
        listed.add((each.text, each.tokens))
        words = [(word.word, (round(word.start), round(word.end))) for word in each.words]
        beam = each.text, state, words, each.acoustic_score, each.score - end
        if each.text in beams:
            _, state, words, *scores = beams[each.text]
            beam = each.text, state, words, *np.logaddexp(scores, beam[3:]).tolist()
        beams[each.text] = beam
    return sorted(beams.values(), key=lambda beam: -beam[4])


def _read_json(path: Path) -> dict[str, Any]:
    with expecting(path, "JSON", InputError):
        values: dict[str, Any] = json.loads(read_text(path, "JSON"))
    return values


def build_ctcdecoder(
    labels: Sequence[str],
    kenlm_model_path: str | Path | None = None,
    unigrams: Collection[str] | None = None,
    alpha: float = 0.5,
    beta: float = 1.5,
    unk_score_offset: float = -10.0,
    lm_score_boundary: bool = True,
) -> BeamSearchDecoderCTC:
    """Make a decoder of the labels of a network, and an n-gram model over words.

    kenlm_model_path: ARPA, KenLM binary or a trie of `sottovoce lm`. unigrams: the known words; None: those
    of the model. alpha: weight of the model. beta: score added for each word. unk_score_offset: added for
    unknown words, in log10 and times alpha. lm_score_boundary: texts are whole sentences.

    Raises:
        LanguageModelError, OptionError: a model or labels that cannot be used.
    """
    model = None
    if kenlm_model_path is not None:
        weights = (alpha, beta, unk_score_offset, lm_score_boundary)
        model = LanguageModel(str(kenlm_model_path), unigrams, *weights)
    return BeamSearchDecoderCTC(Alphabet.build_alphabet(labels), model)
