"""Mixing of channels to one, where channels of opposite phase would cancel each other.

A downmix is a weighted sum of the channels. Where a wire is crossed, one channel is the other one times -1:
their sum is silence although each channel has speech.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from sottovoce.types import SAMPLE_RATE

logger = logging.getLogger(__name__)

BLOCK_SAMPLES = SAMPLE_RATE // 10
N_SUSTAINED = 5
"""Blocks over which the channels must cancel, or no longer cancel: half a second."""
CANCELLED = 0.1
"""Share of the energy of uncorrelated channels below which a downmix is cancelled."""
INTACT = 0.5
"""The share above which it is used again."""
ROUNDING = 0.25
"""Largest energy that rounding to integers adds to a sample."""

Matrix: TypeAlias = npt.NDArray[np.float64]
S = TypeVar("S", np.int16, np.float32)


@dataclass(frozen=True, slots=True)
class _Block(Generic[S]):
    """mixed: (n,), channels: (n_channels, n). energy: of mixed; products: of channels by each other, summed
    over samples, (n_channels, n_channels).
    """

    mixed: npt.NDArray[S]
    channels: npt.NDArray[S]
    energy: float
    products: Matrix


class Downmix(Generic[S]):
    """Passes a downmix of channels on, and leaves out channels where they cancel the others.

    Both come at 16 kHz, cut anywhere; the result does not depend on the cuts. weights: (n_channels,), of the
    downmix; channels of weight 0 count for nothing. name: of the recording, in the log, which has one line
    for all that cancels. first_sample: of the recording, at which the samples begin. warned: names of
    recordings that are in the log already, as other readings found the same.

    The energy of a sum of channels x_k with weights w_k is `E = sum w_k^2 |x_k|^2` where they are
    uncorrelated (music, noise, two speakers), up to n times as much where they are equal, and exactly E where
    one of them alone has sound. Below a tenth of E (-10 dB) the correlation of two channels is below -0.9:
    they are one sound in opposite phase. There, the channels are left out whose absence makes the downmix
    loudest: of two channels the louder one stays. The downmix returns above half of E (-3 dB). Either change
    happens at the beginning of a block of 0.1 s which is itself on the other side, as are most blocks of the
    half second that begins with it and their sum: neither a single sound that happens to cancel counts, nor
    a pause between words. Blocks wait for later ones only where a change may begin. All other samples are
    those of the downmix, unchanged.
    """

    def __init__(
        self, weights: Sequence[float], name: str, *, first_sample: int = 0, warned: set[str] | None = None
    ) -> None:
        self._weights = np.asarray(weights, np.float64)
        self._name = name
        self._next_sample = first_sample
        self._mixed: list[npt.NDArray[S]] = []
        self._channels: list[npt.NDArray[S]] = []
        self._waiting: deque[_Block[S]] = deque()
        self._kept: tuple[int, ...] = ()
        """Channels that are mixed while the others are left out; empty while none are."""
        self._warned = set() if warned is None else warned

    def push(
        self, mixed: npt.NDArray[S], channels: npt.NDArray[S], *, is_last: bool = False
    ) -> npt.NDArray[S]:
        """Take the next samples of the downmix (n,) and of the channels (n_channels, n); return those of the
        result that are decided, (m,). is_last: nothing comes after these; the result is all that is left.
        """
        mixed = np.concatenate([*self._mixed, mixed])
        channels = np.concatenate([*self._channels, channels], axis=1)
        done: list[npt.NDArray[S]] = [mixed[:0]]
        start = 0
        while (end := start + BLOCK_SAMPLES - self._next_sample % BLOCK_SAMPLES) <= len(mixed):
            done += self._take(mixed[start:end], channels[:, start:end])
            start = end
        self._mixed, self._channels = [mixed[start:]], [channels[:, start:]]
        if is_last:
            done += self._take(mixed[start:], channels[:, start:], is_last=True)
        return np.concatenate(done)

    def _take(
        self, mixed: npt.NDArray[S], channels: npt.NDArray[S], *, is_last: bool = False
    ) -> list[npt.NDArray[S]]:
        """Add a block; return the mix of those that can be decided."""
        levels, mix = channels.astype(np.float64), mixed.astype(np.float64)
        self._waiting.append(_Block(mixed, channels, float(mix @ mix), levels @ levels.T))
        self._next_sample += len(mixed)
        done = []
        while self._waiting:
            stretch = list(self._waiting)[:N_SUSTAINED]
            if self._changes(stretch[:1]):
                if len(stretch) < N_SUSTAINED and not is_last:
                    break
                if self._changes(stretch):
                    self._kept = () if self._kept else self._best_channels(stretch)
                    self._log()
            done.append(self._mix(self._waiting.popleft()))
        return done

    def _changes(self, stretch: list[_Block[S]]) -> bool:
        """Tell whether a stretch and most of its blocks are cancelled; where channels are left out, intact.

        Silent blocks are neither.
        """
        sounding = [block for block in stretch if self._has_sound(block)]
        changed = [block for block in sounding if self._is_across([block])]
        return self._is_across(stretch) and 2 * len(changed) > len(sounding)

    def _is_across(self, blocks: list[_Block[S]]) -> bool:
        energies = [self._energies(block) for block in blocks]
        energy, rounding, uncorrelated = np.sum(energies, axis=0).tolist()
        if self._kept:
            return bool(energy - rounding > INTACT * uncorrelated)
        return bool(energy + rounding < CANCELLED * uncorrelated)

    def _has_sound(self, block: _Block[S]) -> bool:
        """Tell whether a block is loud enough to be cancelled."""
        _, rounding, uncorrelated = self._energies(block)
        return CANCELLED * uncorrelated > rounding

    def _energies(self, block: _Block[S]) -> tuple[float, float, float]:
        """Return the energy of the downmix, of its rounding at most, and of uncorrelated channels."""
        rounding = ROUNDING * len(block.mixed) if block.mixed.dtype.kind == "i" else 0.0
        return block.energy, rounding, float(self._weights**2 @ np.diag(block.products))

    def _best_channels(self, stretch: list[_Block[S]]) -> tuple[int, ...]:
        """Leave out channels, each time the one without which the mean of the others is loudest, until these
        do not cancel.
        """
        products = np.sum([block.products for block in stretch], axis=0)

        def energy(kept: Sequence[int]) -> float:
            weights = self._weights[list(kept)]
            return float(weights @ products[np.ix_(kept, kept)] @ weights / weights.sum() ** 2)

        def uncorrelated(kept: Sequence[int]) -> float:
            weights = self._weights[list(kept)]
            return float(weights**2 @ np.diag(products)[list(kept)] / weights.sum() ** 2)

        kept = tuple(int(channel) for channel in np.flatnonzero(self._weights))
        while len(kept) > 1 and energy(kept) <= INTACT * uncorrelated(kept):
            fewer = [tuple(one for one in kept if one != left_out) for left_out in reversed(kept)]
            kept = max(fewer, key=energy)
        return kept

    def _mix(self, block: _Block[S]) -> npt.NDArray[S]:
        if not self._kept:
            return block.mixed
        kept, weights = list(self._kept), self._weights[list(self._kept)]
        mixed = weights @ block.channels[kept].astype(np.float64) / weights.sum()
        result: npt.NDArray[S] = np.rint(mixed) if block.mixed.dtype.kind == "i" else mixed
        return result.astype(block.mixed.dtype)

    def _log(self) -> None:
        if self._name in self._warned or not self._kept:
            return
        self._warned.add(self._name)
        first_s = (self._next_sample - sum(len(block.mixed) for block in self._waiting)) / SAMPLE_RATE
        logger.warning(
            "%s: from %.1f s on channels cancel each other; there, of %d channels only %s used",
            self._name,
            first_s,
            len(self._weights),
            " and ".join(str(channel + 1) for channel in self._kept)
            + (" is" if len(self._kept) == 1 else " are"),
        )
