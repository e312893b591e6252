"""Many utterances of `sottovoce ctc`, so many decoded at once, told in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sottovoce.api import Model
from sottovoce.cli.ctc_inputs import EmissionSource
from sottovoce.cli.ctc_request import DecoderRequest
from sottovoce.ctc import CtcDecoder
from sottovoce.errors import InputError, SottovoceError
from sottovoce.types import Hypothesis


@dataclass(frozen=True, slots=True)
class Decoded:
    """An utterance and its hypotheses, best first."""

    name: str
    found: list[Hypothesis]


@dataclass(frozen=True, slots=True)
class BatchedDecoding:
    """Decodes what a request names. greedy: the likeliest path instead of a search."""

    request: DecoderRequest
    model: Model | None
    decoder: CtcDecoder
    batch_size: int
    greedy: bool

    def outcomes(self, files: Sequence[Path]) -> Iterator[Decoded | SottovoceError]:
        """Every utterance of the files, or what is wrong with it; a file that fails harms no other."""
        waiting: list[EmissionSource] = []
        for source in self._sources(files):
            if isinstance(source, EmissionSource):
                waiting.append(source)
            if isinstance(source, SottovoceError) or len(waiting) == self.batch_size:
                yield from self._together(waiting)
                waiting = []
            if isinstance(source, SottovoceError):
                yield source
        yield from self._together(waiting)

    def _sources(self, files: Sequence[Path]) -> Iterator[EmissionSource | SottovoceError]:
        for path in files:
            try:
                for source in self.request.sources([path], self.model):
                    yield EmissionSource(source.name, self.request.prepared(source.values))
            except SottovoceError as error:
                yield error

    def _together(self, sources: Sequence[EmissionSource]) -> Iterator[Decoded | SottovoceError]:
        """One batch; where it fails, each alone, so that only the faulty one fails."""
        if len({source.values.shape[1] for source in sources}) == 1 and len(sources) > 1:
            try:
                lists = self._decode(sources)
            except InputError:
                pass
            else:
                named = zip(sources, lists, strict=True)
                yield from (Decoded(source.name, found) for source, found in named)
                return
        for source in sources:
            try:
                yield Decoded(source.name, self._decode([source])[0])
            except InputError as error:
                yield InputError(f"{source.name}: {error}")

    def _decode(self, sources: Sequence[EmissionSource]) -> list[list[Hypothesis]]:
        rows = [source.values for source in sources]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = [len(row) for row in rows]
        if self.greedy:
            return [[found] for found in self.decoder.greedy(batch, lengths)]
        return self.decoder.decode(batch, lengths)
