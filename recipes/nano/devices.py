"""Where a training runs: the number format of its products, and processes that prepare its batches."""

from __future__ import annotations

import os
import signal

import torch

from sottovoce.backends.registry import choose_dtype


def training_dtype(name: str, device: torch.device) -> torch.dtype:
    """The format of products. "auto" is bfloat16 where the device has it, as it needs no scaling of losses.

    Raises: OptionError for an unknown name.
    """
    if name == "auto" and device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return choose_dtype(name, device)


def products_in(dtype: torch.dtype, device: torch.device) -> torch.autocast:
    """A context in which products are in the format, while weights and losses stay float32."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def default_workers(device: torch.device) -> int:
    """Processes that prepare batches: one beside a processor's training, all cores but one beside a GPU's."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(12, n_cores - 1) if device.type == "cuda" else min(1, n_cores - 1)


def leave_interrupts_to_the_parent(worker: int) -> None:
    """For the workers of a DataLoader: Ctrl-C ends the training, which ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
