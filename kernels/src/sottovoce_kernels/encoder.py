"""Whisper's encoder: windows of log-mel to states in one native call. Addresses as in the package's face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce_kernels import _library
from sottovoce_kernels._library import Native, check, library, words

__all__ = ["Encoder", "Frames", "Window", "attend_tiles", "multiply_words"]


class Frames(Native, free="sv_frames_free"):
    """Keys and values of a window's frames in every layer, as the kernels lay them out.

    Windows that grow share the memory of frames that do not change.
    """

    def __init__(self) -> None:
        super().__init__(library.sv_frames_new())


@dataclass(frozen=True)
class Window:
    """Frames of one window of audio to compute: a run, and single frames of padding behind it.

    mel: address of float32 bands, `mel_stride` numbers apart, n_columns of which are the window's: beyond
    them it is zero. start, n_run: encoder frames of the run. places: positions of the single frames.
    kept: frames computed before, of which the first n_before lie before the run, and n_after, from
    first_after on, behind all. log_weights: (n_attended,) float32, added to the attention to each
    frame, or 0. states: (n_rows, n_state) float32, written. frames: all that are attended to, written, or
    None. n_rows counts the run and the places, n_attended also what was before and after.
    """

    mel: int
    mel_stride: int
    n_columns: int
    start: int
    n_run: int
    states: int
    places: Sequence[int] = ()
    kept: Frames | None = None
    n_before: int = 0
    first_after: int = 0
    n_after: int = 0
    log_weights: int = 0
    frames: Frames | None = None

    def fields(self) -> _library.Window:
        """As the library reads it."""
        sizes = (self.n_columns, self.start, self.n_run, len(self.places))
        cached = (self.n_before, self.first_after, self.n_after)
        kept, frames = (0 if each is None else each.address for each in (self.kept, self.frames))
        addresses = (self.mel, words(self.places), kept, self.log_weights, self.states, frames)
        return _library.Window(*sizes, *cached, self.mel_stride, *addresses)


class Encoder(Native, free="sv_encoder_free"):
    """Whisper's encoder, each of its tables in eight bits or in words of sixteen.

    Addresses given to it are kept: the caller keeps tables, norms, positions and padding alive.
    """

    def __init__(self, n_mels: int, n_context: int, n_state: int, n_head: int, n_layer: int) -> None:
        """n_mels and n_state: even."""
        self.n_layer = n_layer
        super().__init__(library.sv_encoder_new(n_mels, n_context, n_state, n_head, n_layer))

    def set_table(
        self, layer: int, which: int, memory: int, shape: tuple[int, int], *, in_words: bool
    ) -> None:
        """Give a linear layer its packed table (n_out, n_in).

        which: 0 query and key, one behind the other; 1 value, 2 output, 3 and 4 the perceptron.
        """
        library.sv_encoder_table(self.address, layer, which, memory, *shape, 1 + in_words)

    def set_convolution(self, which: int, memory: int, n_in: int) -> None:
        """Give the first (0) or second (1) convolution its table (n_state, 3 * n_in), packed in words."""
        library.sv_encoder_convolution(self.address, which, memory, n_in)

    def set_norm(self, layer: int, which: int, weight: int, bias: int) -> None:
        """Give a norm its numbers: 0 before attention, 1 before the perceptron; layer -1 is the last norm."""
        library.sv_encoder_norm(self.address, layer, which, weight, bias)

    def set_positions(self, table: int) -> None:
        """Give the table (n_context, n_state) of positions."""
        library.sv_encoder_positions(self.address, table)

    def set_padding(self, frame: int) -> None:
        """Give the output of the convolutions for padding far from any audio (n_state,)."""
        library.sv_encoder_padding(self.address, frame)

    def encode(self, windows: Sequence[Window], n_threads: int = 1) -> None:
        """Compute frames of windows, each by itself."""
        given = (_library.Window * len(windows))(*(one.fields() for one in windows))
        check(library.sv_encoder_encode(self.address, given, len(windows), n_threads))


def multiply_words(
    weight: int, bias: int, shape: tuple[int, int], x: int, n_rows: int, out: int, epilogue: int = 0
) -> None:
    """x (n_rows, n_in) times a table of shape (n_out, n_in) in words, into out (n_rows, n_out)."""
    check(library.sv_words_apply(weight, bias or None, *shape, x, n_rows, out, epilogue))


def attend_tiles(
    queries: int, n_queries: int, keys: int, values: int, shape: tuple[int, int], bias: int, out: int
) -> None:
    """Attention of queries (n_queries, d_head) to keys and values of shape (n_frames, d_head), into out.

    bias: address of (n_frames,) float32, added to logits of base 2, or 0.
    """
    check(library.sv_attend_tiles(queries, n_queries, keys, values, *shape, bias or None, out))
