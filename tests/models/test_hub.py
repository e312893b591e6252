"""Names, paths and hub ids, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sottovoce.errors import ModelNotFoundError
from sottovoce.models import hub
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.models.dims import ModelDims
from sottovoce.models.heads import HEADS, LARGE_V1, LARGE_V3, TINY, known_heads
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


def sizes(n_layer: int, n_head: int, n_vocab: int) -> ModelDims:
    return tiny.dims(n_text_layer=n_layer, n_text_head=n_head, n_vocab=n_vocab)


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        (sizes(4, 6, 51864), "tiny.en"),
        (sizes(4, 6, 51865), "tiny"),
        (sizes(6, 8, 51864), "base.en"),
        (sizes(6, 8, 51865), "base"),
        (sizes(12, 12, 51864), "small.en"),
        (sizes(12, 12, 51865), "small"),
        (sizes(24, 16, 51864), "medium.en"),
        (sizes(24, 16, 51865), "medium"),
        (sizes(32, 20, 51865), "large-v2"),
        (sizes(32, 20, 51866), "large-v3"),
        (sizes(4, 20, 51866), "large-v3-turbo"),
    ],
)
def test_a_renamed_model_has_the_heads_of_its_dimensions(dims: ModelDims, expected: str) -> None:
    for name in ("mine", "ggml-model-q5_0", "tiny.en"):
        assert known_heads(name, dims) == HEADS[expected][-1]


@pytest.mark.parametrize(
    "name", ["large-v1", "openai/whisper-large", "Systran/faster-whisper-large-v1", "ggml-large-v1-q5_0"]
)
def test_the_name_decides_between_models_of_the_same_dimensions(name: str) -> None:
    assert known_heads(name, sizes(32, 20, 51865)) == LARGE_V1
    assert known_heads(name, sizes(32, 20, 51866)) == LARGE_V3


@pytest.mark.parametrize(
    "dims",
    [sizes(2, 20, 51866), sizes(4, 12, 51864), sizes(2, 16, 51864), sizes(4, 6, 51866), sizes(4, 6, 300)],
    ids=["distil-large-v3", "distil-small.en", "distil-medium.en", "tiny with 100 languages", "a toy"],
)
def test_heads_of_other_dimensions_are_unknown(dims: ModelDims) -> None:
    assert known_heads("tiny", dims) is None


def test_a_renamed_file_has_its_models_heads(tmp_path: Path) -> None:
    small = {"n_text_state": 24, "n_audio_state": 24, "n_audio_head": 6}
    weights = tiny.checkpoint(tiny.dims(n_text_layer=4, n_text_head=6, n_vocab=51865, **small))
    save_openai(weights, tmp_path / "my model.pt")
    assert hub.load_checkpoint(tmp_path / "my model.pt").alignment_heads == TINY
    save_huggingface(weights, tmp_path / "whisper-tiny")
    assert hub.load_checkpoint(tmp_path / "whisper-tiny").alignment_heads == weights.alignment_heads


def test_heads_lie_inside_their_models() -> None:
    for n_layer, n_head, _, heads in HEADS.values():
        assert len(set(heads)) == len(heads) > 0
        assert all(0 <= layer < n_layer and 0 <= head < n_head for layer, head in heads)


@pytest.mark.reference
def test_heads_equal_openai_whispers() -> None:
    import base64
    import gzip

    import numpy as np

    whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    for name, mask in whisper._ALIGNMENT_HEADS.items():
        n_layer, n_head, _, heads = HEADS[name]
        flat = np.frombuffer(gzip.decompress(base64.b85decode(mask)), dtype=bool)
        assert [tuple(pair) for pair in np.argwhere(flat.reshape(n_layer, n_head))] == list(heads), name
