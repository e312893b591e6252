"""Pack a checkpoint in OpenAI's format into the small file that the library carries, and back.

Most rows of nano's embedding were never trained and share one vector. The package keeps the trained rows
and that vector once, leaves out Whisper's fixed positions, and adds what a `.pt` file has no place for:
the CTC head with its symbols, the alignment heads, the languages. The library reads it; nothing here
trains.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import CtcWeights
from sottovoce.models.checkpoint.openai import read_openai
from sottovoce.models.dims import AlignmentHeads, ModelDims
from sottovoce.models.whisper import sinusoids

EMBEDDING = "decoder.token_embedding.weight"
ROWS, UNUSED = "decoder.token_embedding.rows", "decoder.token_embedding.unused"
POSITIONS = "encoder.positional_embedding"
METADATA_KEY = "sottovoce"


@dataclass(frozen=True, slots=True)
class PackageInfo:
    """What goes into the header beside the tensors.

    languages: codes the model was trained on. alignment_heads: (layer, head) whose attention follows
    the speech.
    """

    name: str
    languages: tuple[str, ...]
    alignment_heads: AlignmentHeads


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
    return rows[most].clone()


def trained_tokens(embedding: Tensor) -> list[int]:
    """Ids, ascending, of the rows that differ from the shared one."""
    differs = (embedding != shared_row(embedding)).any(dim=1)
    return [int(row) for row in differs.nonzero()[:, 0]]


def pack(source: Path, ctc_head: CtcWeights, target: Path, info: PackageInfo) -> int:
    """Write the package of a `.pt` checkpoint and return its size in bytes; tensors become float16."""
    checkpoint = read_openai(source)
    embedding = checkpoint.tensors[EMBEDDING]
    tokens = trained_tokens(embedding)
    tensors = {name: t for name, t in checkpoint.tensors.items() if name not in (EMBEDDING, POSITIONS)}
    tensors |= {ROWS: embedding[tokens], UNUSED: shared_row(embedding)}
    tensors |= {"ctc_head.weight": ctc_head.weight, "ctc_head.bias": ctc_head.bias}
    metadata = {
        "name": info.name,
        "dims": asdict(checkpoint.dims),
        "alignment_heads": [list(head) for head in info.alignment_heads],
        "languages": list(info.languages),
        "token_ids": tokens,
        "ctc_vocab": list(ctc_head.labels),
        "ctc_blank": ctc_head.blank,
    }
    halves = {name: tensor.half().contiguous() for name, tensor in tensors.items()}
    partial = target.with_suffix(".partial")
    save_file(halves, partial, metadata={METADATA_KEY: json.dumps(metadata, ensure_ascii=False)})
    partial.replace(target)
    return target.stat().st_size


def unpack(package: Path, target: Path) -> None:
    """Write a package out as the `.pt` file that openai-whisper and the converters of others read."""
    with safe_open(package, framework="pt") as file:
        metadata = json.loads(file.metadata()[METADATA_KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    dims = ModelDims(**metadata["dims"])
    embedding = tensors.pop(UNUSED).repeat(dims.n_vocab, 1)
    embedding[torch.tensor(metadata["token_ids"])] = tensors.pop(ROWS)
    state = {name: tensor for name, tensor in tensors.items() if not name.startswith("ctc_head.")}
    state |= {EMBEDDING: embedding, POSITIONS: sinusoids(dims.n_audio_ctx, dims.n_audio_state).half()}
    torch.save({"dims": asdict(dims), "model_state_dict": state}, target)


def read_ctc_head(path: Path) -> CtcWeights:
    """A head as the trainer saves it: {"weight", "bias", "vocab", "blank"} in a `.pt` file."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    return CtcWeights(content["weight"], content["bias"], tuple(content["vocab"]), int(content["blank"]))
