"""Names, paths and hub ids, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sottovoce.errors import ModelNotFoundError
from sottovoce.models import hub
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.models.heads import HEADS, LARGE_V3, TINY, TINY_EN, known_heads
from tests.models import tiny


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


class Downloads:
    """Stands in for snapshot_download: writes files that the patterns allow."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self.folder = folder
        self.files = files
        self.asked: list[str] = []

    def __call__(self, repository: str, *, allow_patterns: Sequence[str]) -> str:
        self.asked.append(repository)
        for name in self.files:
            if any(Path(name).match(pattern) for pattern in allow_patterns):
                (self.folder / name).touch()
        return str(self.folder)


def test_every_known_name_is_listed_once() -> None:
    names = hub.list_models()
    assert names[0] == "nano"
    assert {"tiny", "tiny.en", "base", "large-v3", "large-v3-turbo", "turbo", "distil-large-v3"} <= set(names)
    assert len(set(names)) == len(names)


def test_a_local_path_wins_over_a_name(tmp_path: Path) -> None:
    save_openai(tiny.checkpoint(), tmp_path / "tiny")
    assert hub.resolve("tiny") == Path("tiny")
    assert hub.load_checkpoint("tiny").dims == tiny.dims()


@pytest.mark.parametrize("name", ["base", "distil-large-v3", "someone/whisper-of-theirs"])
def test_without_a_network_nano_is_recommended(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="use --model nano to try the tool offline") as caught:
        hub.resolve(name)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_close_ones() -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean large-v3-turbo") as caught:
        hub.resolve("large-v3-trubo")
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelNotFoundError, match="expected one of nano, tiny"):
        hub.resolve("xyzzy")


@pytest.mark.parametrize("name", ["./none.pt", "none.bin", "/a/b/c", "a/b/c", "~/none"])
def test_a_path_that_is_not_there_is_not_looked_up(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        hub.resolve(name)


def test_names_mean_their_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = Downloads(tmp_path, ["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5"])
    monkeypatch.setattr("huggingface_hub.snapshot_download", downloads)
    for name in ("turbo", "tiny.en", "distil-small.en", "someone/theirs"):
        assert hub.resolve(name) == tmp_path
    assert downloads.asked == [
        "openai/whisper-large-v3-turbo",
        "openai/whisper-tiny.en",
        "distil-whisper/distil-small.en",
        "someone/theirs",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_pickles_are_fetched_only_where_there_is_no_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = Downloads(
        tmp_path, ["config.json", "pytorch_model.bin", "model.fp32-00001-of-00002.safetensors"]
    )
    monkeypatch.setattr("huggingface_hub.snapshot_download", downloads)
    hub.resolve("someone/theirs")
    assert len(downloads.asked) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "pytorch_model.bin"]


def test_a_fetched_model_goes_by_the_name_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the hub's cache its folder is named after a commit."""
    commit = tmp_path / "0123abcd"
    save_huggingface(tiny.checkpoint(), commit)
    monkeypatch.setattr("huggingface_hub.snapshot_download", Downloads(commit, []))
    assert hub.load_checkpoint("someone/theirs").name == "someone/theirs"
    assert hub.load_checkpoint(commit).name == "0123abcd"


def test_nano_is_always_there() -> None:
    nano = hub.load_checkpoint("nano")
    assert nano.name == "nano"
    assert nano.alignment_heads


def test_heads_of_known_models_by_name_and_dimensions() -> None:
    tiny_dims = tiny.dims(n_text_layer=4, n_text_head=6, n_text_state=36)
    large_dims = tiny.dims(n_text_layer=32, n_text_head=20)
    assert known_heads("tiny", tiny_dims) == TINY
    assert known_heads("whisper-tiny.en", tiny_dims) == TINY_EN
    assert known_heads("openai/whisper-tiny", tiny_dims) == TINY
    assert known_heads("ggml-large-v3-q5_0", large_dims) == LARGE_V3
    assert known_heads("tiny", large_dims) is None
    assert known_heads("mine", tiny_dims) is None


def test_a_file_named_after_a_known_model_has_its_heads(tmp_path: Path) -> None:
    weights = tiny.checkpoint(
        tiny.dims(n_text_layer=4, n_text_head=6, n_audio_head=6, n_text_state=24, n_audio_state=24)
    )
    save_openai(weights, tmp_path / "tiny.pt")
    assert hub.load_checkpoint(tmp_path / "tiny.pt").alignment_heads == TINY
    save_huggingface(weights, tmp_path / "whisper-tiny")
    assert hub.load_checkpoint(tmp_path / "whisper-tiny").alignment_heads == weights.alignment_heads


def test_heads_lie_inside_their_models() -> None:
    for n_layer, n_head, heads in HEADS.values():
        assert len(set(heads)) == len(heads) > 0
        assert all(0 <= layer < n_layer and 0 <= head < n_head for layer, head in heads)


@pytest.mark.reference
def test_heads_equal_openai_whispers() -> None:
    import base64
    import gzip

    import numpy as np

    whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    for name, mask in whisper._ALIGNMENT_HEADS.items():
        n_layer, n_head, heads = HEADS[name]
        flat = np.frombuffer(gzip.decompress(base64.b85decode(mask)), dtype=bool)
        assert [tuple(pair) for pair in np.argwhere(flat.reshape(n_layer, n_head))] == list(heads), name
