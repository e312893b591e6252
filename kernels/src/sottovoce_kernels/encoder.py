"""Whisper's encoder: windows of log-mel to states in one native call. Addresses as in the package's face."""

from __future__ import annotations

from sottovoce_kernels._library import check, library

__all__ = ["Encoder", "attend_tiles", "multiply_pairs"]


class Encoder:
    """Whisper's encoder, each of its tables in eight bits or in bfloat16."""

    def __init__(self, n_mels: int, n_context: int, n_state: int, n_head: int, n_layer: int) -> None:
        """n_mels and n_state: even."""
        self.n_layer = n_layer
        self._handle = check(library.sv_encoder_new(n_mels, n_context, n_state, n_head, n_layer))

    def __del__(self) -> None:
        if handle := self.__dict__.pop("_handle", None):
            library.sv_encoder_free(handle)

    def set_table(
        self, layer: int, which: int, weight: int, bias: int, shape: tuple[int, int], *, in_bytes: bool
    ) -> None:
        """Give a linear layer its table (n_out, n_in) and bias.

        which: 0 query and key, one behind the other; 1 value, 2 output, 3 and 4 the perceptron. in_bytes: in
        eight bits, else in bfloat16.
        """
        check(library.sv_encoder_table(self._handle, layer, which, in_bytes, weight, bias or None, *shape))

    def set_convolution(self, which: int, weight: int, bias: int, n_in: int) -> None:
        """Give the first (0) or second (1) convolution its table (n_state, n_in, 3) and bias."""
        check(library.sv_encoder_convolution(self._handle, which, weight, bias, n_in))

    def set_norm(self, layer: int, which: int, weight: int, bias: int) -> None:
        """Give a norm its numbers: 0 before attention, 1 before the perceptron; layer -1 is the last norm."""
        check(library.sv_encoder_norm(self._handle, layer, which, weight, bias))

    def set_positions(self, table: int) -> None:
        """Give the table (n_context, n_state) of positions."""
        check(library.sv_encoder_positions(self._handle, table))

    def encode(self, mel: int, n_windows: int, n_frames: int, states: int, n_threads: int = 1) -> None:
        """mel (n_windows, n_mels, 2 * n_frames) into states (n_windows, n_frames, n_state), float32."""
        check(library.sv_encoder_encode(self._handle, mel, n_windows, n_frames, states, n_threads))


def multiply_pairs(
    weight: int, bias: int, shape: tuple[int, int], x: int, n_rows: int, out: int, epilogue: int = 0
) -> None:
    """x (n_rows, n_in) times a table of shape (n_out, n_in) in bfloat16, into out (n_rows, n_out)."""
    check(library.sv_pairs_apply(weight, bias or None, *shape, x, n_rows, out, epilogue))


def attend_tiles(
    queries: int, n_queries: int, keys: int, values: int, shape: tuple[int, int], out: int
) -> None:
    """Attention of queries (n_queries, d_head) to keys and values of shape (n_frames, d_head), into out."""
    check(library.sv_attend_tiles(queries, n_queries, keys, values, *shape, out))
