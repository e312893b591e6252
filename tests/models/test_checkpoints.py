"""One model in every format: the same tensors and logits, here and in transformers; the tokenizer that
other programs read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sottovoce.audio.mel import mel_filters
from sottovoce.errors import CheckpointError, OptionError
from sottovoce.models.checkpoint.base import Array, Checkpoint, Convolution, CtcWeights, floats
from sottovoce.models.checkpoint.compact import save_compact
from sottovoce.models.checkpoint.ctranslate2 import save_ctranslate2
from sottovoce.models.checkpoint.ggml import save_ggml
from sottovoce.models.checkpoint.huggingface import (
    merges,
    save_huggingface,
    tokens_of,
    transformers_name,
    write_tokenizer,
)
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.load import open_checkpoint, write_checkpoint
from sottovoce.models.whisper import as_tensor
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Features, Floats
from tests.models import tiny
from tests.runtime.reading import read

WHISPER_VOCABULARY = tiny.dims(n_vocab=51865, n_audio_layer=1, n_text_layer=3, n_audio_ctx=50)
OURS = Tokenizer.for_model(51865)
VOCABULARY = [bytes([i % 256]) * (i % 5) for i in range(280)]


def random_arrays(*shapes: tuple[int, ...]) -> list[Array]:
    return [torch.randn(shape).numpy() for shape in shapes]


def logits(checkpoint: Checkpoint, n_frames: int = 80) -> Floats:
    backend = tiny.backend(checkpoint)
    mel = torch.linspace(-1, 1, checkpoint.dims.n_mels * n_frames).sin().reshape(1, -1, n_frames).numpy()
    encoded = backend.encode(Features(mel, (n_frames,)))
    return read(backend, encoded, [[3, 1, 4, 1, 5]]).logits


def ggml(checkpoint: Checkpoint, path: Path, ftype: str = "f32") -> Path:
    filters = np.asarray(mel_filters(checkpoint.dims.n_mels))
    save_ggml(checkpoint, path, ftype, filters=filters, vocabulary=VOCABULARY[: checkpoint.dims.n_vocab])
    return path


def tensors_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    return {name: as_tensor(array) for name, array in checkpoint.tensors.items()}


def openai_file(checkpoint: Checkpoint, folder: Path) -> Path:
    save_openai(checkpoint, folder / "model.pt", "float32")
    return folder / "model.pt"


def legacy_openai_file(checkpoint: Checkpoint, folder: Path) -> Path:
    content = {"dims": dataclasses.asdict(checkpoint.dims), "model_state_dict": tensors_of(checkpoint)}
    torch.save(content, folder / "model.pt", _use_new_zipfile_serialization=False)
    return folder / "model.pt"


def hub_folder(checkpoint: Checkpoint, folder: Path) -> Path:
    save_huggingface(checkpoint, folder / "hub")
    return folder / "hub"


def pickled_folder(checkpoint: Checkpoint, folder: Path) -> Path:
    hub = hub_folder(checkpoint, folder)
    (hub / "model.safetensors").unlink()
    names = {transformers_name(name): tensor for name, tensor in tensors_of(checkpoint).items()}
    names["proj_out.weight"] = names["model.decoder.embed_tokens.weight"]
    torch.save(names, hub / "pytorch_model.bin")
    return hub


def pickled_shards(checkpoint: Checkpoint, folder: Path) -> Path:
    hub = hub_folder(checkpoint, folder)
    (hub / "model.safetensors").unlink()
    names = {transformers_name(name): tensor for name, tensor in tensors_of(checkpoint).items()}
    weight_map = {name: f"pytorch_model-0000{i % 3}-of-00003.bin" for i, name in enumerate(names)}
    for shard in set(weight_map.values()):
        torch.save({name: names[name] for name in names if weight_map[name] == shard}, hub / shard)
    (hub / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return hub


def ctranslate2_folder(checkpoint: Checkpoint, folder: Path) -> Path:
    save_ctranslate2(checkpoint, folder / "ct2", "float32")
    return folder / "ct2"


def ggml_file(checkpoint: Checkpoint, folder: Path) -> Path:
    return ggml(checkpoint, folder / "ggml-model.bin")


FORMATS = (
    *(openai_file, legacy_openai_file, hub_folder, pickled_folder, pickled_shards),
    *(ggml_file, ctranslate2_folder),
)


@pytest.mark.parametrize("save", FORMATS)
def test_every_format_holds_the_same_model(save: Callable[[Checkpoint, Path], Path], tmp_path: Path) -> None:
    original = tiny.checkpoint()
    reopened = open_checkpoint(save(original, tmp_path))
    assert reopened.dims == original.dims
    assert set(reopened.tensors) == set(original.tensors)
    for name, array in original.tensors.items():
        assert np.array_equal(reopened.tensors[name], array), name
    assert np.array_equal(logits(reopened), logits(original))


def test_content_decides_the_format_and_not_the_name(tmp_path: Path) -> None:
    original = tiny.checkpoint()
    disguised = openai_file(original, tmp_path).rename(tmp_path / "whatever.bin")
    assert open_checkpoint(disguised).dims == original.dims
    disguised = ggml(original, tmp_path / "model.pt")
    assert open_checkpoint(disguised).dims == original.dims


@pytest.mark.parametrize("save", [hub_folder, ctranslate2_folder])
def test_a_folder_keeps_its_alignment_heads(save: Callable[[Checkpoint, Path], Path], tmp_path: Path) -> None:
    original = tiny.checkpoint()
    assert open_checkpoint(save(original, tmp_path)).alignment_heads == original.alignment_heads


KINDS = ("pt", "hf", "ggml", "ct2")


@pytest.mark.parametrize(
    ("source", "target", "number"),
    [(kind, "pt", "f16") for kind in KINDS]
    + [("pt", kind, number) for kind in KINDS[1:] for number in ("f16", "f32")],
)
def test_conversions_lose_nothing(source: str, target: str, number: str, tmp_path: Path) -> None:
    """ggml alone keeps vectors in float32, which takes nothing away from float16."""
    original = tiny.checkpoint(WHISPER_VOCABULARY)
    exact = {name: floats(array.astype(np.float16)) for name, array in original.tensors.items()}
    write_checkpoint(dataclasses.replace(original, tensors=exact), tmp_path / "a", source, number)
    write_checkpoint(open_checkpoint(tmp_path / "a"), tmp_path / "b", target, number)
    reopened = open_checkpoint(tmp_path / "b")
    assert reopened.kind == target
    assert reopened.dims == original.dims
    for name, array in exact.items():
        assert np.array_equal(floats(reopened.tensors[name]), array), name


@pytest.mark.parametrize("ftype", ["f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_ggml_types_are_read_as_the_tensors_they_round_to(ftype: str, tmp_path: Path) -> None:
    original = tiny.checkpoint()
    reopened = open_checkpoint(ggml(original, tmp_path / "ggml.bin", ftype))
    for name, tensor in original.tensors.items():
        kept = tensor.ndim == 1 or name.endswith("positional_embedding")
        spread = float(tensor.max() - tensor.min())
        assert abs(floats(reopened.tensors[name]) - tensor).max() <= (0.0 if kept else 0.07 * spread), name


@pytest.mark.parametrize("name", ["q4_k", "nonsense"])
def test_a_failed_save_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        ggml(tiny.checkpoint(), tmp_path / "ggml.bin", name)
    wide = tiny.checkpoint(tiny.dims(n_audio_state=256, n_text_state=256))
    with pytest.raises(OptionError):
        ggml(wide, tmp_path / "ggml.bin", name)
    assert list(tmp_path.iterdir()) == []


def test_names_may_lack_their_beginning(tmp_path: Path) -> None:
    original, hub = tiny.checkpoint(), hub_folder(tiny.checkpoint(), tmp_path)
    tensors = load_file(hub / "model.safetensors")
    shortened = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(shortened, hub / "model.safetensors")
    reopened = open_checkpoint(hub).tensors
    assert reopened.keys() == original.tensors.keys()
    assert all(np.array_equal(reopened[name], tensor) for name, tensor in original.tensors.items())


def test_compact_form_keeps_what_was_trained(tmp_path: Path) -> None:
    original = tiny.checkpoint()
    head = CtcWeights(*random_arrays((5, 32), (5,)), ("-", "a", "b", "c", " "), 0)
    halves = {name: array.astype(np.float16) for name, array in original.tensors.items()}
    table = halves["decoder.token_embedding.weight"]
    kept = (0, 7, 299, 3)
    table[[i for i in range(300) if i not in kept]] = table[1]
    compact = dataclasses.replace(
        original, tensors=halves, ctc_head=head, trained_tokens=kept, languages=("en", "de"), name="small"
    )
    save_compact(compact, tmp_path / "small.safetensors")
    reopened = open_checkpoint(tmp_path / "small.safetensors")
    assert (reopened.name, reopened.languages, reopened.trained_tokens) == ("small", ("en", "de"), kept)
    assert reopened.alignment_heads == original.alignment_heads
    for name, tensor in halves.items():
        np.testing.assert_allclose(floats(reopened.tensors[name]), floats(tensor), atol=1e-3, rtol=0)
    assert np.array_equal(reopened.tensors["decoder.token_embedding.weight"], table)
    assert (reopened.ctc_head.labels, reopened.ctc_head.blank) == (head.labels, 0)
    layer = Convolution(*random_arrays((32, 32, 3), (32,)))
    deep = dataclasses.replace(compact, ctc_head=dataclasses.replace(head, convolutions=(layer,)))
    with pytest.raises(CheckpointError, match="linear CTC heads alone"):
        save_compact(deep, tmp_path / "deep.safetensors")


@pytest.mark.long
@pytest.mark.parametrize("shard_bytes", ["1GB", "40KB"], ids=["whole", "sharded"])
def test_transformers_reads_and_writes_the_same_folder(shard_bytes: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    original = tiny.checkpoint()
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(hub_folder(original, tmp_path))
    mel = torch.randn(1, 80, 80)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        expected = theirs.eval()(input_features=mel, decoder_input_ids=tokens).logits
    backend = tiny.backend(original)
    encoded = backend.encode(Features(mel.numpy(), (80,)))
    ours = read(backend, encoded, tokens).logits
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)
    theirs.save_pretrained(tmp_path / "back", max_shard_size=shard_bytes)
    assert (tmp_path / "back" / "model.safetensors").exists() is (shard_bytes == "1GB")
    assert np.array_equal(logits(open_checkpoint(tmp_path / "back")), logits(original))


def test_the_generation_config_names_whispers_tokens(tmp_path: Path) -> None:
    """Without a task there, transformers begins with the language alone and repeats itself."""
    hub = hub_folder(tiny.checkpoint(WHISPER_VOCABULARY), tmp_path)
    generation = json.loads((hub / "generation_config.json").read_text())
    assert generation["task"] == "transcribe"
    assert generation["task_to_id"]["transcribe"] == 50359
    assert generation["lang_to_id"]["<|de|>"] == 50261
    assert generation["no_timestamps_token_id"] == 50363


@pytest.mark.long
def test_transformers_finds_the_processor_in_our_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    hub = hub_folder(tiny.checkpoint(WHISPER_VOCABULARY), tmp_path)
    processor = transformers.AutoProcessor.from_pretrained(hub)
    text = " Où est l'œuf, 你好?"
    assert processor.tokenizer(text, add_special_tokens=False).input_ids == OURS.encode(text)
    assert processor.tokenizer.convert_tokens_to_ids("<|transcribe|>") == OURS.transcribe
    assert processor.feature_extractor.n_samples == 16_000


@pytest.mark.long
def test_openai_whisper_reads_our_file(tmp_path: Path) -> None:
    whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    theirs = whisper.load_model(str(openai_file(tiny.checkpoint(), tmp_path)), device="cpu")
    mel = torch.linspace(-1, 1, 80 * 80).sin().reshape(1, 80, 80)
    with torch.no_grad():
        expected = theirs(mel, torch.tensor([[3, 1, 4, 1, 5]]))
    np.testing.assert_allclose(logits(tiny.checkpoint()), expected, atol=1e-4, rtol=0)


def test_files_may_be_read_by_whoever_reads_new_files(tmp_path: Path) -> None:
    """safetensors alone would leave them to their owner."""
    plain = tmp_path / "plain"
    plain.touch()
    save_huggingface(tiny.checkpoint(), tmp_path / "hub")
    save_openai(tiny.checkpoint(), tmp_path / "tiny.pt")
    written = [*(tmp_path / "hub").iterdir(), tmp_path / "tiny.pt"]
    assert {path.stat().st_mode for path in written} == {plain.stat().st_mode}


TEXTS = (
    "",
    " Hello, world! It's 10:45 — isn't it?",
    " Es grünt so grün, wenn Spaniens Blüten blühen.",
    " Où est l'œuf ? ¡Ñandú! Zażółć gęślą jaźń",
    "你好,世界。これは テスト です。한국어 문장",
    "Привет, как дела?  नमस्ते दुनिया  สวัสดีชาวโลก مرحبا",
    "  two  spaces\n\nlines\ttabs  ",
    "👩‍👩‍👧 naïve \u00a0\u00ad\ufeff <|en|",
)
VOCABULARIES = (51864, 51865, 51866)


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.for_model(request.param)


def test_merges_build_every_piece_from_earlier_ones(tokenizer: Tokenizer) -> None:
    pieces = tokens_of(tokenizer)[: tokenizer.eot]
    known = {piece for piece in pieces if len(piece) == 1}
    for left, right in merges(tokenizer.is_multilingual):
        assert {left, right} <= known
        known.add(left + right)
    assert known >= {piece for piece in pieces if piece}


def test_the_tokenizers_package_gives_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    write_tokenizer(tokenizer, tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokens = tokens_of(tokenizer)
    assert len(set(tokens)) == len(tokens) == theirs.get_vocab_size() == tokenizer.n_vocab
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ids == tokenizer.encode(text), text
        assert theirs.decode(ids, skip_special_tokens=False) == text
    for token in range(tokenizer.eot, tokenizer.n_vocab):
        name = tokenizer.decode_with_timestamps([token])
        assert theirs.token_to_id(name) == token
    prompt = "<|startoftranscript|><|en|><|transcribe|><|0.00|> Yes.<|1.08|><|endoftext|>"
    expected = tokenizer.vocabulary.encoding.encode(prompt, allowed_special="all")
    assert theirs.encode(prompt, add_special_tokens=False).ids == expected


def test_texts_stand_between_special_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_tokenizer(tokenizer, tmp_path)
    template = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["post_processor"]
    ids = [entry["ids"][0] for entry in template["special_tokens"].values()]
    assert sorted(ids) == sorted([tokenizer.sot, tokenizer.no_timestamps, tokenizer.eot])
