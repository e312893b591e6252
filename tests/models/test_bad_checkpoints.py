"""Damaged, incomplete and hostile model files: one line naming what is wrong, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Array, Checkpoint, Convolution, CtcWeights, check_dims, validated
from sottovoce.models.checkpoint.compact import save_compact
from sottovoce.models.checkpoint.ctranslate2 import save_ctranslate2
from sottovoce.models.checkpoint.ggml import BY_NAME, HEADER
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.load import open_checkpoint
from tests.models import tiny
from tests.models.test_checkpoints import ggml

FORMATS = ("openai", "ggml", "compact", "huggingface", "ctranslate2")
SMALL = tiny.dims(n_audio_layer=1, n_text_layer=1, n_vocab=40, n_audio_ctx=6, n_text_ctx=5)


def small() -> Checkpoint:
    return dataclasses.replace(tiny.checkpoint(SMALL), alignment_heads=((0, 1),), trained_tokens=(1, 2))


def save(kind: str, folder: Path, checkpoint: Checkpoint | None = None) -> Path:
    """The file with the weights of a small checkpoint, in a format."""
    checkpoint = checkpoint or small()
    if kind == "openai":
        save_openai(checkpoint, folder / "model.pt", "float32")
        return folder / "model.pt"
    if kind == "ggml":
        return ggml(checkpoint, folder / "ggml.bin")
    if kind == "compact":
        save_compact(checkpoint, folder / "compact.safetensors")
        return folder / "compact.safetensors"
    if kind == "ctranslate2":
        save_ctranslate2(checkpoint, folder / "ct2", "int8_float16")
        return folder / "ct2" / "model.bin"
    save_huggingface(checkpoint, folder / "hub")
    return folder / "hub" / "model.safetensors"


def opened(path: Path) -> Path:
    """What is handed to `open_checkpoint`: the folder, for a file in one."""
    return path.parent if path.parent.name in {"hub", "ct2"} else path


def refused(path: Path) -> str:
    return tiny.refused(opened(path))


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_file_and_one_that_may_not_be_read(kind: str, tmp_path: Path) -> None:
    file = save(kind, tmp_path)
    file.write_bytes(b"")
    assert refused(file)
    file.chmod(0)
    if not os.access(file, os.R_OK):
        assert "ermission" in refused(file)


def test_files_and_folders_that_are_no_model(tmp_path: Path) -> None:
    assert "no config.json" in refused(tmp_path)
    (tmp_path / "model.pt").write_text("this is no model")
    assert "begins with b'this'" in refused(tmp_path / "model.pt")
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert "config.json" in refused(tmp_path / "model.safetensors")
    (tmp_path / "model.pt").write_bytes(pickle.dumps({"dims": 1}, protocol=2))
    refused(tmp_path / "model.pt")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    assert "expected the keys dims and model_state_dict" in refused(tmp_path / "tensor.pt")
    path = save("huggingface", tmp_path)
    path.unlink()
    assert "no weights" in refused(path)


class _Malice:
    """Unpickling it would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, ("pickle-ran-code",)


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pickle_with_code_is_refused_unrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_format: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"dims": _Malice(), "model_state_dict": {}}
    torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=new_format)
    refused(tmp_path / "model.pt")
    assert not (tmp_path / "pickle-ran-code").exists()


def storage(key: str = "0", n: int = 4, kind: str = "torch\nFloatStorage") -> bytes:
    return (
        b"(" + pickled("storage") + f"c{kind}\n".encode() + pickled(key) + pickled("cpu") + pickled(n) + b"tQ"
    )


def pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=2)[2:-1]


def tensor(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], of: bytes) -> bytes:
    sizes = b"".join(map(pickled, (offset, shape, strides, False)))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + of + sizes + b"}tR"


