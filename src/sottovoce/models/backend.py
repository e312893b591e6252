"""The interface of runtimes (encode audio, run decoder steps), and common argument checks.

Tensors are torch; decoder states are opaque. R is the number of rows of a batch, B of audios, n_rows of
requested vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.models.dims import EXACT as EXACT
from sottovoce.models.dims import AlignmentHeads as AlignmentHeads
from sottovoce.models.dims import EncoderMode as EncoderMode
from sottovoce.models.dims import ModelDims as ModelDims
from sottovoce.types import EncoderOutput, Features, StepOutput

Prefix = TypeVar("Prefix")


class DecoderState(Protocol):
    """Self-attention cache of R hypotheses over one EncoderOutput.

    Rows are audio-major: initially rows [b * n, (b + 1) * n) belong to audio b.
    """

    @property
    def n_rows(self) -> int: ...

    @property
    def n_tokens(self) -> int:
        """Positions in the cache, including left padding."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Replace the rows by `rows` (R',) int64: beam steps, and dropping finished audio."""
        ...

    def truncate(self, n_tokens: int) -> None:
        """Drop every position from `n_tokens` on."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RowsOutput:
    """The output of one step of running rows.

    logits: (n_wanted, n_rows) float32 of the wanted positions of all rows. attention: per row
    (n_captured_heads, n_new, n_frames) float32, with at least the frames of its window.
    """

    logits: Tensor
    attention: Sequence[Tensor]


class RowPrefix(Protocol):
    """The immutable KV cache of a row's first tokens, to begin other rows from.

    Several rows may begin from it, each after the one before takes no more steps.
    """

    @property
    def n_tokens(self) -> int: ...


class RunningRows(Protocol):
    """A continuous batch of decoder rows, each with its own tokens, audio and age.

    A row's logits do not depend on the other rows, except for rounding.
    """

    @property
    def n_rows(self) -> int: ...

    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        """Append a row without tokens for each window, or one with the tokens of a prefix.

        prefix: from `prefix_of` of a row with this audio, or with the beginning of it (an approximation).

        Raises:
            OptionError: several windows with a prefix, or a prefix of another backend.
        """
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Replace the rows by `rows`, in any order; rows may repeat (branching beams) or be left out.

        Raises:
            OptionError: a row that does not exist.
        """
        ...

    def cut(self, row: int, n_tokens: int) -> None:
        """Drop the newest `n_tokens` tokens of a row."""
        ...

    def prefix_of(self, row: int, n_tokens: int) -> RowPrefix | None:
        """Return the cache of a row's first tokens, for `admit`; None if the backend has none."""
        ...

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
    ) -> RowsOutput:
        """Append any number of tokens to every row; after an error the rows are unchanged.

        wanted: which of a row's new positions get logits. vocabulary, capture: as in `Backend.step`.

        Raises:
            OptionError: not one entry of tokens and wanted per row, no tokens at all, more tokens than the
                text context, or heads that the model does not have.
        """
        ...


