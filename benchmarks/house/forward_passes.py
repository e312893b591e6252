"""What exists twice around one network: batches of one length and rows of any age, windows and their updates.

    python -m benchmarks house forward_passes --model base --rounds 9

A decoder step attends over one cache for rows of one length (files: `decode_batch`) or over a cache a row
(live: `decode_rows`); an encoder window is run at once, or as an update with nothing cached
(`encode_incremental`). That both compute the same is shown too. One thread; the two take turns, each figure
is the median of processor milliseconds. Prints a table and one JSON line.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json, show_table
from sottovoce.backends.registry import choose_dtype
from sottovoce.models.attention import KeysValues
from sottovoce.models.batch_attention import AudioContext, CacheShape, DecoderCache, RowGroups, decode_batch
from sottovoce.models.encoder_update import EncoderUpdate
from sottovoce.models.incremental_encoder import encode_incremental
from sottovoce.models.load import load_checkpoint
from sottovoce.models.rows import RowBatchSlice, RowCrossAttention, RowKvCache, decode_rows
from sottovoce.models.whisper import Whisper, whisper_from_tensors

N_STEPS = 24
ROWS = {"1 row": (1, 1), "5 rows, one audio": (5, 1), "16 rows, 16 audios": (16, 16)}
"""Rows, and recordings that they read."""


def processor_ms(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    started = time.process_time()
    result = work()
    return 1000 * (time.process_time() - started), result


def steps_of_one_length(model: Whisper, audio: list[KeysValues], n_rows: int, tokens: Tensor) -> Tensor:
    """Hidden states (n_rows, d) after tokens (N_STEPS,), over one cache for all rows."""
    dims = model.dims
    shape = CacheShape(dims.n_text_layer, n_rows, dims.n_text_head, dims.n_text_state // dims.n_text_head)
    cache = DecoderCache(shape, dtype=audio[0][0].dtype, device=torch.device("cpu"))
    n_audio = audio[0][0].shape[0]
    groups = RowGroups.of([row * n_audio // n_rows for row in range(n_rows)], n_audio, torch.device("cpu"))
    context = AudioContext(audio, groups)
    hidden = [
        decode_batch(model.decoder, tokens[i].expand(n_rows, 1), cache, context)[0] for i in range(N_STEPS)
    ]
    return hidden[-1][:, 0]


def steps_of_any_age(model: Whisper, audio: list[KeysValues], n_rows: int, tokens: Tensor) -> Tensor:
    """Hidden states (n_rows, d) after the same tokens, a cache a row."""
    dims = model.dims
    n_audio = audio[0][0].shape[0]
    sides = [RowCrossAttention([(k[i : i + 1], v[i : i + 1]) for k, v in audio]) for i in range(n_audio)]
    d_head = dims.n_text_state // dims.n_text_head
    rows = [
        RowBatchSlice(
            RowKvCache(dims.n_text_layer, dims.n_text_head, d_head, audio[0][0]),
            sides[row * n_audio // n_rows],
            row,
            row + 1,
        )
        for row in range(n_rows)
    ]
    hidden = [decode_rows(model.decoder, tokens[i].expand(n_rows), rows, ())[0] for i in range(N_STEPS)]
    return hidden[-1]


def in_turns(
    first: Callable[[], Tensor], second: Callable[[], Tensor], n_rounds: int, per: int
) -> tuple[float, float, float]:
    """Median milliseconds of both, over `per` calls in each, and the largest relative difference."""
    times: tuple[list[float], list[float]] = ([], [])
    difference = 0.0
    for _ in range(n_rounds + 1):  # the first warms up
        (a, one), (b, two) = processor_ms(first), processor_ms(second)
        times[0].append(a / per)
        times[1].append(b / per)
        difference = max(difference, float((one.float() - two.float()).norm() / one.float().norm()))
    return statistics.median(times[0][1:]), statistics.median(times[1][1:]), difference


@torch.no_grad()
def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="base")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="auto")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    checkpoint = load_checkpoint(given.model)
    dtype = choose_dtype(given.dtype, torch.device("cpu"))
    model = whisper_from_tensors(checkpoint.dims, checkpoint.tensors, device=torch.device("cpu"), dtype=dtype)
    mel = torch.randn(1, model.dims.n_mels, 2 * model.dims.n_audio_ctx).to(model.encoder.conv1.weight.dtype)
    tokens = torch.randint(0, 50_000, (N_STEPS,))
    measured = {}
    for title, (n_rows, n_audio) in ROWS.items():
        states = torch.randn(n_audio, model.dims.n_audio_ctx, model.dims.n_audio_state).to(mel.dtype)
        audio = model.decoder.cross_keys_values(states)
        measured[f"step, {title}"] = in_turns(
            lambda a=audio, n=n_rows: steps_of_one_length(model, a, n, tokens),
            lambda a=audio, n=n_rows: steps_of_any_age(model, a, n, tokens),
            given.rounds,
            N_STEPS,
        )
    update = EncoderUpdate(mel[0], 0, model.dims.n_audio_ctx, ends=True)

    def whole_window() -> Tensor:
        states: Tensor = model.encoder(mel)
        model.decoder.cross_keys_values(states)  # an update has them too
        return states

    measured["window of 30 s"] = in_turns(
        whole_window, lambda: encode_incremental(model, [update])[0].states, given.rounds, 1
    )
    rows = [
        [name, f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}", f"{d:.0e}"] for name, (a, b, d) in measured.items()
    ]
    show_table(["", "files' pass, ms", "live pass, ms", "ratio", "difference"], rows)
    show_json("house forward_passes", {name: round(b / a, 3) for name, (a, b, _) in measured.items()})


if __name__ == "__main__":
    main()
