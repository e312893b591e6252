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
from sottovoce.models.backend import (
    AlignmentHeads,
    BestTokens,
    DecoderState,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    TokenChoice,
    check_admitted,
    check_heads,
    check_reordered,
    check_selected,
    check_spans,
    check_start,
    check_step,
    check_tokens,
)
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.runtime.kernels import WIDEST_HEAD
from sottovoce.runtime.native_decoder import NativeDecoder, RowInput, WindowKv
from sottovoce.runtime.native_encoder import NativeEncoder, fits_kernels, network_without_decoder
from sottovoce.runtime.torch import DTYPES, TorchBackend
from sottovoce.threads import all_torch_threads
from sottovoce.types import EncoderOutput, Features, StepOutput


@dataclass(frozen=True, slots=True, eq=False)
class _NativeRow:
    row: kernels.Row
    window: WindowKv


class NativeRows:
    def __init__(self, decoder: NativeDecoder, name: str) -> None:
        self._decoder = decoder
        self._name = name
        self._rows: list[_NativeRow] = []
        self._logits: Tensor | None = None

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        cached = check_admitted(encoded, prefix, kernels.Row, self._name)
        for window in self._decoder.windows(encoded):
            row = kernels.Row() if cached is None else cached.first(cached.n_tokens)
            self._rows.append(_NativeRow(row, window))

    def select(self, rows: Sequence[int]) -> None:
        check_selected(rows, self.n_rows)
        branches = branched([one.row for one in self._rows], rows)
        self._rows = [
            _NativeRow(row, self._rows[index].window) for row, index in zip(branches, rows, strict=True)
        ]

    def cut(self, row: int, n_tokens: int) -> None:
        state = self._rows[row].row
        state.truncate(state.n_tokens - n_tokens)

    def prefix_of(self, row: int, n_tokens: int) -> RowPrefix:
        prefix: RowPrefix = self._rows[row].row.first(n_tokens)
        return prefix

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
    ) -> RowsOutput:
        dims = self._decoder.dims
        cached = [one.row.n_tokens for one in self._rows]
        check_step(tokens, wanted, cached, longest=dims.n_text_ctx, name=self._name)
        check_heads(capture, dims)
        batch = [
            RowInput(one.row, one.window, new, positions)
            for one, new, positions in zip(self._rows, tokens, wanted, strict=True)
        ]
        logits, attention = self._decoder.step(batch, vocabulary=vocabulary, capture=capture)
        parts = torch.split(attention, [len(new) for new in tokens], dim=1)
        return RowsOutput(
            logits, [part[..., : one.window.n_frames] for part, one in zip(parts, self._rows, strict=True)]
        )

    def step_best(self, tokens: Sequence[int], choice: TokenChoice) -> BestTokens | Tensor:
        if len(tokens) != self.n_rows or not tokens:
            raise OptionError(f"rows: tokens for {len(tokens)} of {self.n_rows} rows")
        batch = [
            RowInput(one.row, one.window, [new], (0,)) for one, new in zip(self._rows, tokens, strict=True)
        ]
        longest = 1 + max(one.row.n_tokens for one in self._rows)
        if longest > self._decoder.dims.n_text_ctx:
            limit = self._decoder.dims.n_text_ctx
            raise OptionError(f"rows: {longest} tokens in a row, {self._name} reads {limit}")
        return self._decoder.step_best(batch, choice, self._room_for_logits())

    def _room_for_logits(self) -> Tensor:
        """Return memory (n_rows, n_vocab) float32, reused in every step."""
        if self._logits is None or len(self._logits) < self.n_rows:
            self._logits = torch.empty(self.n_rows, self._decoder.dims.n_vocab)
        return self._logits[: self.n_rows]


def branched(rows: Sequence[kernels.Row], chosen: Sequence[int]) -> list[kernels.Row]:
    """Select rows; a repeated row is forked, sharing its cache."""
    taken: set[int] = set()
    branches = []
    for index in chosen:
        row = rows[index]
        branches.append(row.first(row.n_tokens) if index in taken else row)
        taken.add(index)
    return branches