class EncoderState(Protocol):
    """The encoder's immutable cache of a window, from one update to the next.

    It is only valid for windows that begin at the same sample.
    """

    @property
    def n_content_frames(self) -> int:
        """Cached encoder frames of audio."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalWindow:
    """A window of growing audio, to be encoded incrementally.

    log_mel: (n_mels, n) un-normalised, all of the window. mode: may change between updates, such as to
    `EXACT` at the end of an utterance. state: of the last update; None computes everything.
    """

    log_mel: Tensor
    mode: EncoderMode
    state: EncoderState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalResult:
    """A window after an update.

    encoded: one row, with cross-attention keys and values, and padding behind the audio. state: for the
    next update. n_computed: encoder frames computed in this one.
    """

    encoded: EncoderOutput
    state: EncoderState
    n_computed: int


class Backend(Protocol):
    """A model of Whisper's architecture on some runtime."""

    @property
    def name(self) -> str: ...

    @property
    def runtime(self) -> str:
        """Description of the runtime, number formats and instruction set, for people."""
        ...

    @property
    def dims(self) -> ModelDims: ...

    @property
    def own_threads(self) -> bool:
        """Whether the runtime has its own threads, so PyTorch's operators between its calls run on one."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def alignment_heads(self) -> AlignmentHeads:
        """(Layer, head) pairs for word alignment; never empty."""
        ...

    @property
    def tail_s(self) -> float:
        """Seconds of padding that `encode` needs behind speech in a window shorter than 30 s."""
        ...

    @property
    def encoder_mode(self) -> EncoderMode:
        """The cheapest valid mode of incremental encoding of the checkpoint."""
        ...

    def encode(self, features: Features) -> EncoderOutput:
        """Encode log-mel windows (B, n_mels, n_frames) to states (B, n_frames / 2, d).

        Raises:
            OptionError: other mel bands, an odd number of frames, or more than 2 * n_audio_ctx.
        """
        ...

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        """Encode windows that have grown since their last update, as a batch of independent windows.

        Results do not depend on the batch, except for rounding. A mode that recomputes everything with
        dense padding gives the result of `encode`.

        Raises:
            OptionError: no window, other mel bands, less than one encoder frame, more than the full
                window, or a state of another backend.
        """
        ...

    def start(
        self, encoded: EncoderOutput, n_hypotheses: int = 1, *, left_padding: Tensor | None = None
    ) -> DecoderState:
        """Make an empty state of R = B * n_hypotheses rows.

        left_padding: (R,) int64 padding tokens at the left of each row, which are never attended to and
        have no position; None: no padding.

        Raises:
            OptionError: no hypothesis, or a left_padding of another shape.
        """
        ...

    def step(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        positions: Sequence[int] | None = (-1,),
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
    ) -> StepOutput:
        """Append tokens (R, n_new) int64 to the state and return logits.

        positions: which of the new positions get logits (None: all). vocabulary: (n_rows,) int64,
        vocabulary rows to compute (None: all). capture: heads whose cross-attention is returned for every
        new position, in this order.

        Raises:
            OptionError: a state of another backend, arguments of other shapes, more tokens than the text
                context, or heads that the model does not have.
        """
        ...

    def rows(self) -> RunningRows:
        """Make an empty continuous batch."""
        ...

    def first_step(
        self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]], *, token: int, vocabulary: Tensor
    ) -> Tensor:
        """Return the logits (n_spans, n_rows) float32 after `token` alone, for each span of one window.

        Row r only attends to the encoder frames [start, end) of span r. There is no state.

        vocabulary: (n_rows,) int64, the vocabulary rows to compute.

        Raises:
            OptionError: no span, an empty one or one outside the window, or several windows.
        """
        ...


class AllowedTokens(NamedTuple):
    """What may follow a row: text from `first_text` on, timestamps from `first_time` to before `end_time`."""

    first_text: int
    first_time: int
    end_time: int


@dataclass(frozen=True, slots=True, eq=False)
class TokenChoice:
    """How many of the most probable tokens are wanted of each row, and among which.

    forbidden: (n,) int32 ids that may follow no row. time_begin: the first timestamp's id; all below are
    text. allowed: one a row. If all timestamps together are more probable than any text, a timestamp
    follows.
    """

    n_best: int
    forbidden: Tensor
    time_begin: int
    allowed: Sequence[AllowedTokens]


@dataclass(frozen=True, slots=True, eq=False)
class BestTokens:
    """The most probable tokens of each row, best first.

    tokens: (R, n_best) int64. logprobs: (R, n_best) float32, natural, among the tokens that may follow.
    """

    tokens: Tensor
    logprobs: Tensor


@runtime_checkable
class ChoosingRows(Protocol):
    """`RunningRows` that can choose the most probable next tokens themselves, without returning logits."""

    def step_best(self, tokens: Sequence[int], choice: TokenChoice) -> BestTokens | Tensor:
        """Append a token to each row, and return the most probable that may follow.

        On ties, or if fewer may follow, it returns the logits (R, n_vocab) float32 instead, valid until
        the next step, in which forbidden ones may be -inf.

        Raises:
            OptionError: as `RunningRows.step`.
        """
        ...


def check_start(encoded: EncoderOutput, n_hypotheses: int, left_padding: Tensor | None) -> int:
    """Check the arguments of `Backend.start`; return the number of rows, B * n_hypotheses.

    Raises:
        OptionError: no hypothesis, or a left_padding of another shape than (B * n_hypotheses,).
    """
    if n_hypotheses < 1:
        raise OptionError(f"start: {n_hypotheses} hypotheses given, expected at least 1")
    n_rows = encoded.batch_size * n_hypotheses
    if left_padding is not None and tuple(left_padding.shape) != (n_rows,):
        raise OptionError(f"start: left_padding {tuple(left_padding.shape)} given, expected ({n_rows},)")
    return n_rows


def check_tokens(tokens: Tensor, state: DecoderState, n_least_padding: int, backend: Backend) -> None:
    """Check the tokens of `Backend.step`. n_least_padding: least padding of the rows.

    Raises:
        OptionError: they are not (R, n_new), or exceed the text context.
    """
    if tokens.ndim != 2 or tokens.shape[0] != state.n_rows or tokens.shape[1] < 1:
        raise OptionError(f"step: tokens {tuple(tokens.shape)} given, expected ({state.n_rows}, n_new)")
    n_read = state.n_tokens + tokens.shape[1] - n_least_padding
    if n_read > backend.dims.n_text_ctx:
        raise OptionError(f"step: {n_read} tokens in all, {backend.name} reads {backend.dims.n_text_ctx}")


def check_heads(heads: AlignmentHeads, dims: ModelDims) -> None:
    n_layer, n_head = dims.n_text_layer, dims.n_text_head
    for layer, head in heads:
        if not (0 <= layer < n_layer and 0 <= head < n_head):
            raise OptionError(f"step: head ({layer}, {head}) of {n_layer} layers of {n_head} was asked for")


def check_reordered(rows: Tensor, n_rows: int) -> list[int]:
    """Check the argument of `DecoderState.reorder`; return it as a list."""
    chosen: list[int] = rows.tolist()
    if not chosen or min(chosen) < 0 or max(chosen) >= n_rows:
        raise OptionError(f"reorder: rows {chosen} given, expected indices below {n_rows}")
    return chosen


def check_admitted(
    encoded: EncoderOutput, prefix: RowPrefix | None, kind: type[Prefix], name: str
) -> Prefix | None:
    """Check the arguments of `RunningRows.admit` of the backend `name`; return the prefix."""
    if prefix is not None and encoded.batch_size != 1:
        raise OptionError(f"rows: expected one window with a prefix, got {encoded.batch_size}")
    if prefix is not None and not isinstance(prefix, kind):
        raise OptionError(f"rows: expected the state of a row of {name}, got {type(prefix).__name__}")
    return prefix


def check_selected(rows: Sequence[int], n_rows: int) -> None:
    if any(not 0 <= row < n_rows for row in rows):
        raise OptionError(f"rows: {list(rows)} given, expected indices below {n_rows}")


def check_step(
    tokens: Sequence[Sequence[int]],
    wanted: Sequence[Sequence[int]],
    cached: Sequence[int],
    *,
    longest: int,
    name: str,
) -> None:
    """Check the arguments of `RunningRows.step` of the backend `name`.

    cached: tokens of each row so far. longest: the text context.
    """
    n_rows = len(cached)
    if len(tokens) != n_rows or len(wanted) != n_rows:
        raise OptionError(f"rows: tokens for {len(tokens)} and positions for {len(wanted)} of {n_rows} rows")
    if not any(tokens):
        raise OptionError("rows: expected tokens for at least one row, got none")
    for n_cached, new in zip(cached, tokens, strict=True):
        if n_cached + len(new) > longest:
            raise OptionError(f"rows: {n_cached + len(new)} tokens in a row, {name} reads {longest}")


def check_spans(encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> None:
    if encoded.batch_size != 1:
        raise OptionError(f"first step: expected one window, got {encoded.batch_size}")
    if not spans:
        raise OptionError("first step: expected at least one span of frames, got none")
    for start, end in spans:
        if not 0 <= start < end <= encoded.n_frames:
            raise OptionError(
                f"first step: expected frames within [0, {encoded.n_frames}), got [{start}, {end})"
            )
