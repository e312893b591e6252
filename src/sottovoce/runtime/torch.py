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
    DecoderState,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    check_admitted,
    check_heads,
    check_reordered,
    check_selected,
    check_spans,
    check_start,
    check_step,
    check_tokens,
)
from sottovoce.models.caches import (
    AudioContext,
    DecoderCache,
    RowAudio,
    RowBuffers,
    RowGroups,
    decode_batch,
    decode_rows,
    first_token_logits,
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
from sottovoce.types import EncoderOutput, Features, StepOutput


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
    d_head).
    """

    def __init__(
        self, model: Whisper, keys_values: Callable[[EncoderOutput], Sequence[KeysValues]], name: str
    ) -> None:
        self._model = model
        self._keys_values = keys_values
        self._name = name
        self._buffers: RowBuffers | None = None
        self._audio: list[RowAudio] = []

    @property
    def n_rows(self) -> int:
        return len(self._audio)

    @torch.no_grad()
    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        cached = check_admitted(encoded, prefix, TorchPrefix, self._name)
        keys_values = self._keys_values(encoded)
        if self._buffers is None:
            states = encoded.states
            self._buffers = RowBuffers(self._model.dims, states.dtype, states.device)
        for index in range(encoded.batch_size):
            self._buffers.add(None if cached is None else cached.keys_values)
            self._audio.append(RowAudio(keys_values, index, encoded.log_weights))

    @torch.no_grad()
    def select(self, rows: Sequence[int]) -> None:
        check_selected(rows, self.n_rows)
        self._audio = [self._audio[row] for row in rows]
        if self._buffers is not None:
            self._buffers.select(rows)
            self._buffers = self._buffers if rows else None

    def cut(self, row: int, n_tokens: int) -> None:
        lengths = self._filled.lengths
        lengths[row] = max(0, lengths[row] - n_tokens)

    def prefix_of(self, row: int, n_tokens: int) -> TorchPrefix:
        return TorchPrefix(self._filled.first(row, n_tokens))

    @property
    def _filled(self) -> RowBuffers:
        if self._buffers is None:
            raise OptionError("rows: expected tokens for at least one row, got none")
        return self._buffers

    @torch.no_grad()
    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
    ) -> RowsOutput:
        dims, decoder, buffers = self._model.dims, self._model.decoder, self._filled
        check_step(tokens, wanted, buffers.lengths, longest=dims.n_text_ctx, name=self._name)
        check_heads(capture, dims)
        device = decoder.positional_embedding.device
        ends = list(accumulate(map(len, tokens), initial=0))
        places = [at + one for at, own in zip(ends, wanted, strict=False) for one in own]
        hidden, captured = decode_rows(decoder, tokens, buffers, self._audio, capture)
        if places != list(range(len(hidden))):
            hidden = hidden[torch.tensor(places, dtype=torch.int64, device=device)]
        logits = decoder.logits(hidden[None], None if vocabulary is None else vocabulary.to(device))[0]
        attention = [
            captured[:, start:end, : audio.n_frames]
            for (start, end), audio in zip(pairwise(ends), self._audio, strict=True)
        ]
        return RowsOutput(logits, attention)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TorchState:
    """`DecoderState` of PyTorch: the cache of all rows, and the audio of each.

    Keys and values of audios without rows are dropped once half of all audios have none.
    """

    def __init__(self, cache: DecoderCache, encoded: EncoderOutput, keys_values: list[KeysValues]) -> None:
        n_audio = encoded.batch_size
        n_hypotheses = cache.n_rows // n_audio
        self.cache = cache
        self.encoded = encoded
        self.keys_values = keys_values
        self.log_weights = encoded.log_weights
        audio = [index for index in range(n_audio) for _ in range(n_hypotheses)]
        self.groups = RowGroups.of(audio, n_audio, encoded.states.device)

    @property
    def n_rows(self) -> int:
        return self.cache.n_rows

    @property
    def n_tokens(self) -> int:
        return self.cache.n_tokens

    def reorder(self, rows: Tensor) -> None:
        chosen = check_reordered(rows, self.n_rows)
        self.cache.reorder(rows)
        audio = [self.groups.audio[row] for row in chosen]
        living = sorted(set(audio))
        if 2 * len(living) <= self.groups.n_audio:
            self._keep_audio(living)
            audio = [living.index(index) for index in audio]
        self.groups = RowGroups.of(audio, self._n_audio, self.encoded.states.device)

    def truncate(self, n_tokens: int) -> None:
        self.cache.truncate(n_tokens)

    @property
    def _n_audio(self) -> int:
        return self.keys_values[0][0].shape[0]

    def _keep_audio(self, audio: list[int]) -> None:
        indices = torch.tensor(audio, device=self.encoded.states.device)
        self.keys_values = [
            (keys.index_select(0, indices), values.index_select(0, indices))
            for keys, values in self.keys_values
        ]
        self.log_weights = None if self.log_weights is None else self.log_weights[indices]


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

    @torch.no_grad()
    def start(
        self, encoded: EncoderOutput, n_hypotheses: int = 1, *, left_padding: Tensor | None = None
    ) -> TorchState:
        n_rows = check_start(encoded, n_hypotheses, left_padding)
        padded = left_padding is not None and bool(left_padding.any())
        cache = DecoderCache(
            self.dims,
            n_rows,
            dtype=self.dtype,
            device=self.device,
            left_padding=left_padding.to(self.device) if padded and left_padding is not None else None,
        )
        return TorchState(cache, encoded, self.keys_values(encoded))

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        positions: Sequence[int] | None = (-1,),
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
        bias: Tensor | None = None,
    ) -> StepOutput:
        """See `Backend.step`.

        bias: (R, n_frames) float32, added to the cross-attention logits of every layer and head; -inf
        hides a frame, and each row must keep at least one frame.
        """
        if not isinstance(state, TorchState):
            raise OptionError(f"step: a state of {type(state).__name__} given, expected one from start()")
        check_tokens(tokens, state, state.cache.least_padding, self)
        check_heads(capture, self.dims)
        folded_bias = self._fold_bias(bias, state, tokens.shape[1])
        audio = AudioContext(state.keys_values, state.groups, folded_bias, tuple(capture))
        hidden, attention = decode_batch(self._model.decoder, tokens.to(self.device), state.cache, audio)
        if positions is not None:
            hidden = hidden[:, list(positions)]
        rows = None if vocabulary is None else vocabulary.to(self.device)
        return StepOutput(self._model.decoder.logits(hidden, rows), attention)

    def rows(self) -> TorchRows:
        return TorchRows(self._model, self.keys_values, self.name)

    @torch.no_grad()
    def first_step(
        self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]], *, token: int, vocabulary: Tensor
    ) -> Tensor:
        # On an accelerator a kernel launch for each span costs more than masked frames.
        if self.device.type != "cpu" or _reaches_padding(encoded, spans):
            return first_step_by_bias(self, encoded, spans, token=token, vocabulary=vocabulary)
        check_spans(encoded, spans)
        keys_values, rows = self.keys_values(encoded), vocabulary.to(self.device)
        return first_token_logits(self._model.decoder, keys_values, spans, token=token, vocabulary=rows)

    def keys_values(self, encoded: EncoderOutput) -> list[KeysValues]:
        """Return cross-attention keys and values, per layer (B, H, n_frames, d_head), computed at the
        first use.
        """
        if encoded.cross_kv is None:
            encoded.cross_kv = self._model.decoder.cross_keys_values(encoded.states)
        return encoded.cross_kv

    def _fold_bias(self, bias: Tensor | None, state: TorchState, n_new: int) -> Tensor | None:
        """Return the sum of bias and log weights, folded to (n_audio, 1, group_size * n_new, n_frames)."""
        if state.log_weights is not None:
            weights = state.log_weights[list(state.groups.audio)]
            bias = weights if bias is None else bias.to(weights) + weights
        if bias is None:
            return None
        rows = bias.to(self.device, torch.float32)[:, None].expand(-1, n_new, -1)
        return state.groups.fold(rows)[:, None]  # (n_audio, 1, group_size * n_new, n_frames)


def first_step_by_bias(
    backend: TorchBackend,
    encoded: EncoderOutput,
    spans: Sequence[tuple[int, int]],
    *,
    token: int,
    vocabulary: Tensor,
) -> Tensor:
    """Step one token a row, with a bias of -inf outside each span; see `Backend.first_step`.

    Returns logits (n_spans, n_rows) float32. vocabulary: (n_rows,) int64.

    Raises:
        OptionError: as `check_spans`.
    """
    check_spans(encoded, spans)
    bias = torch.full((len(spans), encoded.n_frames), -torch.inf, device=backend.device)
    for row, (start, end) in enumerate(spans):
        bias[row, start:end] = 0.0
    tokens = torch.full((len(spans), 1), token, device=backend.device)
    state = backend.start(encoded, len(spans))
    return backend.step(tokens, state, vocabulary=vocabulary, bias=bias).logits[:, 0]


def _reaches_padding(encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether a span may hold frames that are weighted as several."""
    return encoded.log_weights is not None and any(end > encoded.n_content_frames[0] for _, end in spans)
