"""Silero VAD: the probability of speech of windows in one native call. Addresses as in the package's face."""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce_kernels._library import Native, check, library, pointers

__all__ = ["Silero"]


class Silero(Native, free="sv_silero_free"):
    """The network for 16 kHz."""

    def __init__(self, tables: Sequence[int]) -> None:
        """tables: addresses of float32 tables (n_in, n_out), which are copied.

        In this order: cosines (128, 144) and sines (128, 128) of a folded frame; weight and bias of each
        convolution, (387, 128), (384, 64), (128, 64) and (64, 128); weight (128, 512) and bias of the cell's
        input, its recurrent weight (128, 512); weight (128,) and bias (1,) of the output.
        """
        super().__init__(library.sv_silero_new(pointers(tables)))

    def detect(self, samples: int, n_windows: int, hidden: int, cell: int, probabilities: int) -> None:
        """Write the probability (n_windows,) of each window of 512 samples.

        samples: address of the 64 samples before the first window and those of the windows. hidden, cell:
        (128,), of the window before, and afterwards of the last.
        """
        check(library.sv_silero_detect(self.address, samples, n_windows, hidden, cell, probabilities))
