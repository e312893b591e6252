"""Whisper's decoder in the kernels of `sottovoce-kernels`: a step of many rows is one native call.

Weights and activations of the decoder are int8. The encoder runs in the kernels if they are faster than
PyTorch. A row's logits are bitwise the same in any batch, so nothing is padded or masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import sottovoce_kernels as kernels
import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.kernels import WIDEST_HEAD
from sottovoce.models.backend import (
    AlignmentHeads,
    BestTokens,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    Span,
    TokenChoice,
    check_admitted,
    check_heads,
    check_selected,
    check_spans,
    check_step,
)
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.runtime.native_decoder import NativeDecoder, RowInput, WindowKv
from sottovoce.runtime.native_encoder import NativeEncoder, fits_kernels, network_without_decoder
from sottovoce.runtime.torch import DTYPES, TorchBackend
from sottovoce.threads import all_torch_threads
from sottovoce.types import EncoderOutput, Features


@dataclass(frozen=True, slots=True, eq=False)
class _NativeRow:
    row: kernels.Row
    window: WindowKv

    def fork(self) -> _NativeRow:
        """Copy the row; both share the cache so far."""
        return replace(self, row=self.row.first(self.row.n_tokens))


class NativeRows:
    """`RunningRows` of one decoder."""

    def __init__(self, decoder: NativeDecoder, name: str) -> None:
        self._decoder = decoder
        self._name = name
        self._rows: list[_NativeRow] = []
        self._logits: Tensor | None = None

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def has_room(self, n_windows: int) -> bool:
        return True

    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        cached = check_admitted(encoded, prefix, kernels.Row, self._name)
        for window in self._decoder.windows(encoded):
            row = kernels.Row() if cached is None else cached.first(cached.n_tokens)
            self._rows.append(_NativeRow(row, window))

    def select(self, rows: Sequence[int]) -> None:
        check_selected(rows, self.n_rows)
        taken: set[int] = set()
        chosen = []
        for index in rows:
            row = self._rows[index]
            chosen.append(row.fork() if index in taken else row)
            taken.add(index)
        self._rows = chosen

    def cut(self, row: int, n_tokens: int) -> None:
        state = self._rows[row].row
        state.truncate(state.n_tokens - n_tokens)

    def prefixes_of(self, rows: Sequence[tuple[int, int]]) -> list[RowPrefix]:
        return [self._rows[row].row.first(n_tokens) for row, n_tokens in rows]

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        batch = self._batch(tokens, wanted, spans)
        check_heads(capture, self._decoder.dims)
        logits, attention = self._decoder.step(batch, vocabulary=vocabulary, capture=capture)
        if spans is not None:
            for row, new in enumerate(tokens):
                self.cut(row, len(new))
        return RowsOutput(
            logits, attention, list(map(len, tokens)), [one.window.n_frames for one in self._rows]
        )

    def step_best(self, tokens: Sequence[int], choice: TokenChoice) -> BestTokens | Tensor:
        batch = self._batch([[token] for token in tokens], [(0,)] * len(tokens))
        if self._logits is None or len(self._logits) < self.n_rows:
            self._logits = torch.empty(self.n_rows, self._decoder.dims.n_vocab)  # of every later step
        return self._decoder.step_best(batch, choice, self._logits[: self.n_rows])

    def _batch(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        spans: Sequence[Span] | None = None,
    ) -> list[RowInput]:
        cached = [one.row.n_tokens for one in self._rows]
        check_step(tokens, wanted, cached, longest=self._decoder.dims.n_text_ctx, name=self._name)
        check_spans(spans, [one.window.n_frames for one in self._rows])
        frames: Sequence[Span | None] = spans or [None] * self.n_rows
        return [
            RowInput(one.row, one.window, new, positions, span)
            for one, new, positions, span in zip(self._rows, tokens, wanted, frames, strict=True)
        ]


class NativeBackend:
    """A CPU backend with the decoder in the kernels, and the encoder there or on PyTorch.

    dtype: of the encoder's states; logits and attention are always float32.
    """

    def __init__(self, encoder: TorchBackend | NativeEncoder, decoder: NativeDecoder) -> None:
        self._encoder = encoder
        self._decoder = decoder
        self.name, self.dims, self.tail_s = encoder.name, encoder.dims, encoder.tail_s
        self.alignment_heads, self.encoder_mode = encoder.alignment_heads, encoder.encoder_mode
        self.device, self.dtype = encoder.device, encoder.dtype
        self.own_threads = True
        self._encoder_threads = all_torch_threads if isinstance(encoder, TorchBackend) else nullcontext

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        int8: bool = False,
        native_encoder: bool = False,
    ) -> NativeBackend:
        """Load a checkpoint's weights.

        dtype: of the encoder's states, and on PyTorch of its activations and weights. int8: PyTorch's
        encoder has int8 linear layers. native_encoder: use the kernels' encoder, if its sizes fit.

        Raises:
            OptionError: another device than the CPU, an unsupported dtype, or decoder heads that are too
                wide.
        """
        if device.type != "cpu":
            raise OptionError(f"native kernels: device {device} given, expected cpu")
        if dtype not in DTYPES:
            raise OptionError(f"dtype {dtype} given, expected one of {', '.join(map(str, DTYPES))}")
        dims = checkpoint.dims
        if (d_head := dims.n_text_state // dims.n_text_head) > WIDEST_HEAD:
            raise OptionError(
                f"native kernels: decoder heads of {d_head} given, expected at most {WIDEST_HEAD}"
            )
        encoder: TorchBackend | NativeEncoder
        if native_encoder and fits_kernels(dims):
            encoder = NativeEncoder(checkpoint, dtype=dtype)
        else:
            network = network_without_decoder(dims, checkpoint.tensors, dtype=dtype, int8=int8)
            encoder = TorchBackend(network, checkpoint, dtype=dtype, int8=int8)
        return cls(encoder, NativeDecoder(dims, checkpoint.tensors))

    @property
    def runtime(self) -> str:
        return f"native decoder, {kernels.in_use()}; encoder {self._encoder.runtime}"

    def encode(self, features: Features) -> EncoderOutput:
        with self._encoder_threads():
            return self._encoder.encode(features)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        with self._encoder_threads():
            results = self._encoder.encode_incremental(windows)
        return [replace(one, encoded=replace(one.encoded, cross_kv=None)) for one in results]

    def rows(self) -> NativeRows:
        return NativeRows(self._decoder, self.name)
