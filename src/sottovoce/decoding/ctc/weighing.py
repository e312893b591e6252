"""From the emissions of an acoustic model to the scores that a search adds up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.decoding.ctc.text import Labels
from sottovoce.errors import OptionError


@dataclass(frozen=True, slots=True, eq=False)
class Weighing:
    """scale times (emissions less `taken`); taken: (V,) float32 on the CPU, None for nothing.

    is_normalised: emissions are log-probabilities already.
    """

    scale: float = 1.0
    taken: Tensor | None = None
    is_normalised: bool = True

    @classmethod
    def of(cls, labels: Labels, options: CtcOptions) -> Weighing:
        """As the options have it: label priors and the blank's penalty are taken off.

        Raises OptionError: not one prior a label.
        """
        taken = None
        if options.label_priors is not None or options.blank_penalty:
            taken = torch.zeros(len(labels))
            if options.label_priors is not None:
                if len(options.label_priors) != len(labels):
                    raise OptionError(
                        f"label_priors: expected {len(labels)}, one a label, got {len(options.label_priors)}"
                    )
                taken += options.prior_scale * torch.tensor(options.label_priors).log()
            taken[labels.blank] += options.blank_penalty
        return cls(options.acoustic_scale, taken, options.is_normalised)

    def scores(self, emissions: Tensor) -> Tensor:
        """What is searched (B, T, V)."""
        if self.taken is not None:
            emissions = emissions - self.taken.to(emissions.device)
        return emissions if self.scale == 1 else emissions * self.scale

    def probabilities(self, emissions: Tensor) -> Tensor:
        """The model's log-probabilities (B, T, V): what confidences, times and blanks are told by."""
        return emissions if self.is_normalised else emissions.log_softmax(dim=-1)
