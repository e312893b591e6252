"""Start a training from a checkpoint that was made before: its weights, its pieces and its symbols.

The opposite of `NanoModel.to_checkpoint`: the rows in use are taken out of the whole vocabulary again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.nano.model import NanoModel, TokenTable
from recipes.nano.pieces import CtcSymbols, Pieces
from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.text.tokenizer import N_TIMESTAMPS, Tokenizer

EMBEDDING = "decoder.token_embedding.weight"


def known_text(checkpoint: Checkpoint) -> tuple[Pieces, CtcSymbols]:
    """The pieces that a checkpoint writes with, and the symbols of its CTC head.

    Raises: CheckpointError for a checkpoint that has no CTC head or does not say which tokens it knows.
    """
    if checkpoint.trained_tokens is None or checkpoint.ctc_head is None:
        raise CheckpointError(f"{checkpoint.name}: expected a CTC head and a list of trained tokens")
    tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
    kept = frozenset(token for token in checkpoint.trained_tokens if token < tokenizer.eot)
    return Pieces(tokenizer, kept), CtcSymbols(checkpoint.ctc_head.labels)


@torch.no_grad()
def start_from(checkpoint: Checkpoint, table: TokenTable) -> NanoModel:
    """A model with the weights of a checkpoint; rows that it never trained begin near the mean of the others.

    Raises: CheckpointError, as `known_text`.
    """
    known_text(checkpoint)
    assert checkpoint.trained_tokens is not None
    assert checkpoint.ctc_head is not None
    head = checkpoint.ctc_head
    model = NanoModel(checkpoint.dims, table, head.labels)
    tensors = {name: value.float() for name, value in checkpoint.tensors.items()}
    embedding = tensors.pop(EMBEDDING)
    tensors[EMBEDDING] = _rows(embedding, table, set(checkpoint.trained_tokens))
    model.whisper.load_state_dict(tensors)
    model.ctc_head.load_state_dict({"weight": head.weight.float(), "bias": head.bias.float()})
    unused = next(i for i in range(len(embedding)) if i not in set(checkpoint.trained_tokens))
    model.unused_row.copy_(embedding[unused])
    first = table.tokenizer.timestamp_begin
    _fit_timestamps(model, embedding[first : first + N_TIMESTAMPS])
    return model


def _rows(embedding: Tensor, table: TokenTable, trained: set[int]) -> Tensor:
    known = torch.tensor([token in trained for token in table.ids])
    rows = embedding[list(table.ids)].clone()
    rows[~known] = rows[known].mean(dim=0) + 0.03 * torch.randn(int((~known).sum()), rows.shape[1])
    return rows


def _fit_timestamps(model: NanoModel, rows: Tensor) -> None:
    """The linear map of the clock that gives the timestamps' rows, by least squares."""
    clock = model.clock
    assert isinstance(clock, Tensor)
    wide = torch.cat([clock, torch.ones(len(clock), 1)], dim=1).double()
    ridge = 1e-6 * torch.eye(wide.shape[1], dtype=torch.float64)
    solution = torch.linalg.solve(wide.T @ wide + ridge, wide.T @ rows.double()).float()
    model.timestamp_map.weight.copy_(solution[:-1].T)
    model.timestamp_map.bias.copy_(solution[-1])
