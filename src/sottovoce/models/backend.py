"""The interface of runtimes (encode audio, run decoder steps), and common argument checks.

Arrays are NumPy's. R is the number of decoder rows, B of windows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from sottovoce.errors import OptionError
from sottovoce.models.devices import HasType
from sottovoce.models.dims import AlignmentHeads, EncoderMode, ModelDims, Span
from sottovoce.types import Features, Floats, Ints

Prefix = TypeVar("Prefix")


class EncoderOutput(ABC):
    """Encoder states of a batch of windows, 50 frames a second, in arrays that only their runtime reads.

    n_content_frames: of audio in each.
    """

    __slots__ = ()
    n_content_frames: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        return len(self.n_content_frames)

    @property
    @abstractmethod
    def n_frames(self) -> int: ...

    @abstractmethod
    def rows(self, windows: Sequence[int]) -> EncoderOutput:
        """Return windows of the batch, in any order; neighbours in their order share its memory."""

    @abstractmethod
    def joined(self, others: Sequence[EncoderOutput]) -> EncoderOutput:
        """Return these windows and those of `others`, all of one runtime, as a batch.

        Shorter ones get frames to which nothing attends.
        """

    @abstractmethod
    def with_content(self, n_content_frames: tuple[int, ...]) -> EncoderOutput:
        """Return these windows with other numbers of frames of audio."""

    @abstractmethod
    def limited(self, start: int, end: int) -> EncoderOutput:
        """Return a window of whose audio only frames [start, end) are attended to, and all of its padding."""

    @abstractmethod
    def states_on_host(self) -> Floats:
        """Return the states (B, n_frames, d)."""


@dataclass(frozen=True, slots=True, eq=False)
class RowsOutput:
    """The output of one step of running rows.

    logits: (n_wanted, n_vocabulary) float32, row by row. joined: cross-attention probabilities of all new
    tokens, row by row, (n_captured_heads, n_all_new, the most frames or more) float32. n_new, n_frames:
    tokens of each row, and frames of its window.
    """

    logits: Floats
    joined: Floats
    n_new: Sequence[int]
    n_frames: Sequence[int]

    @property
    def attention(self) -> list[Floats]:
        """The attention (n_captured_heads, n_new, n_frames) of each row over its window."""
        each = np.split(self.joined, np.cumsum(self.n_new)[:-1], axis=1)
        return [attention[..., :n_frames] for attention, n_frames in zip(each, self.n_frames, strict=True)]


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

    def has_room(self, n_windows: int) -> bool:
        """Return whether so many windows can be admitted now."""
        ...

    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        """Append a row without tokens for each window, or one with the tokens of a prefix.

        prefix: of a row with this audio, or with the beginning of it (an approximation).

        Raises:
            OptionError: several windows with a prefix, a prefix of another backend, or no room.
        """
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Replace the rows by `rows`, in any order; rows may repeat or be left out.

        Raises:
            OptionError: a row that does not exist.
        """
        ...

    def cut(self, row: int, n_tokens: int) -> None:
        """Drop the newest `n_tokens` tokens of a row."""
        ...

    def prefixes_of(self, rows: Sequence[tuple[int, int]]) -> Sequence[RowPrefix | None]:
        """Return the caches of rows' first tokens, for `admit`; None if the backend has none.

        rows: pairs of a row and a number of tokens.
        """
        ...

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Ints | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        """Append any number of tokens to each row; after an error the rows are unchanged.

        wanted: new positions of each row that get logits. vocabulary: (n_vocabulary,) int64, ids to compute
        (None: all). capture: (layer, head) pairs whose cross-attention is returned, in this order. spans:
        the encoder frames that each row attends to (None: all); such tokens are not appended.

        Raises:
            OptionError: arguments that do not fit the rows, or more tokens than the text context.
        """
        ...


class EncoderState(Protocol):
    """The encoder's immutable cache of a window, valid while the window begins at the same sample."""

    @property
    def n_content_frames(self) -> int:
        """Cached encoder frames of audio."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalWindow:
    """A window of growing audio, to be encoded incrementally.

    log_mel: (n_mels, n) un-normalised, all of the window. mode: may change between updates. state: of the
    last update; None computes everything.
    """

    log_mel: Floats
    mode: EncoderMode
    state: EncoderState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalResult:
    """A window after an update.

    encoded: one row, with cross-attention keys and values, and padding behind the audio. state: for the
    next update. n_computed: encoder frames computed in this one. n_kept: first frames that did not change.
    """

    encoded: EncoderOutput
    state: EncoderState
    n_computed: int
    n_kept: int = 0


class Backend(Protocol):
    """A model of Whisper's architecture on some runtime.

    encoder_mode: the cheapest valid mode of the checkpoint for windows that grow or are not full; `DENSE`
    while none is known.
    """

    encoder_mode: EncoderMode

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
        """Whether PyTorch's operators between the runtime's calls run on one thread."""
        ...

    @property
    def device(self) -> HasType: ...

    @property
    def alignment_heads(self) -> AlignmentHeads:
        """(Layer, head) pairs for word alignment; never empty."""
        ...

    @property
    def tail_s(self) -> float:
        """Seconds of padding that `encode` needs behind speech in a window shorter than 30 s."""
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
            OptionError: no window, other mel bands, a wrong length, or a state of another backend.
        """
        ...

    def rows(self) -> RunningRows:
        """Make an empty continuous batch."""
        ...


