"""How far the encoder's states are from float32's with its tables in eight bits or in words of 16.

    python -m benchmarks files encoder_formats ../shared --clips 24

Windows of 30 s of clips of people, of the part that chooses settings unless told otherwise. An error is the
root mean square of the difference over that of the states: of the frames that hold speech, and of all.
"all": every table in eight bits, "none": every one in words; a name: this table alone is in eight bits.
Prints a table and one JSON line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import clips, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.backends.native_windows import LAYERS, NativeWindows, tables_in_bytes
from sottovoce.backends.torch import TorchBackend
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.load import load_checkpoint
from sottovoce.types import SAMPLE_RATE, Features

CPU = torch.device("cpu")
TABLES = tuple(name for _, name in LAYERS)

Encode = Callable[[Features], Tensor]


def on_torch(checkpoint: Checkpoint, dtype: torch.dtype) -> Encode:
    backend = TorchBackend.from_checkpoint(checkpoint, device=CPU, dtype=dtype)
    return lambda features: backend.encode(features).states.float()


def on_kernels(checkpoint: Checkpoint, in_bytes: tuple[str, ...]) -> Encode:
    windows = NativeWindows(checkpoint.dims, checkpoint.tensors, in_bytes=in_bytes)
    return lambda features: windows(features.mel)


def ways(checkpoint: Checkpoint) -> dict[str, Encode]:
    """Ways to encode, by what the table calls them."""
    chosen = {"none": (), **{name: (name,) for name in TABLES}, "all": TABLES}
    here = tables_in_bytes()
    named: Mapping[str, tuple[str, ...]] = chosen | {"chosen: " + (", ".join(here) or "none"): here}
    found = {"PyTorch bfloat16": on_torch(checkpoint, torch.bfloat16)}
    return found | {f"native, {name}": on_kernels(checkpoint, tables) for name, tables in named.items()}


def squares(states: Tensor, n_content: int) -> Tensor:
    """Sums of squares (2,): of the frames that hold speech, and of all."""
    return torch.stack([states[:, :n_content].square().sum(), states.square().sum()]).double()


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser, default="dev")
    parser.add_argument("--model", default="base")
    parser.add_argument("--clips", type=int, default=24)
    arguments = parser.parse_args()
    checkpoint = load_checkpoint(arguments.model)
    exact, others = on_torch(checkpoint, torch.float32), ways(checkpoint)
    apart = {name: torch.zeros(2, dtype=torch.float64) for name in others}
    size = torch.zeros(2, dtype=torch.float64)
    chosen = spread(clips(arguments.shared / "data", arguments.part), arguments.clips)
    for clip in chosen:
        heard = log_mel(load_audio(clip.file)[: 30 * SAMPLE_RATE], checkpoint.dims.n_mels)
        features = window_features([heard])
        n_content = features.n_content_frames[0] // 2
        expected = exact(features)
        size += squares(expected, n_content)
        for name, encode in others.items():
            apart[name] += squares(encode(features) - expected, n_content)
    show_heads("tables in eight bits", "error, frames with speech", "error, all frames")
    figures = {}
    for name, sums in apart.items():
        speech, everything = (sums / size).sqrt().tolist()
        figures[name] = [speech, everything]
        show_row(name, f"{speech:.2%}", f"{everything:.2%}")
    show_json("encoder_formats", {"model": arguments.model, "clips": len(chosen), "errors": figures})


if __name__ == "__main__":
    main()
