"""Steps of rows that all read equally many tokens, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sottovoce.models.backend import Backend, EncoderOutput, RunningRows
from sottovoce.models.dims import AlignmentHeads, Span
from sottovoce.streaming.alignatt import AlignAttDecoder, AlignAttHypothesis, AlignAttRequest
from sottovoce.types import Floats, Ints


class Read(NamedTuple):
    """Logits (R, n_new, n_vocabulary) of all positions; attention (R, n_heads, n_new, n_frames)."""

    logits: Floats
    attention: Floats


def start(backend: Backend, encoded: EncoderOutput, n_rows: int = 1) -> RunningRows:
    """So many rows without tokens for each window."""
    rows = backend.rows()
    rows.admit(encoded)
    if n_rows > 1:
        rows.select([window for window in range(encoded.batch_size) for _ in range(n_rows)])
    return rows


def step(
    rows: RunningRows,
    tokens: Ints | Sequence[Sequence[int]],
    *,
    vocabulary: Ints | None = None,
    capture: AlignmentHeads = (),
    spans: Sequence[Span] | None = None,
) -> Read:
    """Read tokens (R, n_new)."""
    new = [list(map(int, row)) for row in tokens]
    wanted = [range(len(row)) for row in new]
    output = rows.step(new, wanted, vocabulary=vocabulary, capture=capture, spans=spans)
    logits = output.logits.reshape(len(new), -1, output.logits.shape[1])
    return Read(logits, np.stack(output.attention))


def read(
    backend: Backend,
    encoded: EncoderOutput,
    tokens: Ints | Sequence[Sequence[int]],
    *,
    vocabulary: Ints | None = None,
    capture: AlignmentHeads = (),
) -> Read:
    """Read tokens (R, n_new), a row for each window."""
    return step(start(backend, encoded), tokens, vocabulary=vocabulary, capture=capture)


def decoded(
    decoder: AlignAttDecoder, encoded: Sequence[EncoderOutput], requests: Sequence[AlignAttRequest]
) -> Sequence[AlignAttHypothesis]:
    """The hypotheses of requests, each over its window, in one batch."""
    batch, results = decoder.new_batch(), dict[int, AlignAttHypothesis]()
    tickets = [batch.admit(decoder, *each) for each in zip(encoded, requests, strict=True)]
    while batch.n_requests:
        results.update(batch.step())
    return [results[ticket] for ticket in tickets]
