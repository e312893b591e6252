"""Whisper on PyTorch: CPU, CUDA or MPS, in floats or with int8 weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.models.backend import (
    AlignmentHeads,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    Span,
    check_admitted,
    check_heads,
    check_selected,
    check_spans,
    check_step,
)
from sottovoce.models.caches import (
    RowAudio,
    RowBuffers,
    decode_rows,
)
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.dims import default_encoder_mode, upper_half_heads
from sottovoce.models.layers import KeysValues
from sottovoce.models.whisper import Whisper, whisper_from_tensors
from sottovoce.runtime.incremental_encoder import (
    CachedWindow,
    EncoderKvCache,
    content_frames,
    encode_incremental,
    plan_updates,
    result_of,
)
from sottovoce.types import EncoderOutput, Features


class TorchEncoderState(CachedWindow[EncoderKvCache]):
    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class TorchPrefix:
    """keys_values: of a row's first tokens, per layer (2, H, n_tokens, d_head)."""

    keys_values: list[Tensor]

    @property
    def n_tokens(self) -> int:
        return self.keys_values[0].shape[2]


class TorchRows:
    """`RunningRows` of one model.

    keys_values: computes the cross-attention keys and values of windows, per layer (B, H, n_frames,
    d_head). dtype: of keys and values.
    """

    def __init__(
        self,
        model: Whisper,
        keys_values: Callable[[EncoderOutput], Sequence[KeysValues]],
        dtype: torch.dtype,
        name: str,
    ) -> None:
        self._model = model
        self._keys_values = keys_values
        self._name = name
        self._device = model.decoder.positional_embedding.device
        self._buffers = RowBuffers(model.dims, dtype, self._device)
        self._audio: list[RowAudio] = []

    @property
    def n_rows(self) -> int:
        return len(self._audio)

    @torch.no_grad()
    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        cached = check_admitted(encoded, prefix, TorchPrefix, self._name)
        keys_values = self._keys_values(encoded)
        for index in range(encoded.batch_size):
            self._buffers.add(None if cached is None else cached.keys_values)
            weights = None if encoded.log_weights is None else encoded.log_weights[index]
            self._audio.append(RowAudio(keys_values, index, weights))

    @torch.no_grad()
    def select(self, rows: Sequence[int]) -> None:
        check_selected(rows, self.n_rows)
        self._audio = [self._audio[row] for row in rows]
        self._buffers.select(rows)

    def cut(self, row: int, n_tokens: int) -> None:
        lengths = self._buffers.lengths
        lengths[row] = max(0, lengths[row] - n_tokens)

    def prefix_of(self, row: int, n_tokens: int) -> TorchPrefix:
        return TorchPrefix(self._buffers.first(row, n_tokens))

    @torch.no_grad()
    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        dims, decoder, buffers = self._model.dims, self._model.decoder, self._buffers
        check_step(tokens, wanted, buffers.lengths, longest=dims.n_text_ctx, name=self._name)
        check_heads(capture, dims)
        check_spans(spans, [one.n_frames for one in self._audio])
        ends = list(accumulate(map(len, tokens), initial=0))
        places = [at + one for at, own in zip(ends, wanted, strict=False) for one in own]
        hidden, captured = decode_rows(decoder, tokens, buffers, self._audio, spans, capture)
        if places != list(range(len(hidden))):
            hidden = hidden[torch.tensor(places, dtype=torch.int64, device=self._device)]
        logits = decoder.logits(hidden[None], None if vocabulary is None else vocabulary.to(self._device))[0]
        attention = [
            captured[:, start:end, : audio.n_frames]
            for (start, end), audio in zip(pairwise(ends), self._audio, strict=True)
        ]
        return RowsOutput(logits, attention)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TorchBackend:
    def __init__(
        self, model: Whisper, checkpoint: Checkpoint, *, dtype: torch.dtype, int8: bool = False
    ) -> None:
        """model: the network of the checkpoint. dtype: of the activations. int8: large tables are int8.

        Logits and attention are always float32.
        """
        self._model = model
        self.name, self.dims, self.tail_s = checkpoint.name, checkpoint.dims, checkpoint.tail_s
        self.alignment_heads = checkpoint.alignment_heads or upper_half_heads(self.dims)
        self.encoder_mode = checkpoint.encoder_mode or default_encoder_mode(self.dims)
        self.device, self.dtype = model.encoder.positional_embedding.device, dtype
        self.runtime = f"torch, {'int8 weights, ' * int8}{str(dtype).removeprefix('torch.')}"
        self.own_threads = False

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype, int8: bool = False
    ) -> TorchBackend:
        """Load a checkpoint's weights onto a device.

        dtype: of activations and weights, except large tables if `int8`.

        Raises:
            OptionError: a dtype without kernels.
        """
        if dtype not in DTYPES:
            raise OptionError(f"dtype {dtype} given, expected one of {', '.join(map(str, DTYPES))}")
        tensors = checkpoint.tensors
        model = whisper_from_tensors(checkpoint.dims, tensors, device=device, dtype=dtype, int8=int8)
        return cls(model, checkpoint, dtype=dtype, int8=int8)

    @torch.no_grad()
    def encode(self, features: Features) -> EncoderOutput:
        n_content = content_frames(features, self.dims, self.name)
        return EncoderOutput(self._model.encoder(features.mel.to(self.device, self.dtype)), n_content)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        planned = plan_updates(windows, TorchEncoderState, dims=self.dims, device=self.device, name=self.name)
        results: dict[int, IncrementalResult] = {}
        for kind in {plan.kind for plan, _ in planned}:
            places = [at for at, (plan, _) in enumerate(planned) if plan.kind == kind]
            computed = encode_incremental(self._model, [planned[at][1] for at in places])
            for at, frames in zip(places, computed, strict=True):
                plan, update = planned[at]
                state = TorchEncoderState(plan.cache, frames)
                results[at] = result_of(plan, update, state, frames.states, list(frames.cross))
        return [results[at] for at in range(len(windows))]

    def rows(self) -> TorchRows:
        return TorchRows(self._model, self.keys_values, self.dtype, self.name)

    def keys_values(self, encoded: EncoderOutput) -> list[KeysValues]:
        """Return cross-attention keys and values, per layer (B, H, n_frames, d_head), computed at the
        first use.
        """
        if encoded.cross_kv is None:
            encoded.cross_kv = self._model.decoder.cross_keys_values(encoded.states)
        return encoded.cross_kv
