"""CTranslate2's folders: number types, versions, aliases, config and vocabulary, CTranslate2 itself,
damage.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Array, Checkpoint, cursor_over, with_dtype
from sottovoce.models.checkpoint.ctranslate2 import (
    EMBEDDINGS,
    PROJECTION,
    TYPES,
    quantize_int8,
    quantize_int16,
    read_contents,
    read_ctranslate2,
    read_values,
    save_ctranslate2,
    write_model,
)
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.dims import upper_half_heads
from sottovoce.models.load import open_checkpoint
from tests.models import tiny

SMALL = tiny.dims(n_audio_layer=1, n_text_layer=2, n_vocab=40, n_audio_ctx=6, n_text_ctx=5)
WHISPER = tiny.dims(n_vocab=51865, n_audio_layer=1, n_text_layer=3, n_audio_ctx=50)
QKV = "encoder/layer_0/self_attention/linear_0"
QUANTISED = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16")


def small() -> Checkpoint:
    return dataclasses.replace(tiny.checkpoint(SMALL), alignment_heads=((0, 1), (1, 2)))


def folder_of(path: Path, number: str = "float32", checkpoint: Checkpoint | None = None) -> Path:
    save_ctranslate2(checkpoint or small(), path / "ct2", number)
    return path / "ct2"


Folders = Callable[[int], Path]


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A folder with one of Whisper's vocabularies, by its size; made once, as the tokenizer takes a while."""
    folders: dict[int, Path] = {}

    def folder(n_vocab: int) -> Path:
        if n_vocab not in folders:
            model = tiny.checkpoint(dataclasses.replace(WHISPER, n_vocab=n_vocab))
            folders[n_vocab] = folder_of(tmp_path_factory.mktemp("whisper"), checkpoint=model)
        return folders[n_vocab]

    return folder


