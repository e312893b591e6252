"""CTranslate2 files that are damaged, of another network, or made to mislead: one line, and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sottovoce.models.checkpoint.ctranslate2 import DTYPES, EMBEDDINGS, PROJECTION
from tests.models.test_ctranslate2 import QKV, folder_of, refused, rewrite


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"decoder/activation": torch.tensor(0, dtype=torch.int8)}, "decoder/activation is 0, expected 3"),
        ({"decoder/pre_norm": torch.tensor(0, dtype=torch.int8)}, "decoder/pre_norm is 0, expected 1"),
        ({"decoder/rotary_dim": torch.tensor(4, dtype=torch.int32)}, "decoder/rotary_dim is 4, expected 0"),
        ({"encoder/num_heads": None}, "variable encoder/num_heads is missing"),
        ({"encoder/num_heads": torch.tensor(2.0)}, "num_heads holds torch.float32, expected an integer"),
        ({"encoder/num_heads": torch.zeros(2, dtype=torch.int16)}, r"num_heads has shape (2,)"),
        ({"encoder/num_heads": torch.tensor(3, dtype=torch.int16)}, "multiple of n_audio_head 3"),
        ({EMBEDDINGS: torch.zeros(40)}, "expected 2 dimensions"),
        ({f"{QKV}/weight": torch.zeros(95, 32)}, "expected rows of 3 tensors"),
        ({f"{QKV}/bias": torch.zeros(0)}, "has shape (0,), expected sizes of 1 or more"),
        ({f"{QKV}/weight_zero": torch.zeros(3)}, f"'{QKV}/weight_zero' belongs to no Whisper"),
        (
            {f"{QKV}/weight": torch.zeros(96, 32, dtype=torch.int8)},
            "expected 96 float32 scales beside it",
        ),
        ({"encoder/layer_999/ffn/linear_0/bias": torch.zeros(3)}, "n_audio_layer is 1000, expected 1 to 256"),
        ({"encoder/layer_1/ffn/linear_0/bias": torch.zeros(128)}, "encoder.blocks.1"),
    ],
)
def test_variables_that_no_whisper_has(
    variables: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path)
    rewrite(folder, variables=variables)
    assert message in refused(folder)


@pytest.mark.parametrize(
    "scale",
    [torch.ones(95), torch.ones(96).half(), torch.zeros(96), torch.full((96,), torch.nan), -torch.ones(96)],
    ids=["too few", "halves", "zeros", "not numbers", "negative"],
)
def test_scales_that_scale_nothing(scale: Tensor, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "int8")
    rewrite(folder, variables={f"{QKV}/weight_scale": scale})
    assert "scales" in refused(folder)


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({PROJECTION: "nothing"}, "stands for 'nothing', which is not there"),
        ({"a": "b", "b": "a"}, "alias 'a' stands for 'b', which is not there"),
        ({"a": "a"}, "alias 'a' stands for 'a', which is not there"),
        ({EMBEDDINGS: "encoder/conv1/weight"}, f"'{EMBEDDINGS}' comes twice"),
        ({"a\nb": "c\nd"}, r"an alias is b'a\nb', expected printable text"),
    ],
)
def test_aliases_that_lead_nowhere(aliases: dict[str, str], message: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    rewrite(folder, aliases=aliases)
    assert message in refused(folder)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, struct.pack("<I", 7), "binary version 7, expected 4 to 6"),
        (0, struct.pack("<I", 3), "binary version 3, expected 4 to 6"),
        (6, b"Xhisper", "holds a 'XhisperSpec', expected a 'WhisperSpec'"),
        (18, struct.pack("<I", 4), "revision 4, expected 1 to 3"),
        (4, struct.pack("<H", 0), "expected the last to be zero"),
    ],
)
def test_files_of_another_kind_or_time(at: int, value: bytes, message: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    content = bytearray((folder / "model.bin").read_bytes())
    content[at : at + len(value)] = value
    (folder / "model.bin").write_bytes(content)
    assert message in refused(folder)


def string(text: bytes) -> bytes:
    return struct.pack("<H", len(text) + 1) + text + b"\0"


NAMES = st.sampled_from([EMBEDDINGS, PROJECTION, "encoder/conv1/weight", "encoder/num_heads", "a\nb", ""])
NUMBERS = st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1))


@st.composite
def model_files(draw: st.DrawFn) -> bytes:
    """Files whose counts, ranks, dimensions, types, sizes and aliases need not agree with anything."""
    parts = [struct.pack("<I", draw(st.integers(4, 6))), string(b"WhisperSpec"), struct.pack("<I", 3)]
    variables = draw(st.lists(st.tuples(NAMES, st.lists(NUMBERS, max_size=4), st.integers(0, 7)), max_size=4))
    parts.append(struct.pack("<I", draw(st.one_of(st.just(len(variables)), NUMBERS))))
    for name, shape, number in variables:
        n_bytes = draw(st.one_of(st.integers(0, 64), NUMBERS))
        fits = n_bytes % (DTYPES[number].itemsize if number < len(DTYPES) else 1) == 0
        dims = [n_bytes // DTYPES[number].itemsize] if fits and n_bytes < 65 and number < 6 else shape
        parts.append(string(name.encode()) + struct.pack(f"<B{len(dims)}I", len(dims), *dims))
        parts.append(struct.pack("<BI", number, n_bytes) + bytes(min(n_bytes, 64)))
    aliases = draw(st.lists(st.tuples(NAMES, NAMES), max_size=3))
    parts.append(struct.pack("<I", draw(st.one_of(st.just(len(aliases)), NUMBERS))))
    return b"".join(parts + [string(name.encode()) for pair in aliases for name in pair])


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(content=model_files())
def test_any_header_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "ct2"
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").write_bytes(content)
    assert "\n" not in refused(folder)
