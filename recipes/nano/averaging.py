"""Several processes train copies of a model, each on its own batches, and average the weights now and then.

Local SGD (Stich 2019), over torch.distributed. Two copies on two cores hear nearly twice as much as one copy
whose products are shared out over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, distributed


class Alone:
    """One process: nobody to meet."""

    rank = 0

    def meet(self, parameters: Sequence[Tensor], progress: float) -> None:
        """Called before every step."""


class Team:
    """One of several processes. By the end of the training each has met the others `n_meetings` times."""

    def __init__(
        self, rank: int, n_processes: int, place: Path, device: torch.device, n_meetings: int
    ) -> None:
        """Waits for the others. place: a file that does not exist yet, the same for all."""
        kind = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(kind, init_method=place.as_uri(), rank=rank, world_size=n_processes)
        self.rank, self._n_meetings, self._n_met = rank, n_meetings, 0

    def meet(self, parameters: Sequence[Tensor], progress: float) -> None:
        """Called before every step, at last with a progress of 1: average the parameters when it is time."""
        while self._n_met < int(min(1.0, progress) * self._n_meetings):
            self._n_met += 1
            _average(parameters)


@torch.no_grad()
def _average(parameters: Sequence[Tensor]) -> None:
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, mean in zip(parameters, torch.split(flat, sizes), strict=True):
        parameter.copy_(mean.view_as(parameter))
