"""Between the forms of the model: the trainer's, the library's small file, and OpenAI's `.pt`.

The library reads and writes the first two (`sottovoce.models.load`, `sottovoce.models.checkpoint`); here
is only what a `.pt` file does not tell: which rows were trained, which heads follow the speech, which
languages, and the CTC head beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from recipes.nano.texts import LANGUAGES
from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Checkpoint, CtcWeights
from sottovoce.models.checkpoint.openai import read_openai, save_openai
from sottovoce.models.dims import AlignmentHeads
from sottovoce.models.load import read_compact, save_compact

EMBEDDING = "decoder.token_embedding.weight"


def shared_row(embedding: Tensor) -> Tensor:
    """The vector (d,) that most rows of an embedding (n_vocab, d) have in common.

    Raises: CheckpointError when fewer than half of the rows are equal, so that packing would not help.
    """
    rows, counts = torch.unique(embedding, dim=0, return_counts=True)
    most = int(counts.argmax())
    if 2 * int(counts[most]) < len(embedding):
        raise CheckpointError(
            f"embedding: expected one vector shared by most of {len(embedding)} rows, "
            f"the most frequent one has {int(counts[most])}"
        )
    shared: Tensor = rows[most].clone()
    return shared


def trained_tokens(embedding: Tensor) -> tuple[int, ...]:
    """Ids, ascending, of the rows that differ from the shared one."""
    differs = (embedding != shared_row(embedding)).any(dim=1)
    return tuple(int(row) for row in differs.nonzero()[:, 0])


def read_ctc_head(path: Path) -> CtcWeights:
    """A head saved as {"weight", "bias", "vocab", "blank"} in a `.pt` file."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    return CtcWeights(content["weight"], content["bias"], tuple(content["vocab"]), int(content["blank"]))


def pack(source: Path, ctc_head: Path, target: Path, heads: AlignmentHeads) -> int:
    """Write the library's small file of a `.pt` checkpoint, and return its size in bytes."""
    read = read_openai(source)
    checkpoint = replace(
        read,
        name="nano",
        alignment_heads=heads,
        ctc_head=read_ctc_head(ctc_head),
        trained_tokens=trained_tokens(read.tensors[EMBEDDING]),
        languages=LANGUAGES,
    )
    return write(checkpoint, target)


def write(checkpoint: Checkpoint, target: Path) -> int:
    """Write the library's small file, whole or not at all, and return its size in bytes."""
    save_compact(checkpoint, target)
    return target.stat().st_size


def average(sources: Sequence[Path], target: Path) -> int:
    """Write the mean of the weights of small files, and return its size in bytes.

    The mean of the beginning and the end of a fine-tuning keeps more of what was known before (Wortsman et
    al. 2022, "Robust fine-tuning of zero-shot models").

    Raises: CheckpointError when they differ in more than their weights.
    """
    first, *others = (read_compact(source) for source in sources)
    for source, other in zip(sources[1:], others, strict=True):
        if _shape(other) != _shape(first):
            raise CheckpointError(f"{source}: other dimensions, tokens or symbols than {sources[0]}")
    found = [first, *others]
    tensors = {name: _mean([each.tensors[name] for each in found]) for name in first.tensors}
    heads = [each.ctc_head for each in found if each.ctc_head is not None]
    if heads:
        weight, bias = _mean([head.weight for head in heads]), _mean([head.bias for head in heads])
        first = replace(first, ctc_head=replace(heads[0], weight=weight, bias=bias))
    return write(replace(first, tensors=tensors), target)


def _shape(checkpoint: Checkpoint) -> tuple[object, ...]:
    head = checkpoint.ctc_head
    return checkpoint.dims, checkpoint.trained_tokens, head and (head.labels, head.blank)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.float() for tensor in tensors]).mean(dim=0)


def unpack(package: Path, target: Path) -> None:
    """Write the small file out as a float16 `.pt` that openai-whisper and others' converters read."""
    save_openai(read_compact(package), target)