class StepEnd(Protocol):
    """Describes the end of a static step, which a runtime records with it; equal ends are the same function.

    A row has one new token. With reads_prefixes it is the only row of its recording, has any number of new
    tokens, and gets logits at two of them. capture: heads whose attention is returned. n_columns: numbers
    that each row passes to the step. n_beams: rows of each recording, whose next tokens `advance` tells; 0:
    any number, and the host tells them. tables: what the end reads besides, or None; steps of other tables
    are forgotten. is_static: whether an accelerator computes it without the host.
    """

    @property
    def capture(self) -> AlignmentHeads: ...
    @property
    def n_columns(self) -> int: ...
    @property
    def reads_prefixes(self) -> bool: ...
    @property
    def n_beams(self) -> int: ...
    @property
    def tables(self) -> object: ...
    @property
    def is_static(self) -> bool: ...


STEPS_AHEAD = 8
"""Steps between two reads of the host, at most: of each, its result is kept on the device."""


@dataclass(frozen=True, slots=True, eq=False)
class StepGroup:
    """Rows whose steps have the same end. wanted: of each row. columns: (n_rows, n_columns) int64."""

    end: StepEnd
    rows: Sequence[int]
    wanted: Sequence[Sequence[int]]
    columns: Ints


class StepPart(NamedTuple):
    """Results of an end, valid until the next step: those of `rows` are at `places` of each array.

    kept: of each row, its state for `EndingRows.begin`, which only the runtime reads; empty, if the end keeps
    none. has_logits: the end could not be computed, and the result are the logits (n_rows, n_vocab).
    """

    rows: Sequence[int]
    places: Sequence[int]
    outputs: Sequence[Floats]
    kept: Sequence[object] = ()
    has_logits: bool = False


@runtime_checkable
class EndingRows(Protocol):
    """`RunningRows` whose steps can have an end, so that the host reads a few numbers instead of logits."""

    def computes(self, end: StepEnd) -> bool:
        """Return whether a step can have this end."""
        ...

    def begin(self, end: StepEnd, kept: Mapping[int, object]) -> None:
        """Take the data that an end has beside its columns, and set entries of its state.

        kept: of each entry that begins, the state to begin with, from a `StepPart`; None: of no token.
        """
        ...

    def steps(
        self, tokens: Sequence[Sequence[int]], groups: Sequence[StepGroup], n_steps: int = 1
    ) -> Iterator[Sequence[StepPart]]:
        """Append tokens to each row, and yield the results of the groups' ends, in their order.

        n_steps: with one group, whose end advances, so many steps at most are taken without the host. Each
        appends the tokens that the end before told to the rows that were selected since: a row of each
        recording for each one that goes on, in the order of the end, or none.

        Raises:
            OptionError: as `RunningRows.step`.
        """
        ...


def ending_rows(rows: RunningRows, end: StepEnd) -> EndingRows | None:
    """Return rows whose steps can have an end, or None."""
    # isinstance of a protocol is slow, for every update of a live session
    ending = cast(EndingRows, rows) if hasattr(rows, "computes") else None
    return ending if ending is not None and ending.computes(end) else None


def check_heads(heads: AlignmentHeads, dims: ModelDims) -> None:
    n_layer, n_head = dims.n_text_layer, dims.n_text_head
    for layer, head in heads:
        if not (0 <= layer < n_layer and 0 <= head < n_head):
            raise OptionError(f"step: head ({layer}, {head}) of {n_layer} layers of {n_head} was asked for")


def check_admitted(
    encoded: EncoderOutput, prefix: RowPrefix | None, kind: type[Prefix], name: str
) -> Prefix | None:
    """Check the arguments of `RunningRows.admit`; return the prefix."""
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
    """Check the arguments of `RunningRows.step`.

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


def check_spans(spans: Sequence[Span] | None, n_frames: Sequence[int]) -> None:
    if spans is not None and len(spans) != len(n_frames):
        raise OptionError(f"rows: spans for {len(spans)} of {len(n_frames)} rows")
    for (start, end), n in zip(spans or (), n_frames, strict=False):
        if not 0 <= start < end <= n:
            raise OptionError(f"rows: expected frames within [0, {n}), got [{start}, {end})")