RUN = b"cos\nmkdir\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RUN + b"(Vran\ntR", "names 'os.mkdir'"),
        (b"\x8c\x02os\x8c\x05mkdir\x93\x8c\x03ran\x85R", "names 'os.mkdir'"),
        (b"(Vran\nios\nmkdir\n", "opcode"),
        (b"(cos\nmkdir\nVran\no", "names 'os.mkdir'"),
        (b"cbuiltins\neval\n(Vopen('ran', 'w')\ntR", "names 'builtins.eval'"),
        (b"ctorch\nload\n(Vran\ntR", "names 'torch.load'"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n}X\x04\x00\x00\x00nameK\x01sb", "no Whisper checkpoint"),
        (b"ccollections\nOrderedDict\n)\x81", "opcode NEWOBJ"),
        (b"\x82\x01", "opcode EXT1"),
        (pickled("x") + b"Q", "storage of an unknown kind"),
        (storage(kind="os\nsystem"), "names 'os.system'"),
        (tensor(0, (5,), (1,), storage()), "ends behind its storage"),
        (tensor(3, (2,), (1,), storage()), "ends behind its storage"),
        (tensor(-1, (2,), (1,), storage()), "whole numbers from 0"),
        (tensor(0, (2, 2), (-1, 1), storage()), "whole numbers from 0"),
        (tensor(0, (1 << 40, 1 << 20), (0, 0), storage()), "repeats"),
        (tensor(0, (2,), (1, 1), storage()), "strides"),
        (tensor(0, (2,), (1,), storage(n=1 << 50)), "has 16 bytes"),
        (tensor(0, (2,), (1,), storage("../0")), "../0"),
        (tensor(0, (2,), (1,), storage("small")), "compressed"),
        (b"h\x07", ""),
        (b"t", ""),
    ],
)
def test_a_pickle_of_more_than_tensors_is_refused_unrun(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + content + b".")
        archive.writestr("archive/data/0", bytes(16))
        archive.writestr("archive/data/small", bytes(16), zipfile.ZIP_DEFLATED)
    assert message in refused(tmp_path / "model.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


KEY = "decoder.blocks.0.cross_attn.out.weight"


def without(checkpoint: Checkpoint) -> Checkpoint:
    tensors = dict(checkpoint.tensors)
    del tensors[KEY]
    return dataclasses.replace(checkpoint, tensors=tensors)


def misshapen(checkpoint: Checkpoint) -> Checkpoint:
    return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, KEY: zeros(32, 31)})


def with_another(checkpoint: Checkpoint) -> Checkpoint:
    return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, "adapter.weight": zeros(3)})


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without, rf"tensor {KEY} is missing, expected shape \(32, 32\)"),
        (misshapen, rf"tensor {KEY} has shape \(32, 31\), expected \(32, 32\)"),
        (with_another, "adapter.weight"),
    ],
)
def test_tensors_missing_misshapen_or_unknown(
    kind: str, spoil: Callable[[Checkpoint], Checkpoint], message: str, tmp_path: Path
) -> None:
    path = save(kind, tmp_path, spoil(small()))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(opened(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_vocab": 0}, "n_vocab is 0"),
        ({"n_audio_layer": -1}, "n_audio_layer is -1"),
        ({"n_text_ctx": 2**31 - 1}, "n_text_ctx is 2147483647"),
        ({"n_text_head": 3}, "multiple of n_text_head 3"),
        ({"n_text_state": 64}, "differs"),
    ],
)
def test_dimensions_that_no_whisper_has(changes: dict[str, int], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_dims(dataclasses.replace(SMALL, **changes), "model")


def ctc(n_inputs: int, blank: int, *layers: Convolution) -> CtcWeights:
    return CtcWeights(zeros(2, n_inputs), zeros(2), ("a", "b"), blank, layers)


def convolution(*shape: int) -> Convolution:
    return Convolution(zeros(*shape), zeros(shape[0]))


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        (dataclasses.replace(small(), alignment_heads=((0, 4),)), r"alignment head \(0, 4\)"),
        (dataclasses.replace(small(), ctc_head=ctc(31, 0)), "CTC head"),
        (dataclasses.replace(small(), ctc_head=ctc(32, 2)), "CTC blank 2"),
        (dataclasses.replace(small(), ctc_head=ctc(32, 0, convolution(8, 32, 3))), "CTC head"),
        (dataclasses.replace(small(), ctc_head=ctc(8, 0, convolution(8, 31, 3))), "CTC convolution"),
        (dataclasses.replace(small(), ctc_head=ctc(8, 0, convolution(8, 32, 2))), "an odd width"),
    ],
    ids=["alignment", "ctc shape", "ctc blank", "ctc after convolution", "convolution", "even width"],
)
def test_heads_outside_the_model(spoilt: Checkpoint, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        validated(spoilt, "model")


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = {**small().tensors, KEY: np.zeros((32, 32), np.int32)}
    with pytest.raises(CheckpointError, match="floating"):
        validated(dataclasses.replace(small(), tensors=tensors), "model")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", {"model_type": "bert"}, "'bert', expected 'whisper'"),
        ("config.json", {"scale_embedding": True}, "scale_embedding"),
        ("config.json", {"activation_function": "relu"}, "activation_function"),
        ("config.json", {"d_model": "large"}, "d_model in config.json: expected a whole number, got 'large'"),
        ("config.json", {"vocab_size": None}, "vocab_size"),
        ("config.json", {"encoder_layers": 2}, "encoder.blocks.1"),
        *(("config.json", text, "") for text in ("", "[1]", "{", "\x00", "{}")),
        *(
            ("generation_config.json", {"alignment_heads": heads}, "alignment")
            for heads in (3, [3], [[1]], [["a", 1]], [[-1, 0]])
        ),
    ],
)
def test_a_config_that_fits_no_whisper(
    name: str, content: str | dict[str, object], message: str, tmp_path: Path
) -> None:
    config = save("huggingface", tmp_path).parent / name
    if isinstance(content, dict):
        content = json.dumps({**json.loads(config.read_text()), **content})
    config.write_text(content)
    assert message in refused(config)