class NativeState:
    """`DecoderState` of the kernels: each row's KV cache and window."""

    def __init__(self, windows: Sequence[WindowKv], padding: Sequence[int]) -> None:
        """windows: of each row. padding: left padding tokens of each row."""
        self.windows = list(windows)
        self.padding = list(padding)
        self.rows = [kernels.Row() for _ in self.windows]
        self.n_tokens = 0

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def reorder(self, rows: Tensor) -> None:
        chosen = check_reordered(rows, self.n_rows)
        self.rows = branched(self.rows, chosen)
        self.windows = [self.windows[row] for row in chosen]
        self.padding = [self.padding[row] for row in chosen]

    def truncate(self, n_tokens: int) -> None:
        self.n_tokens = min(self.n_tokens, n_tokens)
        for row, padding in zip(self.rows, self.padding, strict=True):
            row.truncate(max(0, self.n_tokens - padding))

    def n_skipped(self, row: int, n_new: int) -> int:
        """Count the padding among the next tokens of a row."""
        return min(n_new, max(0, self.padding[row] - self.n_tokens))


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

    def start(
        self, encoded: EncoderOutput, n_hypotheses: int = 1, *, left_padding: Tensor | None = None
    ) -> NativeState:
        n_rows = check_start(encoded, n_hypotheses, left_padding)
        windows = [one for one in self._decoder.windows(encoded) for _ in range(n_hypotheses)]
        return NativeState(windows, [0] * n_rows if left_padding is None else left_padding.tolist())

    def step(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        positions: Sequence[int] | None = (-1,),
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
    ) -> StepOutput:
        state = self._checked(tokens, state)
        check_heads(capture, self.dims)
        n_rows, n_new = tokens.shape
        places = range(n_new) if positions is None else [position % n_new for position in positions]
        skipped = [state.n_skipped(row, n_new) for row in range(n_rows)]
        batch = [
            RowInput(
                state.rows[row],
                state.windows[row],
                new[skipped[row] :],
                [place - skipped[row] for place in places if place >= skipped[row]],
            )
            for row, new in enumerate(tokens.tolist())
        ]
        logits, attention = self._decoder.step(batch, vocabulary=vocabulary, capture=capture)
        state.n_tokens += n_new
        filled = _filled(logits, [[place >= skip for place in places] for skip in skipped])
        if not capture:
            return StepOutput(filled)
        rows = _filled(
            attention.transpose(0, 1), [[place >= skip for place in range(n_new)] for skip in skipped]
        )
        return StepOutput(filled, rows.transpose(1, 2))

    def _checked(self, tokens: Tensor, state: DecoderState) -> NativeState:
        if not isinstance(state, NativeState):
            raise OptionError(f"step: a state of {type(state).__name__} given, expected one from start()")
        check_tokens(tokens, state, min(state.padding), self)
        return state

    def rows(self) -> NativeRows:
        return NativeRows(self._decoder, self.name)

    def first_step(
        self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]], *, token: int, vocabulary: Tensor
    ) -> Tensor:
        check_spans(encoded, spans)
        (window,) = self._decoder.windows(encoded)
        batch = [RowInput(kernels.Row(), window, [token], [0], span) for span in spans]
        return self._decoder.step(batch, vocabulary=vocabulary)[0]


def _filled(values: Tensor, read: Sequence[Sequence[bool]]) -> Tensor:
    """Scatter values (n_true, *rest) to where `read` is true, zeros elsewhere: (n_rows, n_places, *rest)."""
    if all(map(all, read)):
        return values.reshape(len(read), len(read[0]), *values.shape[1:])
    mask = torch.tensor(read, dtype=torch.bool)
    filled = values.new_zeros(*mask.shape, *values.shape[1:])
    filled[mask] = values
    return filled
