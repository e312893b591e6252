"""Packed weights in the cache: mapped they are the packed ones, and never those of other weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")

from sottovoce_kernels.packed import pack, packed_layout, packed_size

from sottovoce.cli.main import run
from sottovoce.models.checkpoint.base import Array, Checkpoint
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.load import open_checkpoint
from sottovoce.runtime import packed
from sottovoce.runtime.native import NativeBackend
from sottovoce.types import Features, Floats
from tests.models import tiny

DIMS = tiny.dims()


class Untouched(Mapping[str, Array]):
    """Tensors that nobody may read."""

    def __init__(self, names: Mapping[str, Array]) -> None:
        self.names = names

    def __getitem__(self, name: str) -> Array:
        raise AssertionError(f"{name} was read")

    def __iter__(self) -> Iterator[str]:
        return iter({})

    def __len__(self) -> int:
        return len(self.names)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "small.pt"
    save_openai(tiny.checkpoint(DIMS), path, "float32")
    return path


def outputs(checkpoint: Checkpoint) -> tuple[Floats, Floats]:
    """States of a window, and logits of a prompt."""
    backend = NativeBackend.from_checkpoint(checkpoint)
    mel = np.random.default_rng(0).standard_normal((1, checkpoint.dims.n_mels, 64)).astype(np.float32)
    encoded = backend.encode(Features(mel, (64,)))
    rows = backend.rows()
    rows.admit(encoded)
    return encoded.states_on_host(), rows.step([[5, 9, 30]], [[2]]).logits


def same(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> bool:
    return all(map(np.array_equal, first, second))


def test_mapped_weights_are_the_packed_ones_and_the_checkpoint_is_not_read(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    created = outputs(checkpoint)
    assert len(list(packed.list_packed())) == 2
    checkpoint.tensors.tensors = Untouched(checkpoint.tensors)  # type: ignore[attr-defined]
    assert same(created, outputs(checkpoint))
    assert same(created, outputs(tiny.checkpoint(DIMS)))  # packed in memory


def test_other_weights_at_the_same_place_are_packed_anew(model: Path) -> None:
    """Also where size and time are the same."""
    created, before = outputs(open_checkpoint(model)), model.stat()
    changed = tiny.checkpoint(DIMS, seed=1)
    save_openai(changed, model, "float32")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_size == before.st_size
    result = outputs(open_checkpoint(model))
    assert same(result, outputs(changed))
    assert not same(result, created)
    assert len(list(packed.list_packed())) == 2  # those of the weights that are gone were removed


def test_an_unfinished_file_is_packed_again(model: Path) -> None:
    created = outputs(open_checkpoint(model))
    for file in packed.list_packed():
        os.truncate(file.path, packed.PAGE + file.n_bytes // 2)
    assert same(created, outputs(open_checkpoint(model)))
    assert len(list(packed.list_packed())) == 2


def test_without_a_folder_that_can_be_written_weights_are_in_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(model / "of-a-file"))
    assert same(outputs(open_checkpoint(model)), outputs(tiny.checkpoint(DIMS)))


def test_packed_weights_are_listed_and_removed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs(open_checkpoint(model))
    assert run(["models", "packed", "small", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["weights"]) for row in listed] == [("small", str(model))] * 2
    assert run(["models", "packed", "--remove"]) == 0
    assert not list(packed.list_packed())
    assert not list(packed.packed_folder().iterdir())


@pytest.mark.parametrize(
    ("in_words", "expected"),
    [(False, "660d75598cbdd03d"), (True, "b168d3ff5c865186")],
    ids=["bytes", "words"],
)
def test_the_layout_of_packed_tables_has_a_number(in_words: bool, expected: str) -> None:
    """Raise `kPackedLayout` of kernels/cpp/packed.h with these: caches hold tables of earlier versions."""
    shape = (70, 130)
    rows = (np.arange(70 * 130, dtype=np.float32).reshape(shape) * 37 % 19 - 9) / 8
    bias = rows[:, 0].copy()
    memory = np.zeros(packed_size(shape, in_words=in_words) + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :]
    at = memory.ctypes.data
    for first, end in ((0, 33), (33, 70)):
        addresses = rows[first:].ctypes.data, bias[first:].ctypes.data, shape, (first, end), at
        pack(*addresses, in_words=in_words)
    n_bytes = packed_size(shape, in_words=in_words)
    result = packed_layout(), hashlib.sha256(memory[:n_bytes].tobytes()).hexdigest()[:16]
    assert result == (1, expected)