def test_a_teachers_heads_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = save("huggingface", tmp_path).parent / "generation_config.json"
    config.write_text(json.dumps({"alignment_heads": [[0, 1], [9, 0]]}))
    assert open_checkpoint(config.parent).alignment_heads is None
    assert "that the model lacks" in caplog.text


@pytest.mark.parametrize(
    "weight_map", [None, {}, {"a": "../model.safetensors"}, {"a": "/etc/passwd"}, {"a": "none.safetensors"}]
)
def test_an_index_that_leads_nowhere(weight_map: object, tmp_path: Path) -> None:
    folder = save("huggingface", tmp_path).parent
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert refused(folder)


def test_an_untied_projection_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = save("huggingface", tmp_path)
    tensors = load_file(path)
    tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"] + 1
    save_file(tensors, path)
    assert "tied" in refused(path)


def patched(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + struct.pack("<i", value) + content[at + 4 :]


def with_a_bias_twice(content: bytes) -> bytes:
    start = content.rindex(b"decoder.ln.bias") - 16
    return content + content[start : start + 16 + len(b"decoder.ln.bias") + 4 * 32]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda content: patched(content, 4 + 4 * len(HEADER), 5),
            "unknown number format 5, expected f32, f16, q4_0",
        ),
        (
            lambda content: patched(content, content.index(b"encoder.positional_embedding") - 12, 99),
            "tensor encoder.positional_embedding has the unknown number format 99",
        ),
        (
            lambda content: patched(
                content, content.index(b"decoder.token_embedding.weight") - 12, BY_NAME["q4_k"].ttype
            ),
            "rows of a multiple of 256",
        ),
        (with_a_bias_twice, "decoder.ln.bias comes twice"),
        (
            lambda content: content.replace(b"encoder.positional", b"encoder\npositional"),
            "expected printable text",
        ),
    ],
    ids=["file's number format", "tensor's number format", "blocks", "twice", "two lines"],
)
def test_a_damaged_ggml_file(edit: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    path = save("ggml", tmp_path)
    path.write_bytes(edit(path.read_bytes()))
    assert message in refused(path)


def test_ggml_without_tensors(shared_dir: Path) -> None:
    for path in sorted((shared_dir / "fixtures").glob("for-tests-ggml-*.bin")):
        assert "no tensors after the vocabulary" in refused(path)
