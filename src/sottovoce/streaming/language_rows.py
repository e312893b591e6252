"""Language models beside the beams of one request, each after the text that it has committed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.decoding.beam import FusedRows, Fusion
from sottovoce.streaming.vocabulary import LiveVocabulary


class LanguageRows:
    """What models add to each beam; committed: tokens that were said before the first."""

    def __init__(
        self,
        fusion: Fusion[Tensor],
        vocabulary: LiveVocabulary,
        eot: int,
        device: torch.device,
        committed: Sequence[int],
    ) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._rows = FusedRows(fusion, 1, eot, device)
        for token in committed:
            self.follow([0], [token])

    def added(self, log_probs: Tensor) -> Tensor:
        """What they add to the log-probabilities (n_beams, n) of what may be said."""
        nothing = log_probs.new_zeros(len(log_probs), self._vocabulary.n_vocab)
        return self._rows.add_to(nothing).index_select(1, self._vocabulary.ids)

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Beam i continues the former beam parents[i] with a token."""
        if parents:
            self._rows.advance(self._ids(parents), self._ids(tokens))

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
