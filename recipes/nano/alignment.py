"""Forced alignment of CTC emissions, by the library's own: where each symbol of a known text is spoken.

Used to show the decoder's heads where each token is, and to measure them. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.decoding.ctc.kernel.paths import align_rows
from sottovoce.decoding.ctc.state import NEVER

UNKNOWN = -1.0


@torch.no_grad()
def align(log_probs: Tensor, symbols: Sequence[Sequence[int]], blank: int = 0) -> Tensor:
    """Middle frame of each symbol on the likeliest path: (B, longest text) float32, on the same device.

    log_probs: (B, T, V) float32. UNKNOWN after the end of a text, and for texts with more symbols (and
    blanks between equal ones) than frames.
    """
    n_rows, n_frames = log_probs.shape[:2]
    n_symbols = torch.tensor([len(row) for row in symbols], device="cpu")
    said = torch.zeros((n_rows, max(1, int(n_symbols.max()))), dtype=torch.int64, device="cpu")
    for row, texts in zip(said, symbols, strict=True):
        row[: len(texts)] = torch.tensor(texts, dtype=torch.int64, device="cpu")
    emitted = log_probs.detach().cpu().contiguous().numpy()
    lengths = torch.full((n_rows,), n_frames, device="cpu").numpy()
    rows = torch.arange(n_rows, device="cpu").numpy()
    blanks = torch.full((n_rows, said.shape[1] + 1), blank, device="cpu").numpy()
    first, last, _, score = (
        torch.from_numpy(part)
        for part in align_rows(emitted, lengths, said.numpy(), n_symbols.numpy(), rows, blanks)
    )
    places = torch.arange(said.shape[1], device="cpu")
    known = (places < n_symbols[:, None]) & (score > NEVER)[:, None]
    return torch.where(known, (first + last) / 2, UNKNOWN).to(log_probs.device)
