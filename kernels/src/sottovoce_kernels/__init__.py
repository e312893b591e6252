"""Whisper's decoder step and its linear layers on a processor, in eight bits: the face of a native library.

The encoder is in `sottovoce_kernels.encoder`, the packing of tables in `sottovoce_kernels.packed`.

The functions take addresses of contiguous arrays (`Tensor.data_ptr()`, `ndarray.ctypes.data`), so that no
array library is needed here; whoever calls them keeps the arrays alive and their shapes right.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import NamedTuple

from sottovoce_kernels._library import Native, Step, check, library, pointers, words

__all__ = [
    "ADD",
    "GELU",
    "STORE",
    "Choice",
    "CrossKeysValues",
    "Decoder",
    "KernelsError",
    "Linear",
    "Row",
    "attend_cross",
    "attend_self",
    "built",
    "choose",
    "in_use",
    "layer_norm",
    "runs_here",
    "use",
]

STORE, ADD, GELU = 0, 1, 2
"""What a product does with its output: replace it, add to it, replace it by GELU of the product."""

VARIABLE = "SOTTOVOCE_KERNELS"
"""The environment variable that names the instruction set; unset or empty: "auto"."""


class KernelsError(ValueError):
    """An instruction set that is not built, or that this processor does not have."""


def built() -> tuple[str, ...]:
    """The instruction sets in this library, the portable one first."""
    names = []
    while name := library.sv_built(len(names)):
        names.append(name.decode())
    return tuple(names)


def runs_here(name: str) -> bool:
    """Whether an instruction set is built and this processor has it."""
    return bool(library.sv_runs_here(name.encode()))


def in_use() -> str:
    """The instruction set that computes."""
    return str(library.sv_in_use().decode())


def use(name: str) -> None:
    """Compute with this instruction set from now on, in all of the process; "auto" takes the best.

    Raises: KernelsError where it does not run here.
    """
    chosen = library.sv_best().decode() if name == "auto" else name
    if not library.sv_use(chosen.encode()):
        usable = ", ".join(one for one in built() if runs_here(one))
        raise KernelsError(f"{VARIABLE}: {name!r} given, expected auto or one of {usable}")


class Linear(Native, free="sv_linear_free"):
    """A linear layer in eight bits."""

    def __init__(self, weight: int, bias: int, n_out: int, n_in: int) -> None:
        """weight: address of (n_out, n_in) float32. bias: of (n_out,) float32, or 0."""
        self.n_out, self.n_in = n_out, n_in
        super().__init__(library.sv_linear_new(weight, bias or None, n_out, n_in))

    def apply(self, x: int, n_rows: int, out: int, epilogue: int = STORE, n_threads: int = 1) -> None:
        """x (n_rows, n_in) float32 times the table, into out (n_rows, n_out) float32."""
        check(library.sv_linear_apply(self.address, x, n_rows, out, epilogue, n_threads))

    def row(self, index: int, to: int) -> None:
        """Write one row of the table as (n_in,) float32."""
        library.sv_linear_row(self.address, index, to)


def layer_norm(x: int, weight: int, bias: int, n_rows: int, n: int, out: int) -> None:
    """Layer normalisation of (n_rows, n) float32."""
    library.sv_layer_norm(x, weight, bias, n_rows, n, out)


def attend_self(query: int, keys_values: int, n_tokens: int, d_head: int, out: int) -> None:
    """Attention of one query (d_head,) to keys and values (n_tokens, 2, d_head), float32."""
    check(library.sv_attend_self(query, keys_values, n_tokens, d_head, out))


def attend_cross(
    queries: int,
    n_queries: int,
    keys: int,
    values: int,
    shape: tuple[int, int],
    span: tuple[int, int],
    bias: int,
    out: int,
    weights: int,
) -> None:
    """Attention of queries (n_queries, d_head) to keys and values of shape (n_frames, d_head), float32.

    span: the frames [start, end) that are spans_of. bias: address of (n_frames,) float32, or 0. weights:
    (n_queries, n_frames), written. Keys and values are rounded to bfloat16.
    """
    check(
        library.sv_attend_cross(queries, n_queries, keys, values, *shape, *span, bias or None, out, weights)
    )


def choose(logits: int, spans: tuple[int, int, int, int], n_best: int, best: int, tokens: int) -> bool:
    """Write the likeliest of one row's tokens, and tell whether they are in one order; see `Choice`.

    spans: first token of text, first token that is a time, first and behind the last time that may follow.
    """
    return bool(library.sv_choose(logits, *spans, n_best, best, tokens))


class CrossKeysValues(Native, free="sv_audio_free"):
    """Keys and values of a window, one address a decoder layer; the arrays must outlive it."""

    def __init__(self, keys: Sequence[int], values: Sequence[int], n_frames: int) -> None:
        self.n_frames = n_frames
        super().__init__(library.sv_audio_new(len(keys), pointers(keys), pointers(values), n_frames))


class Choice(NamedTuple):
    """Where a step finds what may follow its wanted places, and writes the likeliest tokens.

    n_best: of each place. time_begin: the first token that is a time; all below are text. forbidden: address
    of n_forbidden int32. rules: of (n_wanted, 3) int32, each the first token of text, the first time and the
    one behind the last time that may follow. best: of (n_wanted, n_best) float32, written with natural
    log-probabilities, best first; tokens: of as many int32; is_clear: of (n_wanted,) int32, written with 0
    where two of them are equal or fewer than n_best may follow.
    """

    n_best: int
    n_forbidden: int
    time_begin: int
    forbidden: int
    rules: int
    best: int
    tokens: int
    is_clear: int


class Row(Native, free="sv_row_free"):
    """What one row of a decoder has read; rows that branch off share what they have in common."""

    def __init__(self, address: int | None = None) -> None:
        super().__init__(library.sv_row_new() if address is None else address)

    @property
    def n_tokens(self) -> int:
        return int(library.sv_row_tokens(self.address))

    def first(self, n_tokens: int) -> Row:
        """Another row that has read the first so many tokens of this one."""
        return Row(check(library.sv_row_first(self.address, n_tokens)))

    def truncate(self, n_tokens: int) -> None:
        """Forget every token from `n_tokens` on."""
        library.sv_row_truncate(self.address, n_tokens)


class Decoder(Native, free="sv_decoder_free"):
    """Whisper's decoder, with its tables in eight bits.

    Addresses given to it are kept: the caller keeps tables, norms and positions alive.
    """

    def __init__(self, n_layer: int, n_state: int, n_head: int, n_vocab: int, n_context: int) -> None:
        self.n_layer, self.n_head, self.d_head = n_layer, n_head, n_state // n_head
        super().__init__(library.sv_decoder_new(n_layer, n_state, n_head, n_vocab, n_context))

    def set_table(self, layer: int, which: int, memory: int, shape: tuple[int, int]) -> None:
        """Give a linear layer its table (n_out, n_in), packed in eight bits; layer -1 is the token embedding.

        which: 0 query, key and value of self-attention, 1 its output; 2 query of cross-attention, 3 its key
        and value, 4 its output; 5 and 6 the perceptron.
        """
        library.sv_decoder_table(self.address, layer, which, memory, *shape)

    def set_norm(self, layer: int, which: int, weight: int, bias: int) -> None:
        """Give a norm its numbers: 0 to 2 before the parts of a layer; layer -1 is the last norm."""
        library.sv_decoder_norm(self.address, layer, which, weight, bias)

    def set_positions(self, table: int) -> None:
        """Give the table (n_context, n_state) of positions."""
        library.sv_decoder_positions(self.address, table)

    def cross_shapes(self, n_frames: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of a layer's keys and values, in 16 bits each."""
        d_pad, n_blocks = -(-self.d_head // 16) * 16, -(-n_frames // 16)
        return (self.n_head, n_blocks, d_pad // 2, 16, 2), (self.n_head, 8 * n_blocks, d_pad, 2)

    def cross_keys_values(
        self, states: int, n_frames: int, keys: Sequence[int], values: Sequence[int], n_threads: int = 1
    ) -> None:
        """Write every layer's keys and values over encoder states (n_frames, n_state), into zeroed arrays."""
        laid = pointers(keys), pointers(values)
        check(library.sv_decoder_cross_keys_values(self.address, states, n_frames, *laid, n_threads))

    def step(
        self,
        rows: Sequence[Row],
        audio: Sequence[CrossKeysValues],
        tokens: Sequence[Sequence[int]],
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        bias: Sequence[int] = (),
        wanted: Sequence[int] = (),
        vocabulary: Sequence[int] = (),
        logits: int = 0,
        captured: Sequence[tuple[int, int]] = (),
        attention: int = 0,
        longest: int = 0,
        n_threads: int = 1,
        choice: Choice | None = None,
    ) -> None:
        """Read new tokens of each row, which may be none, into it.

        spans: the frames [start, end) that each row attends to; None: all. bias: of each row the address of
        (n_frames,) float32, or 0. wanted: places among all tokens that get logits, (n_wanted, n_vocabulary)
        float32 over the rows given, or all. captured: (layer, head) whose attention is written to
        (n_captured, n_tokens, longest) float32. choice: the likeliest tokens behind each wanted place, among
        the whole vocabulary; logits that are forbidden become -inf. Where it fails, the rows are as before.
        """
        spans_of = spans or [(0, one.n_frames) for one in audio]
        given = Step(
            len(rows),
            len(wanted),
            len(vocabulary),
            len(captured),
            longest,
            n_threads,
            pointers([row.address for row in rows]),
            pointers([one.address for one in audio]),
            pointers(list(bias) or [0] * len(rows)),
            words([start for start, _ in spans_of]),
            words([end for _, end in spans_of]),
            words([len(new) for new in tokens]),
            words([token for new in tokens for token in new]),
            words(wanted),
            words(vocabulary),
            words([number for pair in captured for number in pair]),
            logits,
            attention,
            *(choice or ()),
        )
        check(library.sv_decoder_step(self.address, ctypes.byref(given)))


use(os.environ.get(VARIABLE) or "auto")
