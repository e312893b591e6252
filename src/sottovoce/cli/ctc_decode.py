"""Decoding of emissions (npy, npz and csv files, or recordings through a CTC head) for `sottovoce ctc`.

`tune` measures the word error rate of a development set for every choice of weights.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.cli.options import DecoderOptions
from sottovoce.ctc import CtcDecoder, CtcFusionOptions, load_ngram
from sottovoce.ctc.labels import LabelList, read_labels
from sottovoce.ctc.models import WordOrTokenModel
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import InputError, ManifestError, OptionError, SottovoceError, cause_of
from sottovoce.evaluation.wer import ErrorCounts, count_edits
from sottovoce.formats.document_words import with_vocabulary
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import WordLanguageModel
from sottovoce.models.ctc_head import emissions_of_recording
from sottovoce.models.devices import choose_device
from sottovoce.text.files import read_lines, read_text
from sottovoce.text.normalize import composed
from sottovoce.types import FRAMES_PER_SECOND, Hypothesis

Owner = TypeVar("Owner", CtcOptions, CtcFusionOptions)
Decode = Callable[[Tensor, Sequence[int]], list[list[Hypothesis]]]


@dataclass(frozen=True, slots=True)
class EmissionSource:
    name: str
    values: Tensor


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


def read_priors(path: Path) -> tuple[float, ...]:
    """Read label priors (V,): a text file with one number a line. Raises: OptionError."""
    text = read_text(path, "one number a label")
    try:
        return tuple(float(line) for line in text.split())
    except ValueError as error:
        raise OptionError(f"{path}: expected one number a label, got {cause_of(error)}") from error


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
    return EmissionSource(str(path), values)


def _utterances(
    name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> Iterator[EmissionSource]:
    if values.ndim == 2:
        yield EmissionSource(name, torch.from_numpy(values.astype(np.float32)))
        return
    if values.ndim != 3:
        raise ValueError(f"an array of shape {values.shape}")
    for row, utterance in enumerate(values):
        yield EmissionSource(f"{name}[{row}]", torch.from_numpy(utterance.astype(np.float32)))


def _read_csv(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    lines = read_lines(path, "emissions as .npy, .npz or .csv", InputError)
    rows = csv.reader(lines, delimiter=";" if ";" in "".join(lines[:1]) else ",")
    return np.array([[float(cell) for cell in row if cell.strip()] for row in rows if row], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Utterances:
    options: DecoderOptions
    model: Model | None
    labels: LabelList

    @classmethod
    def opened(cls, options: DecoderOptions) -> Utterances:
        choose_device(options.device)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        # Weights and penalties were tuned on the states of PyTorch's encoder.
        model = None if options.model is None else load_model(options.model, backend="torch")
        if model is not None and model.ctc_head is not None:
            return cls(options, model, LabelList(tuple(model.ctc_head.labels), model.ctc_head.blank))
        if options.labels is None:
            raise OptionError("--labels: expected a file of labels (or --model with a CTC head), got none")
        return cls(options, model, read_labels(options.labels))

    def of(self, path: Path) -> Iterator[EmissionSource]:
        if self.model is not None:
            found: Iterator[EmissionSource] = iter([recorded_emissions(path, self.model)])
        else:
            found = read_emissions(path)
        for source in found:
            values = source.values.log_softmax(dim=-1) if self.options.logits else source.values
            yield EmissionSource(source.name, values)

    def fusion(self) -> CtcFusionOptions:
        return _shared(CtcFusionOptions, self.options)

    def decoder(
        self,
        n_best: int,
        fusion: CtcFusionOptions,
        lm: WordOrTokenModel | None,
        *,
        lexicon: Lexicon | None = None,
        neural_lm: WordLanguageModel | None = None,
    ) -> CtcDecoder:
        """Make the decoder of these options with models that are loaded already."""
        options = self.options
        blank = options.blank if options.blank is not None else self.labels.blank
        priors = None if options.label_priors is None else read_priors(options.label_priors)
        return CtcDecoder(
            self.labels.names,
            0 if blank is None else blank,
            lm=lm,
            label_lm=options.label_lm,
            lexicon=options.lexicon if lexicon is None else lexicon,
            neural_lm=options.neural_lm if neural_lm is None else neural_lm,
            hotwords=with_vocabulary(
                options.hotwords, options.vocabulary_from, default_weight=fusion.hotword_weight
            ),
            beam_size=options.beam_size,
            n_best=n_best,
            unknown_words=options.unknown_words,
            fusion=fusion,
            options=_shared(CtcOptions, options, label_priors=priors),
            device=options.device,
        )


def _shared(owner: type[Owner], options: DecoderOptions, **others: object) -> Owner:
    """Make options of a decoder from the fields that both have. others: fields that take precedence."""
    names = {one.name for one in fields(options)}
    own = {one.name: getattr(options, one.name) for one in fields(owner) if one.name in names}
    return owner(**{**own, **others})


def decoded(
    utterances: Utterances, files: Sequence[Path], n_best: int, batch_size: int, is_greedy: bool
) -> Iterator[tuple[str, list[Hypothesis] | SottovoceError]]:
    """Yield the hypotheses, or the error, of every utterance of the files in order."""
    decoder = utterances.decoder(n_best, utterances.fusion(), load_ngram(utterances.options.lm))

    def greedy(batch: Tensor, lengths: Sequence[int]) -> list[list[Hypothesis]]:
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


def _sources(utterances: Utterances, files: Sequence[Path]) -> Iterator[EmissionSource | SottovoceError]:
    for path in files:
        try:
            yield from utterances.of(path)
        except SottovoceError as error:
            yield error


def _together(
    decode: Decode, sources: Sequence[EmissionSource]
) -> Iterator[tuple[str, list[Hypothesis] | SottovoceError]]:
    if len({source.values.shape[1] for source in sources}) == 1 and len(sources) > 1:
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
    rows = [source.values for source in sources]
    return decode(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), [len(row) for row in rows])


def word_error_rates(
    utterances: Utterances, manifest: Path, choices: Sequence[Mapping[str, float]]
) -> Iterator[dict[str, float]]:
    """Measure the word error rate of a development set for every choice of weights.

    manifest: JSON lines with "emissions" (or "file", with a model) and "text". choices: values of
    `CtcFusionOptions` fields.
    Raises: ManifestError, InputError.
    """
    paths, texts = _listed(manifest)
    values = [next(utterances.of(path)).values for path in paths]
    batch = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
    lengths = torch.tensor([len(each) for each in values])
    options, fusion = utterances.options, utterances.fusion()
    lm, lexicon = load_ngram(options.lm), None
    neural_lm = None if options.neural_lm is None else CausalWordModel.load(options.neural_lm)
    for chosen in choices:
        weighted: CtcFusionOptions = replace(fusion, **chosen)  # type: ignore[arg-type]
        decoder = utterances.decoder(1, weighted, lm, lexicon=lexicon, neural_lm=neural_lm)
        lexicon = decoder.lexicon  # spellings do not depend on weights
        found = decoder.decode(batch, lengths)
        counts = [
            count_edits(composed(text).split(), composed(best[0].text if best else "").split())
            for text, best in zip(texts, found, strict=True)
        ]
        total: ErrorCounts = sum(counts[1:], start=counts[0])
        yield {"wer": round(total.n_errors / max(total.n_reference, 1), 4), **chosen}


def _listed(manifest: Path) -> tuple[list[Path], list[str]]:
    paths: list[Path] = []
    texts: list[str] = []
    for number, line in enumerate(read_lines(manifest, "JSON lines", ManifestError), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            paths.append(manifest.parent / str(row.get("emissions") or row["file"]))
            texts.append(str(row["text"]))
        except (ValueError, KeyError, AttributeError) as error:
            raise ManifestError(
                f"{manifest}, line {number}: expected JSON with 'emissions' and 'text', got {error}"
            ) from error
    if not paths:
        raise ManifestError(f"{manifest}: expected at least one utterance, got none")
    return paths, texts
