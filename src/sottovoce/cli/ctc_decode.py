"""Decoding of emissions for `sottovoce ctc`; `tune` chooses weights by the word error rate."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.cli.options import DecoderOptions
from sottovoce.ctc import CtcDecoder, load_ngram
from sottovoce.ctc.decoder import StreamUpdate
from sottovoce.ctc.labels import LabelList
from sottovoce.ctc.options import DecoderConfig, chosen_values, read_config, read_priors
from sottovoce.ctc.tuning import Range, Weights, folds_of, tune
from sottovoce.errors import InputError, ManifestError, OptionError, SottovoceError, cause_of
from sottovoce.evaluation.wer import ErrorCounts, ErrorRate, ScoreOptions, count_edits, error_rate
from sottovoce.formats.document_words import with_vocabulary
from sottovoce.lm.base import WordModel
from sottovoce.lm.boosting import Hotwords
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import CausalWordModel, History, WordLanguageModel
from sottovoce.models.ctc_head import emissions_of_recording
from sottovoce.models.devices import choose_device
from sottovoce.options.schema import changed, options_of
from sottovoce.text.files import read_lines
from sottovoce.text.normalize import composed
from sottovoce.types import FRAMES_PER_SECOND, Hypothesis

Decode = Callable[[list[Tensor], Sequence[int]], list[list[Hypothesis]]]


@dataclass(frozen=True, slots=True)
class EmissionSource:
    """Emissions (T, V) of an utterance, of each network."""

    name: str
    networks: tuple[Tensor, ...]

    @property
    def values(self) -> Tensor:
        return self.networks[0]


def read_emissions(path: Path) -> Iterator[EmissionSource]:
    """Yield the utterances of a file: (T, V) or (B, T, V) of an npy, each array of an npz, or the rows of a
    csv (commas or semicolons, no header). "-" is an npy from standard input.

    Raises: InputError.
    """
    try:
        if str(path) == "-":
            whole = io.BytesIO(sys.stdin.buffer.read())
            yield from _utterances("-", np.load(whole, allow_pickle=False))
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                for name in archive.files:
                    yield from _utterances(f"{path}#{name}", archive[name])
        elif path.suffix == ".npy":
            yield from _utterances(str(path), np.load(path, allow_pickle=False))
        elif path.suffix == ".csv":
            yield from _utterances(str(path), _read_csv(path))
        else:
            raise ValueError(f"a file that ends in {path.suffix!r}")
    except InputError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path}: expected emissions as .npy, .npz or .csv, got {cause_of(error)}"
        ) from error


def recorded_emissions(path: Path, model: Model) -> EmissionSource:
    if model.ctc_head is None:
        raise OptionError(
            f"--model: expected a model with a CTC head (nano and base have one), got {model.name}"
        )
    dims = model.backend.dims
    values = emissions_of_recording(
        model.ctc_head,
        log_mel(load_audio(path), dims.n_mels, model.backend.device),
        n_audio_ctx=dims.n_audio_ctx,
        n_tail_frames=round(model.backend.tail_s * FRAMES_PER_SECOND),
    )
    return EmissionSource(str(path), (values,))


def _utterances(
    name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> Iterator[EmissionSource]:
    if values.ndim == 2:
        yield EmissionSource(name, (torch.from_numpy(values.astype(np.float32)),))
        return
    if values.ndim != 3:
        raise ValueError(f"an array of shape {values.shape}")
    for row, utterance in enumerate(values):
        yield EmissionSource(f"{name}[{row}]", (torch.from_numpy(utterance.astype(np.float32)),))


def _read_csv(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    lines = read_lines(path, "emissions as .npy, .npz or .csv", InputError)
    rows = csv.reader(lines, delimiter=";" if ";" in "".join(lines[:1]) else ",")
    return np.array([[float(cell) for cell in row if cell.strip()] for row in rows if row], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Utterances:
    options: DecoderOptions
    config: DecoderConfig
    model: Model | None
    labels: LabelList

    @classmethod
    def opened(cls, options: DecoderOptions, typed: Mapping[str, object]) -> Utterances:
        """Open the model or the labels. typed: values by key that take precedence over `options.config`."""
        if isinstance(typed.get("label_priors"), Path):
            typed = {**typed, "label_priors": read_priors(Path(str(typed["label_priors"])))}
        config = changed(DecoderConfig() if options.config is None else read_config(options.config), typed)
        choose_device(options.device)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        # Weights and penalties were tuned on the states of PyTorch's encoder.
        model = None if options.model is None else load_model(options.model, backend="torch")
        if model is not None and model.ctc_head is not None:
            own = LabelList(tuple(model.ctc_head.labels), model.ctc_head.blank)
            return cls(options, config, model, own)
        if model is not None or config.labels is None:
            raise OptionError("--labels: expected a file of labels (or --model with a CTC head), got none")
        return cls(options, config, model, config.label_list())

    def of(self, path: Path) -> Iterator[EmissionSource]:
        """Yield the utterances of a path, or of comma-separated paths of several networks."""
        if self.model is not None:
            yield recorded_emissions(path, self.model)
            return
        paths = [path] if path.exists() else [Path(part) for part in str(path).split(",")]
        for found in itertools.zip_longest(*map(read_emissions, paths)):
            sources = [source for source in found if source is not None]
            if len(sources) < len(paths):
                raise InputError(
                    f"{path}: expected equal numbers of utterances of each network, got fewer of one"
                )
            networks = tuple(source.values for source in sources)
            if self.options.logits:
                networks = tuple(values.log_softmax(dim=-1) for values in networks)
            if len({len(values) for values in networks}) > 1:
                lengths = ", ".join(str(len(values)) for values in networks)
                raise InputError(f"{path}: expected equal numbers of frames of each network, got {lengths}")
            yield EmissionSource(",".join(source.name for source in sources), networks)

    def decoder(
        self,
        n_best: int,
        lm: Path | WordModel | None,
        *,
        lexicon: Lexicon | None = None,
        neural_lm: WordLanguageModel | None = None,
    ) -> CtcDecoder:
        """Make the decoder with loaded models."""
        config = self.config
        return CtcDecoder(
            *self.labels,
            lm=lm,
            label_lm=config.label_lm,
            lexicon=config.lexicon if lexicon is None else lexicon,
            neural_lm=config.neural_lm if neural_lm is None else neural_lm,
            hotwords=self._hotwords(),
            n_best=n_best,
            unknown_words=config.unknown_words,
            fusion=config.fusion,
            options=config.options,
            device=self.options.device,
        )

    def _hotwords(self) -> Hotwords | None:
        return with_vocabulary(
            self.config.hotwords,
            self.options.vocabulary_from,
            default_weight=self.config.fusion.hotword_weight,
        )

    def config_with(self, weights: Mapping[str, float]) -> dict[str, object]:
        """Return the `decoder.toml` of this decoder with other weights."""
        found = chosen_values(self.config)
        found["labels"] = self.config.labels if self.model is None else self.labels.names
        found["blank"] = self.labels.blank
        if self.options.vocabulary_from:
            found["hotwords"] = self._hotwords()
        if self.config.neural_lm is not None and Path(self.config.neural_lm).exists():
            found["neural_lm"] = Path(self.config.neural_lm)
        return {**found, **weights}


def decoded(
    utterances: Utterances, files: Sequence[Path], n_best: int, batch_size: int, is_greedy: bool
) -> Iterator[tuple[str, list[Hypothesis] | SottovoceError]]:
    """Yield the hypotheses, or the error, of every utterance in order."""
    decoder = utterances.decoder(n_best, utterances.config.lm)

    def greedy(batch: list[Tensor], lengths: Sequence[int]) -> list[list[Hypothesis]]:
        return [[found] for found in decoder.greedy(batch, lengths)]

    together = partial(_together, greedy if is_greedy else decoder.decode)
    waiting: list[EmissionSource] = []
    for source in _sources(utterances, files):
        if isinstance(source, EmissionSource):
            waiting.append(source)
        if isinstance(source, SottovoceError) or len(waiting) == batch_size:
            yield from together(waiting)
            waiting = []
        if isinstance(source, SottovoceError):
            yield "", source
    yield from together(waiting)


def streamed(
    utterances: Utterances, files: Sequence[Path], n_best: int, chunk_ms: float
) -> Iterator[tuple[str, StreamUpdate | SottovoceError]]:
    """Yield the updates of every utterance, decoded in chunks, or its error."""
    decoder = utterances.decoder(n_best, utterances.config.lm)
    n_frames = max(1, round(chunk_ms / 1000 / utterances.config.options.frame_s))
    for source in _sources(utterances, files):
        if isinstance(source, SottovoceError):
            yield "", source
            continue
        chunks = zip(*(torch.split(values, n_frames) for values in source.networks), strict=True)
        try:
            for update in decoder.stream(map(list, chunks)):
                yield source.name, update
        except InputError as error:
            yield source.name, InputError(f"{source.name}: {error}")


def _sources(utterances: Utterances, files: Sequence[Path]) -> Iterator[EmissionSource | SottovoceError]:
    for path in files:
        try:
            yield from utterances.of(path)
        except SottovoceError as error:
            yield error


def _together(
    decode: Decode, sources: Sequence[EmissionSource]
) -> Iterator[tuple[str, list[Hypothesis] | SottovoceError]]:
    if len({(source.values.shape[1], len(source.networks)) for source in sources}) == 1 < len(sources):
        try:
            lists = _decode(decode, sources)
        except InputError:
            pass
        else:
            yield from zip((source.name for source in sources), lists, strict=True)
            return
    for source in sources:
        try:
            yield source.name, _decode(decode, [source])[0]
        except InputError as error:
            yield source.name, InputError(f"{source.name}: {error}")


def _decode(decode: Decode, sources: Sequence[EmissionSource]) -> list[list[Hypothesis]]:
    networks = [
        torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        for rows in zip(*(source.networks for source in sources), strict=True)
    ]
    return decode(networks, [len(source.values) for source in sources])


class RememberedWords:
    """Caches the scores of a neural model, which do not depend on weights."""

    def __init__(self, model: WordLanguageModel) -> None:
        self._model = model
        self._words: dict[tuple[History, str], float] = {}
        self._ends: dict[History, float] = {}

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        new = [pair for pair in pairs if pair not in self._words]
        self._words.update(self._model.score_words(new) if new else {})
        return {pair: self._words[pair] for pair in pairs}

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        new = [history for history in histories if history not in self._ends]
        self._ends.update(self._model.score_ends(new) if new else {})
        return {history: self._ends[history] for history in histories}


@dataclass(frozen=True, slots=True)
class TunedDecoder:
    """before, after: errors with the first and the chosen weights. held_out: by cross-validation, with a 95 %
    interval; None with fewer than two folds. config: values of a `decoder.toml`.
    """

    weights: Mapping[str, float]
    before: ErrorRate
    after: ErrorRate
    held_out: ErrorRate | None
    n_decodings: int
    config: Mapping[str, object]


def tunable(config: DecoderConfig, documents: Sequence[Path]) -> tuple[str, ...]:
    """Return the weights that have an effect. documents: whose words are boosted."""
    has_unknown = config.lexicon is None if config.unknown_words is None else config.unknown_words
    has_hotwords = bool(config.hotwords or documents)
    applies = {
        "acoustic_scale": bool(config.lm or config.label_lm or config.neural_lm) or has_hotwords,
        "blank_penalty": True,
        "lm_weight": config.lm is not None,
        "label_lm_weight": config.label_lm is not None,
        "word_score": True,
        "unknown_score": has_unknown and bool(config.lm or config.lexicon),
        "neural_weight": config.neural_lm is not None,
        "lm_kept": bool(config.neural_lm and config.lm),
        "hotword_weight": has_hotwords,
    }
    return tuple(name for name, does in applies.items() if does)


def tuned(
    utterances: Utterances,
    manifest: Path,
    ranges: Mapping[str, Range],
    *,
    n_folds: int,
    n_decodings: int,
    seed: int,
    progress: Callable[[], None],
) -> TunedDecoder:
    """Choose weights by the word errors of a development set.

    manifest: JSON lines with "emissions" (or "file", with a model), "text" and, optionally, "speaker": one
    fold each. progress: called after each decoding of the set.
    Raises: ManifestError, InputError.
    """
    paths, texts, speakers = _listed(manifest)
    sources = [next(utterances.of(path)) for path in paths]
    config, fusion = utterances.config, utterances.config.fusion
    lm, lexicon = None if config.lm is None else load_ngram(config.lm), None
    neural_lm = None
    if config.neural_lm is not None:
        neural_lm = RememberedWords(
            CausalWordModel.load(config.neural_lm, dtype=fusion.neural_dtype, cache_mb=fusion.neural_cache_mb)
        )
    references = [composed(text).split() for text in texts]

    def count(weights: Weights) -> list[ErrorCounts]:
        nonlocal lexicon
        weighted = replace(utterances, config=changed(config, weights))
        decoder = weighted.decoder(1, lm, lexicon=lexicon, neural_lm=neural_lm)
        lexicon = decoder.lexicon  # spellings do not depend on weights
        found = _decode(decoder.decode, sources)
        progress()
        return [
            count_edits(reference, composed(best[0].text if best else "").split())
            for reference, best in zip(references, found, strict=True)
        ]

    known: dict[tuple[float, ...], list[ErrorCounts]] = {}

    def errors(weights: Weights) -> npt.NDArray[np.int64]:
        counts = known[tuple(weights.values())] = count(weights)
        return np.array([each.n_errors for each in counts], np.int64)

    own = {
        one.field: getattr(part, one.field)
        for part in (fusion, config.options)
        for one in options_of(type(part))
    }
    start = {name: own[name] for name in ranges}
    folds = folds_of(speakers, n_folds)
    best = tune(errors, start, ranges, folds, n_decodings=n_decodings, seed=seed)
    before, after = (
        error_rate(known[tuple(each.values())], ScoreOptions()) for each in (start, best.weights)
    )
    held_out = None
    if best.held_out is not None:
        sizes = [each.n_reference for each in known[tuple(start.values())]]
        held_out = error_rate(
            # The interval needs errors and sizes alone.
            [
                ErrorCounts(hits=n - e, substitutions=e)
                for e, n in zip(best.held_out.tolist(), sizes, strict=True)
            ],
            ScoreOptions(),
        )
    return TunedDecoder(
        best.weights, before, after, held_out, best.n_decodings, utterances.config_with(best.weights)
    )


def _listed(manifest: Path) -> tuple[list[Path], list[str], list[str]]:
    """Return paths, texts and speakers; utterances without one are separate speakers."""
    paths: list[Path] = []
    texts: list[str] = []
    speakers: list[str] = []
    for number, line in enumerate(read_lines(manifest, "JSON lines", ManifestError), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            paths.append(manifest.parent / str(row.get("emissions") or row["file"]))
            texts.append(str(row["text"]))
            speakers.append(str(row.get("speaker") or f"line {number}"))
        except (ValueError, KeyError, AttributeError) as error:
            raise ManifestError(
                f"{manifest}, line {number}: expected JSON with 'emissions' and 'text', got {error}"
            ) from error
    if not paths:
        raise ManifestError(f"{manifest}: expected at least one utterance, got none")
    return paths, texts, speakers
