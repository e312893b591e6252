"""Several processes train copies of a model, each on its own batches, and average the weights now and then.

Local SGD (Stich 2019), over torch.distributed: `torchrun --nproc-per-node 2 -m recipes.nano train …`. Two
copies on two cores hear nearly twice as much as one copy whose products are shared out over both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor, distributed


class Alone:
    """One process: nothing to average."""

    rank = 0

    def meet(self, parameters: Sequence[Tensor], step: int, *, finished: bool) -> bool:
        """Called before every step. Whether all processes stop here."""
        return finished


class Team:
    """The processes that torchrun started. They meet every `every` steps, and stop only there, together."""

    def __init__(self, every: int) -> None:
        self.rank = distributed.get_rank()
        self._every = every

    def meet(self, parameters: Sequence[Tensor], step: int, *, finished: bool) -> bool:
        """Called before every step: average the parameters when it is time. Whether all stop here.

        The processes stop as soon as one of them has finished.
        """
        if step % self._every:
            return False
        with torch.no_grad():
            flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
            flat = torch.cat([flat, flat.new_tensor([float(finished)])])
            distributed.all_reduce(flat)
            flat /= distributed.get_world_size()
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, mean in zip(parameters, torch.split(flat[:-1], sizes), strict=True):
                parameter.copy_(mean.view_as(parameter))
        return bool(flat[-1] > 0)


def gathered(device: torch.device, every: int = 100) -> Alone | Team:
    """The team that torchrun started this process in, or Alone without torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Alone()
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Team(every)
