"""Separators that say nothing, in alignment: before the first word and after another they pass for blanks.

Inside a word they do not: there a separator would have ended it, and the path would be that of another text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MARGIN = 1e-3
"""Nats by which a separator that the hypothesis contains is preferred."""


@dataclass(frozen=True, slots=True)
class IdleSeparators:
    """The blanks of an alignment. separator: the scorer's, which repeated appends nothing; None: none."""

    blank: int
    separator: int | None

    def emissions(self, log_probs: Tensor) -> Tensor:
        """Append a label to emissions (B, T, V) that is a blank or a separator that says nothing."""
        if self.separator is None:
            return log_probs
        idle = torch.maximum(log_probs[:, :, self.blank], log_probs[:, :, self.separator] - _MARGIN)
        return torch.cat((log_probs, idle[:, :, None]), dim=2)

    def blanks(self, tokens: Tensor, before: Tensor, n_labels: int) -> int | Tensor:
        """Return the label (N, L + 1) of the blanks around tokens (N, L), or one for all.

        before: (N,) tokens that stand before the first ones. n_labels: V of the model.
        """
        if self.separator is None:
            return self.blank
        after_separator = torch.cat((before[:, None], tokens), dim=1) == self.separator
        return torch.full_like(after_separator, self.blank, dtype=torch.int64).masked_fill_(
            after_separator, n_labels
        )
