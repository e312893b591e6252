"""Mel power, as Whisper takes it. Addresses as in the package's face."""

from __future__ import annotations

from sottovoce_kernels._library import Native, check, library

__all__ = ["MelFilters"]


class MelFilters(Native, free="sv_mel_free"):
    """The mel filters of 16 kHz audio."""

    def __init__(self, window: int, turns: int, filters: int, n_mels: int) -> None:
        """Addresses of tables, which are copied.

        window: (400,) float64. turns: (201,) complex128, exp(-2 pi i k / 400). filters: (n_mels, 201)
        float32.
        """
        super().__init__(library.sv_mel_new(window, turns, filters, n_mels))

    def power(self, samples: int, n_frames: int, power: int) -> None:
        """Write the mel power (n_mels, n_frames) float32, at least 1e-10.

        samples: address of n_frames frames of 400, 160 apart.
        """
        check(library.sv_mel_power(self.address, samples, n_frames, power))
