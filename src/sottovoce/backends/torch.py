"""Whisper on PyTorch, behind the backend seam: CPU, CUDA or MPS, in floats or with int8 weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.backends.base import (
    AlignmentHeads,
    Capabilities,
    DecoderState,
    EncoderMode,
    IncrementalResult,
    IncrementalWindow,
    ModelDims,
)
from sottovoce.backends.by_step import check_spans, check_start, check_tokens, first_step_by_bias
from sottovoce.backends.encoder_updates import check_features, check_windows, content_frames
from sottovoce.backends.torch_encoder import encode_windows
from sottovoce.backends.torch_rows import TorchRows, check_heads
from sottovoce.errors import OptionError
from sottovoce.models.caches import (
    AudioContext,
    CacheShape,
    DecoderCache,
    RowGroups,
    decode_batch,
    first_token_logits,
)
from sottovoce.models.checkpoint.base import TAIL_S, Checkpoint
from sottovoce.models.dims import default_encoder_mode, upper_half_heads
from sottovoce.models.layers import KeysValues
from sottovoce.models.whisper import Whisper, whisper_from_tensors
from sottovoce.types import EncoderOutput, Features, StepOutput

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TorchState:
    """`DecoderState` of PyTorch: the cache of all rows, and which audio each attends to.

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
        """Replace the rows by `rows` (R',) int64; they may repeat, be left out, or change the order of
        audios.

        Raises: OptionError for no row, or one that does not exist.
        """
        chosen: list[int] = rows.tolist()
        if not chosen or min(chosen) < 0 or max(chosen) >= self.n_rows:
            raise OptionError(f"reorder: rows {chosen} given, expected indices below {self.n_rows}")
        self.cache.reorder(rows)
        audio = [self.groups.audio[row] for row in chosen]
        living = sorted(set(audio))
        if 2 * len(living) <= self.groups.n_audio:
            self._keep_audio(living)
            audio = [living.index(index) for index in audio]
        self.groups = RowGroups.of(audio, self._n_audio, self.encoded.states.device)

    def truncate(self, n_tokens: int) -> None:
        """Drop every position from `n_tokens` on."""
        self.cache.truncate(n_tokens)

    def fork(self) -> TorchState:
        """Return an independent copy over the same keys and values of the audio."""
        copy = object.__new__(TorchState)
        copy.cache = self.cache.fork()
        copy.encoded = self.encoded
        copy.keys_values = self.keys_values
        copy.log_weights = self.log_weights
        copy.groups = self.groups
        return copy

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
    """A Whisper network on one device, in one dtype."""

    def __init__(
        self,
        model: Whisper,
        *,
        name: str,
        alignment_heads: AlignmentHeads | None = None,
        tail_s: float = TAIL_S,
        encoder_mode: EncoderMode | None = None,
        dtype: torch.dtype | None = None,
        int8: bool = False,
    ) -> None:
        """dtype: of the activations; None: that of the decoder's tables. int8: so are the large tables."""
        self._model = model
        self._name = name
        self._heads = alignment_heads or upper_half_heads(model.dims)
        self._tail_s = tail_s
        self._encoder_mode = encoder_mode or default_encoder_mode(model.dims)
        self._device = model.encoder.positional_embedding.device
        self._dtype = dtype or model.decoder.token_embedding.dtype
        self._int8 = int8

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype, int8: bool = False
    ) -> TorchBackend:
        """Put a checkpoint's weights on a device.

        dtype: of the activations, and of the weights, but for the large tables if `int8`.

        Raises: OptionError for a dtype that no kernel here runs.
        """
        if dtype not in DTYPES:
            raise OptionError(f"dtype {dtype} given, expected one of {', '.join(map(str, DTYPES))}")
        tensors = checkpoint.tensors
        model = whisper_from_tensors(checkpoint.dims, tensors, device=device, dtype=dtype, int8=int8)
        return cls(
            model,
            name=checkpoint.name,
            alignment_heads=checkpoint.alignment_heads,
            tail_s=checkpoint.tail_s,
            encoder_mode=checkpoint.encoder_mode,
            int8=int8,
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def runtime(self) -> str:
        return f"torch, {'int8 weights, ' * self._int8}{str(self._dtype).removeprefix('torch.')}"

    @property
    def tail_s(self) -> float:
        return self._tail_s

    @property
    def encoder_mode(self) -> EncoderMode:
        return self._encoder_mode

    @property
    def dims(self) -> ModelDims:
        return self._model.dims

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(attention=True)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations; logits and attention are always float32."""
        return self._dtype

    @property
    def alignment_heads(self) -> AlignmentHeads:
        return self._heads

    @torch.no_grad()
    def encode(self, features: Features) -> EncoderOutput:
        """Encode log-mel windows (B, n_mels, n_frames); see `Backend.encode`.

        Raises: OptionError for other mel bands, and for a number of frames that is odd or too large.
        """
        check_features(features, self.dims, self._name)
        states = self._model.encoder(features.mel.to(self._device, self._dtype))
        return EncoderOutput(states, content_frames(features))

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        """Encode windows incrementally; see `Backend.encode_incremental`."""
        check_windows(windows, self.dims, self._name)
        return encode_windows(self._model, windows)

    @torch.no_grad()
    def start(
        self, encoded: EncoderOutput, n_hypotheses: int = 1, *, left_padding: Tensor | None = None
    ) -> TorchState:
        """Make an empty state of B * n_hypotheses rows; see `Backend.start`.

        Raises: OptionError for no hypothesis, or a left_padding of another shape than (B * n_hypotheses,).
        """
        n_rows = check_start(encoded, n_hypotheses, left_padding)
        padded = left_padding is not None and bool(left_padding.any())
        cache = DecoderCache(
            CacheShape(
                self.dims.n_text_layer,
                n_rows,
                self.dims.n_text_head,
                self.dims.n_text_state // self.dims.n_text_head,
            ),
            dtype=self._dtype,
            device=self._device,
            left_padding=left_padding.to(self._device) if padded and left_padding is not None else None,
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
        """Append tokens (R, n_new) to the state and return logits; see `Backend.step`.

        Raises: OptionError for a state of another backend, tokens or a bias of another shape, more tokens
        than the text context, and heads that the model does not have.
        """
        if not isinstance(state, TorchState):
            raise OptionError(f"step: a state of {type(state).__name__} given, expected one from start()")
        check_tokens(tokens, state, state.cache.least_padding, self)
        check_heads(capture, self.dims)
        folded_bias = self._fold_bias(bias, state, tokens.shape[1])
        audio = AudioContext(state.keys_values, state.groups, folded_bias, tuple(capture))
        hidden, attention = decode_batch(self._model.decoder, tokens.to(self._device), state.cache, audio)
        if positions is not None:
            hidden = hidden[:, list(positions)]
        rows = None if vocabulary is None else vocabulary.to(self._device)
        return StepOutput(self._model.decoder.logits(hidden, rows), attention)

    def rows(self) -> TorchRows:
        """Make an empty batch of rows; see `Backend.rows`."""
        return TorchRows(self._model, self.keys_values, self._name)

    @torch.no_grad()
    def first_step(
        self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]], *, token: int, vocabulary: Tensor
    ) -> Tensor:
        """Return logits (n_spans, n_rows) after `token` alone, one row a span; see `Backend.first_step`."""
        # On an accelerator a kernel launch for each span costs more than masked frames.
        if self._device.type != "cpu" or _reaches_padding(encoded, spans):
            return first_step_by_bias(self, encoded, spans, token=token, vocabulary=vocabulary)
        check_spans(encoded, spans)
        keys_values, rows = self.keys_values(encoded), vocabulary.to(self._device)
        return first_token_logits(self._model.decoder, keys_values, spans, token=token, vocabulary=rows)

    def keys_values(self, encoded: EncoderOutput) -> list[KeysValues]:
        """Return cross-attention keys and values, per layer (B, H, n_frames, d_head), computed at the first
        use.
        """
        if encoded.cross_kv is None:
            encoded.cross_kv = self._model.decoder.cross_keys_values(encoded.states)
        return encoded.cross_kv

    def _fold_bias(self, bias: Tensor | None, state: TorchState, n_new: int) -> Tensor | None:
        """Sum of the given bias and the frames' log weights, folded to (n_audio, 1, group_size * n_new,
        n_frames).
        """
        expected = (state.n_rows, state.encoded.n_frames)
        if bias is not None and tuple(bias.shape) != expected:
            raise OptionError(f"step: bias of shape {tuple(bias.shape)} given, expected {expected}")
        if state.log_weights is not None:
            weights = state.log_weights[list(state.groups.audio)]
            bias = weights if bias is None else bias.to(weights) + weights
        if bias is None:
            return None
        rows = bias.to(self._device, torch.float32)[:, None].expand(-1, n_new, -1)
        return state.groups.fold(rows)[:, None]  # (n_audio, 1, group_size * n_new, n_frames)


def _reaches_padding(encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a span may hold frames that are weighted as several."""
    return encoded.log_weights is not None and any(end > encoded.n_content_frames[0] for _, end in spans)
