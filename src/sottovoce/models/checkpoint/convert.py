"""Write checkpoints in the formats of other programs."""

from __future__ import annotations

import shutil
from pathlib import Path

from sottovoce.errors import OptionError, cause_of
from sottovoce.models.checkpoint.base import LONG, Checkpoint, QuantizationLoss
from sottovoce.models.checkpoint.formats import BY_NAME


def write_checkpoint(checkpoint: Checkpoint, output: Path, kind: str, number: str) -> QuantizationLoss | None:
    """Write a checkpoint to a new path; return the quantisation loss or None.

    kind: one of `formats.WRITTEN`. number: "f32", "f16", "bf16", or a type of the kind ("q5_0" for ggml,
    "int8_float16" for ct2).

    Raises: OptionError: the kind does not have the number type, or the output exists.
    """
    try:
        return _write(checkpoint, output, kind, number)
    except OSError as error:
        raise OptionError(f"output '{output}': cannot be written ({cause_of(error)})") from error


def _write(checkpoint: Checkpoint, output: Path, kind: str, number: str) -> QuantizationLoss | None:
    if output.exists():
        raise OptionError(f"output '{output}': is there already, choose another name")
    if not output.parent.is_dir():
        raise OptionError(f"output '{output}': expected an existing folder {output.parent}")
    write = BY_NAME[kind].codec().write
    assert write is not None
    partial = output.with_name(f".{output.name}.part")
    try:
        loss = write(checkpoint, partial, LONG.get(number, number))
        partial.replace(output)
        return loss
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