def variables_of(folder: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Variables as stored, and aliases."""
    cursor = cursor_over(folder / "model.bin")
    stored = read_contents(cursor).variables
    values = {name: read_values(cursor, entry) for name, entry in stored.items() if name == entry.name}
    return values, {name: entry.name for name, entry in stored.items() if name != entry.name}


def rewrite(folder: Path, **changes: Mapping[str, object]) -> None:
    """Write the file again with variables added, replaced or (None) taken away, and other aliases."""
    variables, aliases = variables_of(folder)
    for name, value in changes.get("variables", {}).items():
        if value is None:
            del variables[name]
        else:
            assert isinstance(value, np.ndarray)
            variables[name] = value
    given_aliases = {name: str(target) for name, target in changes.get("aliases", aliases).items()}
    write_model(folder / "model.bin", variables, given_aliases)


@pytest.mark.parametrize("number", ["float32", "float16", "bfloat16"])
def test_floats_are_kept_bit_for_bit(number: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder_of(tmp_path, number))
    assert (checkpoint.kind, checkpoint.numbers) == ("ct2", number)
    for name, tensor in small().tensors.items():
        assert np.array_equal(checkpoint.tensors[name], with_dtype(tensor, TYPES[number].weights)), name


@pytest.mark.parametrize("number", QUANTISED)
def test_quantised_weights_are_within_half_a_step(number: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder_of(tmp_path, number))
    assert checkpoint.numbers == {"int8": "int8_float32"}.get(number, number)
    for name, tensor in small().tensors.items():
        if tensor.ndim == 1 or name.endswith("positional_embedding"):
            assert np.array_equal(checkpoint.tensors[name], with_dtype(tensor, TYPES[number].rest)), name
            continue
        levels = 127 if number.startswith("int8") else 1024
        step = abs(tensor).max() / levels  # of the widest row, or of a matrix that may be stacked
        error = abs(checkpoint.tensors[name] - tensor).max()
        assert error <= (0.51 if levels == 127 else 1.0) * step, name


def test_a_row_of_zeros_and_a_matrix_of_zeros_stay_zero() -> None:
    weights = np.zeros((2, 4), np.float32)
    weights[1, 2] = -3.0
    values, scales = quantize_int8(weights)
    np.testing.assert_allclose(values / scales[:, None], weights, rtol=1e-6)
    values, scale = quantize_int16(np.zeros((2, 4), np.float32))
    assert not values.any()
    assert np.isfinite(scale)


def test_sixteen_bits_without_a_scale_have_ctranslate2s_own(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "int16")
    stored = np.arange(32 * 32, dtype=np.int16).reshape(32, 32)
    name = "decoder/layer_0/attention/linear_2/weight"
    rewrite(folder, variables={name: stored, f"{name}_scale": None})
    weights = open_checkpoint(folder).tensors["decoder.blocks.0.cross_attn.out.weight"]
    assert np.array_equal(weights, stored * np.float32(1 / 1000))


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize(("revision", "gelu"), [(1, 1), (2, 1), (3, 3)])
def test_older_files_read_the_same(version: int, revision: int, gelu: int, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    rewrite(folder, variables={"decoder/activation": np.array(gelu, np.int8)})
    file = folder / "model.bin"
    content = bytearray(file.read_bytes())
    content[:4], content[18:22] = struct.pack("<I", version), struct.pack("<I", revision)
    file.write_bytes(content)
    weights = open_checkpoint(folder).tensors
    assert all(np.array_equal(weights[name], tensor) for name, tensor in small().tensors.items())


def test_aliases_carry_their_scales_and_chains(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "int8")
    first, second = (f"decoder/layer_{i}/attention/linear_2/weight" for i in range(2))
    third = "encoder/layer_0/self_attention/linear_1/weight"
    gone = {name: None for alias in (second, third) for name in (alias, f"{alias}_scale")}
    rewrite(folder, variables=gone, aliases={PROJECTION: EMBEDDINGS, second: first, third: second})
    tensors = open_checkpoint(folder).tensors
    table = tensors["decoder.blocks.0.cross_attn.out.weight"]
    copies = [tensors["decoder.blocks.1.cross_attn.out.weight"], tensors["encoder.blocks.0.attn.out.weight"]]
    assert all(np.array_equal(table, copy) for copy in copies)


def test_a_projection_of_its_own_must_be_the_embedding(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    table = small().tensors["decoder.token_embedding.weight"]
    rewrite(folder, variables={PROJECTION: table}, aliases={})
    assert open_checkpoint(folder).dims == SMALL
    rewrite(folder, variables={PROJECTION: table + 1}, aliases={})
    assert "tied" in tiny.refused(folder)


def test_the_file_itself_and_any_name_of_it_are_known_by_their_content(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    assert open_checkpoint(folder / "model.bin").dims == SMALL
    (folder / "model.bin").rename(folder / "weights.pt")
    assert open_checkpoint(folder / "weights.pt").dims == SMALL


def test_a_hugging_face_folder_is_still_one(tmp_path: Path) -> None:
    save_huggingface(small(), tmp_path / "ct2")
    (tmp_path / "ct2" / "model.bin").write_bytes(b"something else")
    assert open_checkpoint(tmp_path / "ct2").kind == "hf"
    (tmp_path / "ct2" / "model.safetensors").unlink()
    assert "model.bin" in tiny.refused(tmp_path / "ct2")


# What stands beside the weights


def configured(folder: Path, **values: object) -> Path:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}))
    return folder


def test_neither_config_nor_vocabulary_is_needed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for file in folder.iterdir():
        if file.name != "model.bin":
            file.unlink()
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.alignment_heads, checkpoint.languages) == (None, None)
    (folder / "vocabulary.txt").write_text("\n".join(map(str, range(40))))  # of an old version
    assert open_checkpoint(folder).dims == SMALL


def test_the_converters_stand_in_for_unknown_heads_says_nothing(tmp_path: Path) -> None:
    every = [list(pair) for pair in upper_half_heads(SMALL)]
    assert open_checkpoint(configured(folder_of(tmp_path), alignment_heads=every)).alignment_heads is None


@pytest.mark.parametrize(
    ("n_vocab", "ids", "expected"),
    [
        (51865, [50259, 50261], ("en", "de")),
        (51865, list(range(50259, 50358)), None),
        (51865, list(range(50259, 50362)), None),
        (51866, list(range(50259, 50359)), None),
        (51865, [], None),
        (51865, None, None),
        (51864, [50259, 50260], None),
    ],
    ids=["two", "all", "and others that are none", "all of large-v3", "empty", "null", "English-only"],
)
def test_languages_are_those_listed_where_they_are_fewer(
    n_vocab: int, ids: list[int] | None, expected: tuple[str, ...] | None, whisper_folder: Folders
) -> None:
    folder = whisper_folder(n_vocab)
    config = (folder / "config.json").read_text()
    try:
        assert open_checkpoint(configured(folder, lang_ids=ids)).languages == expected
    finally:
        (folder / "config.json").write_text(config)


def test_languages_are_written(tmp_path: Path) -> None:
    model = dataclasses.replace(tiny.checkpoint(WHISPER), languages=("en", "zh"))
    assert open_checkpoint(folder_of(tmp_path, checkpoint=model)).languages == ("en", "zh")


def test_other_suppressed_tokens_are_noted(
    whisper_folder: Folders, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(whisper_folder(51865), tmp_path / "ct2")
    with caplog.at_level(logging.INFO):
        open_checkpoint(folder)
        assert "suppress_ids" not in caplog.text
        open_checkpoint(configured(folder, suppress_ids=[1, 2]))
    assert "suppress_ids" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocabulary.txt", "a\nb\n", "vocabulary holds 2 tokens, the model has 40"),
        ("vocabulary.json", '["a"]', "vocabulary holds 1 tokens"),
        ("vocabulary.json", '{"a": 1}', "vocabulary holds dict"),
        ("vocabulary.json", "{", "vocabulary cannot be read"),
        ("config.json", "[]", "expected a JSON object"),
        ("config.json", '{"lang_ids": "en"}', "lang_ids in config.json: expected a list, got 'en'"),
        (
            "config.json",
            '{"lang_ids": [1.5]}',
            "lang_ids in config.json: [0]: expected a whole number, got 1.5",
        ),
        (
            "config.json",
            '{"alignment_heads": [[1]]}',
            "alignment_heads: [0]: expected a list of length 2, got [1]",
        ),
    ],
)
def test_config_and_vocabulary_are_checked(name: str, content: str, message: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / name).write_text(content)
    assert message in tiny.refused(folder)


def test_an_unknown_number_type_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'q5_1' given, expected one of float32"):
        save_ctranslate2(small(), tmp_path / "ct2", "q5_1")
    assert list(tmp_path.iterdir()) == []


# CTranslate2 itself


def converted(model: Checkpoint, folder: Path, quantization: str) -> Path:
    """What CTranslate2's own converter makes of the same weights."""
    converters = pytest.importorskip("ctranslate2.converters", reason="CTranslate2 is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    save_huggingface(model, folder / "hf")
    converters.TransformersConverter(str(folder / "hf")).convert(
        str(folder / "theirs"), quantization=quantization
    )
    return folder / "theirs"


@pytest.mark.long
@pytest.mark.parametrize("number", ["float16", "int8_float32", "int8_bfloat16", "int16"])
def test_our_folder_holds_what_ctranslate2s_converter_writes(number: str, tmp_path: Path) -> None:
    model = tiny.checkpoint(WHISPER)
    their_folder, our_folder = converted(model, tmp_path, number), folder_of(tmp_path, number, model)
    theirs, their_aliases = variables_of(their_folder)
    ours, our_aliases = variables_of(our_folder)
    assert our_aliases == their_aliases
    assert ours.keys() <= theirs.keys()
    assert all(theirs[name].ndim == 0 for name in theirs.keys() - ours.keys())
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert np.array_equal(tensor, theirs[name]), name
    for name in ("config.json", "vocabulary.json"):
        assert json.loads((our_folder / name).read_text()) == json.loads((their_folder / name).read_text())
    assert read_ctranslate2(their_folder).alignment_heads == model.alignment_heads


@pytest.mark.long
@pytest.mark.parametrize("number", ["float16", *QUANTISED[2:]])
def test_weights_are_read_as_ctranslate2_dequantises_them(number: str, tmp_path: Path) -> None:
    """Its encoder in float32 gives the same bits over our file as over the floats that we read from it."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    features = np.random.default_rng(0).standard_normal((1, 80, 100)).astype(np.float32)
    quantised = folder_of(tmp_path, number, tiny.checkpoint(WHISPER))
    floats = folder_of(tmp_path / "floats", "float32", open_checkpoint(quantised))

    def states(folder: Path) -> np.ndarray:
        model = ctranslate2.models.Whisper(str(folder), compute_type="float32", intra_threads=1)
        return np.array(model.encode(ctranslate2.StorageView.from_array(features)))

    assert np.array_equal(states(quantised), states(floats))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"decoder/activation": np.array(0, np.int8)}, "decoder/activation is 0, expected 3"),
        ({"decoder/pre_norm": np.array(0, np.int8)}, "decoder/pre_norm is 0, expected 1"),
        ({"decoder/rotary_dim": np.array(4, np.int32)}, "decoder/rotary_dim is 4, expected 0"),
        ({"encoder/num_heads": None}, "variable encoder/num_heads is missing"),
        ({"encoder/num_heads": np.array(2.0, np.float32)}, "num_heads holds float32, expected an integer"),
        ({"encoder/num_heads": np.zeros(2, np.int16)}, r"num_heads has shape (2,)"),
        ({"encoder/num_heads": np.array(3, np.int16)}, "multiple of n_audio_head 3"),
        ({EMBEDDINGS: np.zeros(40, np.float32)}, "expected 2 dimensions"),
        ({f"{QKV}/weight": np.zeros((95, 32), np.float32)}, "expected rows of 3 tensors"),
        ({f"{QKV}/bias": np.zeros(0, np.float32)}, "has shape (0,), expected sizes of 1 or more"),
        ({f"{QKV}/weight_zero": np.zeros(3, np.float32)}, f"'{QKV}/weight_zero' belongs to no Whisper"),
        ({f"{QKV}/weight": np.zeros((96, 32), np.int8)}, "expected 96 float32 scales in another variable"),
        (
            {"encoder/layer_999/ffn/linear_0/bias": np.zeros(3, np.float32)},
            "n_audio_layer is 1000, expected 1 to 256",
        ),
        ({"encoder/layer_1/ffn/linear_0/bias": np.zeros(128, np.float32)}, "encoder.blocks.1"),
        # Scales: too few, halves, zeros, not numbers, negative.
        ({f"{QKV}/weight_scale": np.ones(95, np.float32)}, "scales"),
        ({f"{QKV}/weight_scale": np.ones(96, np.float16)}, "scales"),
        ({f"{QKV}/weight_scale": np.zeros(96, np.float32)}, "scales"),
        ({f"{QKV}/weight_scale": np.full(96, np.nan, np.float32)}, "scales"),
        ({f"{QKV}/weight_scale": -np.ones(96, np.float32)}, "scales"),
    ],
)
def test_variables_that_no_whisper_has(
    variables: dict[str, Array | None], message: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, "int8" if message == "scales" else "float32")
    rewrite(folder, variables=variables)
    assert message in tiny.refused(folder)


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
    assert message in tiny.refused(folder)


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
    assert message in tiny.refused(folder)
