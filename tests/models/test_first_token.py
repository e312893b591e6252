"""The first token, compiled: the answers of the plain one, from the weights where they lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce.backends.torch import TorchBackend
from sottovoce.models import first_token_compiled as room
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.first_token import FirstToken
from sottovoce.models.first_token_compiled import CompiledFirstToken, compiled_first_token
from sottovoce.models.packed import PackedLinear, blocks, packed
from sottovoce.models.whisper import KeysValues
from tests.models.tiny import CPU, checkpoint, dims

WIDE = dims(n_audio_state=64, n_text_state=64, n_text_head=2)
ROWS = torch.tensor([3, 17, 259, 50, 299])
SPANS = [
    [(0, 30)],
    [(7, 8), (0, 30)],
    [(3, 9), (20, 30), (0, 30)],
    [(3, 9), (29, 30), (14, 21), (2, 4), (8, 28)],
]


def rounded(dtype: torch.dtype) -> Checkpoint:
    """Weights that lose nothing when they are kept in dtype."""
    whole = checkpoint(WIDE)
    tensors = {name: tensor.to(dtype).float() for name, tensor in whole.tensors.items()}
    return Checkpoint(whole.name, whole.dims, tensors, whole.alignment_heads)


def backend(dtype: torch.dtype, *, loaded: torch.dtype | None = None) -> TorchBackend:
    return TorchBackend.from_checkpoint(rounded(loaded or dtype), device=CPU, dtype=dtype)


def keys_values(dtype: torch.dtype) -> list[KeysValues]:
    generator = torch.Generator().manual_seed(1)

    def one() -> Tensor:
        return torch.randn(1, 2, 30, 32, generator=generator).bfloat16().to(dtype)

    return [(one(), one()) for _ in range(3)]


def compiled(of: TorchBackend) -> CompiledFirstToken:
    made = compiled_first_token(of._model.decoder, 5, ROWS)
    if made is None:
        pytest.skip("no numba, or tables are packed in another order here")
    return made


@pytest.mark.parametrize("spans", SPANS)
def test_float32_says_what_tensors_say(spans: list[tuple[int, int]]) -> None:
    of = backend(torch.float32)
    plain = FirstToken(of._model.decoder, 5, ROWS)(keys_values(torch.float32), spans)
    ours = compiled(of)(keys_values(torch.float32), spans)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, plain, atol=1e-5 * float(plain.abs().max()), rtol=0)


@pytest.mark.parametrize("spans", SPANS)
def test_bfloat16_weights_lose_nothing_on_the_way(spans: list[tuple[int, int]]) -> None:
    """Activations are float32: nearer to the exact answer than tensors in bfloat16 come."""
    exact_of = backend(torch.float32, loaded=torch.bfloat16)
    exact = FirstToken(exact_of._model.decoder, 5, ROWS)(keys_values(torch.float32), spans)
    of = backend(torch.bfloat16)
    ours = compiled(of)(keys_values(torch.bfloat16), spans)
    plain = FirstToken(of._model.decoder, 5, ROWS)(keys_values(torch.bfloat16), spans)
    torch.testing.assert_close(ours, exact, atol=1e-5 * float(exact.abs().max()), rtol=0)
    assert (plain - exact).abs().max() > (ours - exact).abs().max()


def test_weights_that_cannot_be_read_are_left_to_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TorchBackend.from_checkpoint(rounded(torch.float32), device=CPU, dtype=torch.float32, int8=True)
    assert compiled_first_token(whole._model.decoder, 5, ROWS) is None
    half = backend(torch.float16)
    assert compiled_first_token(half._model.decoder, 5, ROWS) is None
    monkeypatch.setattr(room, "has_compiler", lambda: False)
    assert compiled_first_token(backend(torch.float32)._model.decoder, 5, ROWS) is None


def test_packed_tables_are_read_in_place() -> None:
    table = torch.randn(128, 64).bfloat16()
    held = packed(table)  # `blocks` shows its memory
    found = blocks(held)
    if found is None:
        pytest.skip("tables are packed in another order here")
    pairs = torch.from_numpy(found.view(np.int16).copy()).view(torch.bfloat16).view(2, 32, 64, 2)
    assert torch.equal(pairs.transpose(1, 2).reshape(128, 64), table)
    layer = PackedLinear(torch.nn.Linear(64, 128, dtype=torch.bfloat16))
    again, once = layer.blocks(), layer.blocks()
    assert again is not None
    assert once is not None
    assert np.shares_memory(again, once)


@pytest.mark.parametrize(
    "table",
    [torch.zeros(128, 64), torch.zeros(65, 64).bfloat16(), torch.zeros(64, 38).bfloat16()],
    ids=["float32", "65 rows", "38 columns"],
)
def test_other_tables_have_no_blocks(table: Tensor) -> None:
    assert blocks(packed(table)) is None
