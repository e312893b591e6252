"""The seam between the engine and a runtime: encode audio, run decoder steps.

Everything above (decoding, language, streaming, offline) sees only these Protocols. Tensors at the
seam are torch; decoder state is opaque. Another runtime is one file and a registry entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sottovoce.models.dims import AlignmentHeads as AlignmentHeads
from sottovoce.models.dims import ModelDims as ModelDims
from sottovoce.models.encoder_mode import EXACT as EXACT
from sottovoce.models.encoder_mode import EncoderMode as EncoderMode
from sottovoce.types import Emissions, EncoderOutput, Features, StepOutput


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime can do beyond plain decoding."""

    attention: bool
    """Cross-attention of chosen heads can be captured, and a bias on frames be given."""
    dtypes: tuple[torch.dtype, ...]


class DecoderState(Protocol):
    """Self-attention cache of R hypotheses over one EncoderOutput.

    Rows are ordered audio-major: rows [b * n, (b + 1) * n) belong to audio b at start.
    """

    @property
    def n_rows(self) -> int: ...

    @property
    def n_tokens(self) -> int:
        """Positions in the cache, left padding included."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Replace the rows by `rows` (R',) int64: beam steps, and dropping finished audio."""
        ...

    def truncate(self, n_tokens: int) -> None:
        """Forget every position from `n_tokens` on."""
        ...

    def fork(self) -> DecoderState:
        """An independent copy that shares the encoder output."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RowsOutput:
    """What a step of running rows says.

    logits: (n_wanted, n_rows) float32, of the wanted positions of all rows, in their order. attention: of
        every row (n_captured_heads, n_new, n_frames) float32, n_frames of its window or more.
    """

    logits: Tensor
    attention: Sequence[Tensor]


class RowState(Protocol):
    """What a row made of its first tokens.

    It never changes. Several rows may begin from it, one after the other: each when nobody reads on in the
    one before.
    """

    @property
    def n_tokens(self) -> int: ...


class RunningRows(Protocol):
    """Decoder rows that come and go: each has its own tokens, its own audio, and its own age.

    What they keep of tokens and audio is the backend's. A row says the same whatever others there are, but
    for rounding.
    """

    @property
    def n_rows(self) -> int: ...

    def admit(
        self, encoded: EncoderOutput, bias: Tensor | None = None, known: RowState | None = None
    ) -> None:
        """One more row, behind the others, that has read nothing, or what is known.

        encoded: its window, of one row. bias: (n_frames,) float32, added to every cross-attention logit of
            the row; see `Backend.step`. known: of a row that heard this audio, or the beginning of it: what
            is read on then differs from what it were if those tokens were read anew.
        """
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Replace the rows by these: in any order, some twice (beams that branch), others not at all."""
        ...

    def cut(self, row: int, n_tokens: int) -> None:
        """Let a row forget so many of its newest tokens."""
        ...

    def keep(self, row: int, n_tokens: int) -> RowState | None:
        """What a row made of its first tokens, to be given to `admit`; None where that cannot be kept."""
        ...

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
    ) -> RowsOutput:
        """Append tokens to every row, as many as there are for it, which may be none.

        wanted: which of a row's new positions get logits. vocabulary, capture: as in `Backend.step`. Where it
        fails, the rows are as before.
        """
        ...


class EncoderState(Protocol):
    """What a backend keeps of a growing window from one update to the next.

    It never changes: whoever holds it may go on from it, several times and in several ways. It belongs to
    windows that begin at the same sample; one whose front was cut begins without.
    """

    @property
    def n_content_frames(self) -> int:
        """Frames of audio that it was made of."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GrowingWindow:
    """Audio that has grown, to be encoded.

    log_mel: (n_mels, n) un-normalised, all of the window. mode: how it is encoded now; it may change from
    update to update: `EXACT` where an utterance ends, say. state: of the last update; None computes
    everything.
    """

    log_mel: Tensor
    mode: EncoderMode
    state: EncoderState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """A growing window, encoded.

    encoded: one row, its keys and values for the decoder included; padding behind the audio.
    n_computed: encoder frames that were computed for it.
    """

    encoded: EncoderOutput
    state: EncoderState
    n_computed: int


class Backend(Protocol):
    """A Whisper-shaped model on some runtime."""

    @property
    def name(self) -> str: ...

    @property
    def dims(self) -> ModelDims: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def alignment_heads(self) -> AlignmentHeads:
        """Heads whose cross-attention follows the speech; never empty."""
        ...

    @property
    def tail_s(self) -> float:
        """Seconds of padding that `encode` needs behind speech in a window shorter than 30 s."""
        ...

    @property
    def encoder_mode(self) -> EncoderMode:
        """How the checkpoint bears that growing audio is encoded, at the least cost."""
        ...

    def encode(self, features: Features) -> EncoderOutput:
        """Encode log-mel windows of any even number of frames up to 2 * n_audio_ctx."""
        ...

    def encode_growing(self, windows: Sequence[GrowingWindow]) -> list[Grown]:
        """Encode windows that have grown since their last update; each by itself, computed together.

        A window gives the same alone and in a batch, but for rounding. Where its mode computes everything,
        dense padding gives what `encode` gives.

        Raises: OptionError for no window, other mel bands, less than one encoder frame, more than the full
            window, and a state of another backend.
        """
        ...

    def start(
        self, encoded: EncoderOutput, n_hypotheses: int = 1, *, left_padding: Tensor | None = None
    ) -> DecoderState:
        """An empty state of B * n_hypotheses rows.

        left_padding: (R,) int64, tokens at the left of each row that are padding (prompts of
        different lengths in one batch): they are never attended to and have no position.
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
        bias: Tensor | None = None,
    ) -> StepOutput:
        """Append tokens (R, n_new) int64 to the state and return logits.

        positions: which of the new positions get logits (None: all).
        vocabulary: (n_rows,) int64, the only vocabulary rows to compute (None: all).
        capture: heads whose cross-attention is returned for every new position, in this order.
        bias: (R, n_frames) float32, added to the cross-attention logits of every layer and head;
            -inf hides a frame, and each row must keep at least one frame.
        """
        ...

    def rows(self) -> RunningRows:
        """No rows yet, to which rows may be admitted at any time.

        `backends.rows_by_step.RowsByStep` does it for every backend; a runtime may know better.
        """
        ...

    def first_step(
        self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]], *, token: int, vocabulary: Tensor
    ) -> Tensor:
        """What `step` says after `token` alone, hearing one stretch of one window: (n_spans, n_rows) float32.

        Row r hears frames [start, end) and nothing else. It has no state: no decoder over the same audio
        notices it. `backends.first_step.first_step_by_bias` does it for every backend; a runtime may know
        better. vocabulary: (n_rows,) int64, the only rows to compute.

        Raises: OptionError for no span, one that is empty or outside of the window, or several windows.
        """
        ...


class EmissionModel(Protocol):
    """A CTC model: one method."""

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def blank(self) -> int: ...

    def emissions(self, features: Features) -> Emissions: ...
