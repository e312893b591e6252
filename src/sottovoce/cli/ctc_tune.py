"""`sottovoce ctc tune`: which weights make the fewest word errors on a development set."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.api import Model
from sottovoce.cli.ctc_request import DecoderRequest
from sottovoce.ctc import CtcFusionOptions, load_ngram
from sottovoce.decoding.ctc.labels import LabelList
from sottovoce.errors import ManifestError
from sottovoce.evaluation.wer import ErrorCounts, count_edits
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.neural import WordLanguageModel
from sottovoce.text.files import read_lines
from sottovoce.text.normalize import composed


@dataclass(frozen=True, slots=True)
class DevelopmentSet:
    """Emissions (B, T, V) with lengths (B,), and what was said."""

    log_probs: Tensor
    lengths: Tensor
    texts: tuple[str, ...]

    @classmethod
    def read(cls, manifest: Path, request: DecoderRequest, model: Model | None) -> DevelopmentSet:
        """Read JSON lines with "emissions" (or "file", with a model) and "text". Raises ManifestError."""
        paths, texts = _listed(manifest)
        values = [request.prepared(next(request.sources([path], model)).values) for path in paths]
        return cls(
            torch.nn.utils.rnn.pad_sequence(values, batch_first=True),
            torch.tensor([len(each) for each in values]),
            tuple(texts),
        )

    def word_error_rate(self, found: Sequence[str]) -> float:
        texts = map(composed, self.texts)
        counts = [count_edits(r.split(), h.split()) for r, h in zip(texts, map(composed, found), strict=True)]
        total: ErrorCounts = sum(counts[1:], start=counts[0])
        return total.n_errors / max(total.n_reference, 1)


def combinations(values: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every choice of one value for each field of `CtcFusionOptions` that is named."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def tried(
    request: DecoderRequest,
    labels: LabelList,
    dev: DevelopmentSet,
    choices: Sequence[Mapping[str, float]],
) -> Iterator[dict[str, float]]:
    """Measure the word error rate with every choice of weights."""
    lm, neural, lexicon = load_ngram(request.lm), _neural(request), None
    for chosen in choices:
        fusion: CtcFusionOptions = replace(request.fusion(), **chosen)  # type: ignore[arg-type]
        decoder = request.decoder(labels, 1, fusion, lm, neural, lexicon=lexicon)
        lexicon = decoder.lexicon  # no weight is in it
        found = decoder.decode(dev.log_probs, dev.lengths)
        rate = dev.word_error_rate([best[0].text if best else "" for best in found])
        yield {"wer": round(rate, 4), **chosen}


def _neural(request: DecoderRequest) -> WordLanguageModel | None:
    return None if request.neural_lm is None else CausalWordModel.load(request.neural_lm)


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
