"""Names, paths, hub ids and the hub's cache, without a network; what names promise of models."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from sottovoce.api import load_model
from sottovoce.errors import ModelNotFoundError, OptionError
from sottovoce.models import sources
from sottovoce.models.checkpoint.compact import compact_languages
from sottovoce.models.checkpoint.formats import (
    BY_NAME,
    NANO_ASSET,
    WRITTEN,
    ending_of,
    format_by_name,
    require_suffix,
)
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.dims import ModelDims
from sottovoce.models.load import (
    HEADS,
    LARGE_V1,
    expected_bytes,
    expected_languages,
    load_checkpoint,
    n_parameters,
    published_heads,
)
from sottovoce.models.sources import Source, Sources, cached, list_models, resolve
from tests.conftest import Reference
from tests.models import tiny


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, and caches of our own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


class Downloads:
    """Stands in for snapshot_download: writes files that the patterns allow, or raises an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: Sequence[str] = ()
        self.error: Exception | None = None
        self.asked: list[tuple[str, Path | None, str | None]] = []

    def __call__(
        self, repository: str, *, allow_patterns: Sequence[str], cache_dir: Path | None, revision: str | None
    ) -> str:
        self.asked.append((repository, cache_dir, revision))
        if self.error is not None:
            raise self.error
        for name in self.files:
            if any(Path(name).match(pattern) for pattern in allow_patterns):
                (self.folder / name).touch()
        return str(self.folder)

    def taken(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Downloads:
    """A hub that answers."""
    downloads = Downloads(tmp_path / "got")
    downloads.folder.mkdir()
    monkeypatch.setattr(sources, "is_reachable", lambda: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", downloads)
    return downloads


def snapshot(cache: Path, repository: str, files: Sequence[str], revision: str = "main") -> Path:
    """A repository as the hub's cache lays it out."""
    place = cache / f"models--{repository.replace('/', '--')}"
    folder = place / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).touch()
    (place / "refs").mkdir()
    (place / "refs" / revision).write_text("0123abcd")
    return folder


def test_every_known_name_is_listed_once() -> None:
    names = list_models()
    assert names[0] == "nano"
    assert {"tiny", "tiny.en", "base", "large-v3", "large-v3-turbo", "turbo", "distil-large-v3"} <= set(names)
    assert len(set(names)) == len(names)


def test_a_local_path_wins_over_a_name(tmp_path: Path) -> None:
    save_openai(tiny.checkpoint(), Path("tiny"))
    assert resolve("tiny") == Path("tiny")
    assert load_checkpoint("tiny").dims == tiny.dims()


def test_a_folder_that_is_called_like_a_model_and_holds_none_is_not_meant() -> None:
    Path("nano").mkdir()
    (Path("nano") / "talk.wav").write_bytes(b"")
    assert resolve("nano") == NANO_ASSET
    assert resolve("./nano") == resolve(Path("nano")) == Path("nano")


@pytest.mark.parametrize("name", ["base", "distil-large-v3", "someone/whisper-of-theirs"])
def test_without_a_network_every_other_way_is_named(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    message = str(caught.value)
    assert "\n" not in message
    for way in (name, "not in the cache", "the hub cannot be reached", "package index", "--model PATH"):
        assert way in message
    assert "--model nano is bundled for a trial" in message
    assert not list(Path().parent.glob("cache/models/*/*"))


def test_an_unknown_name_lists_close_ones() -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean large-v3-turbo") as caught:
        resolve("large-v3-trubo")
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelNotFoundError, match="expected one of nano, tiny"):
        resolve("xyzzy")


@pytest.mark.parametrize("name", ["./none.pt", "none.bin", "/a/b/c", "a/b/c", "~/none"])
def test_a_path_that_is_not_there_is_not_looked_up(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        resolve(name)


def test_names_mean_their_repositories_and_folder_and_revision_reach_the_hub(
    hub: Downloads, tmp_path: Path
) -> None:
    hub.files = ["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5"]
    for name in ("turbo", "tiny.en", "distil-small.en", "someone/theirs"):
        assert resolve(name) == hub.folder
    resolve("base", Sources(model_dir=tmp_path / "mine", revision="refs/pr/1"))
    assert hub.asked == [
        ("openai/whisper-large-v3-turbo", None, None),
        ("openai/whisper-tiny.en", None, None),
        ("distil-whisper/distil-small.en", None, None),
        ("someone/theirs", None, None),
        ("openai/whisper-base", tmp_path / "mine", "refs/pr/1"),
    ]
    assert hub.taken() == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("there", "left_out"),
    [
        (
            ["config.json", "pytorch_model.bin", "model.fp32-00001-of-00002.safetensors"],
            "model.fp32-00001-of-00002.safetensors",
        ),
        (["README.md", "config.json", "model.bin", "tokenizer.json", "vocabulary.txt"], "README.md"),
        (["config.json", "model.bin", "preprocessor_config.json", "tokenizer.json", "vocabulary.json"], None),
    ],
)
def test_one_set_of_weights_is_fetched(there: list[str], left_out: str | None, hub: Downloads) -> None:
    hub.files = there
    assert resolve("someone/theirs") == hub.folder
    assert hub.taken() == [name for name in there if name != left_out]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("a/b", HFValidationError(), r"^a/b: the hub has no repository a/b$"),
        ("base", HFValidationError(), "the hub has no repository openai/whisper-base; the package"),
        ("a/b", None, r"a/b has no config\.json with safetensors"),
        ("small", RuntimeError("lost\nin the middle"), r"the hub cannot be reached \(RuntimeError\)"),
        (
            "small",
            OSError(28, "No space left on device", "/cache/blob"),
            r"small: cannot be written .*No space left on device: /cache",
        ),
    ],
)
def test_each_answer_of_the_hub_that_is_no_model_is_one_line(
    name: str, error: Exception | None, message: str, hub: Downloads
) -> None:
    hub.error, hub.files = error, ["config.json"]
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)


def test_a_filled_cache_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    monkeypatch.setattr(sources, "is_reachable", None)
    folder = snapshot(tmp_path / "hub", "openai/whisper-base", ["config.json", "model.safetensors"])
    assert resolve("base") == folder
    assert resolve("base", Sources(revision="0123abcd")) == folder
    assert cached("base") == folder
    assert cached("small") is None
    theirs = snapshot(tmp_path / "mine", "a/b", ["config.json", "model.bin", "vocabulary.txt"], "v2")
    assert resolve("a/b", Sources(model_dir=tmp_path / "mine", revision="v2", local_only=True)) == theirs


def test_half_a_snapshot_is_not_taken_for_a_model(tmp_path: Path) -> None:
    snapshot(tmp_path / "hub", "a/b", ["config.json", "pytorch_model.bin.index.json"])
    snapshot(tmp_path / "hub", "a/c", ["config.json", "model.bin"])
    sharded = snapshot(tmp_path / "hub", "a/d", ["config.json", "model-00001-of-00002.safetensors"])
    index = {"weight_map": {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [cached(name) for name in ("a/b", "a/c", "a/d")] == [None, None, None]
    (sharded / "model-00002-of-00002.safetensors").touch()
    assert cached("a/d") == sharded


def test_local_only_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "is_reachable", None)
    with pytest.raises(
        ModelNotFoundError, match=r"base: not in .*hub or .*cache/models, and nothing is fetched"
    ):
        resolve("base", Sources(local_only=True))
    with pytest.raises(ModelNotFoundError, match=r"a/b: not in .*mine, and nothing is fetched"):
        resolve("a/b", Sources(local_only=True, model_dir=tmp_path / "mine"))


def test_a_models_folder_may_hold_a_persons_own(tmp_path: Path) -> None:
    (tmp_path / "mine" / "small").mkdir(parents=True)
    (tmp_path / "mine" / "medium.pt").touch()
    sources = Sources(model_dir=tmp_path / "mine", local_only=True)
    assert resolve("small", sources) == tmp_path / "mine" / "small"
    assert resolve("medium", sources) == tmp_path / "mine" / "medium.pt"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nano", {"revision": "v1"}, "revision 'v1' given, but nano is on this machine"),
        ("file.pt", {"only": "index"}, r"source 'index' given, but .*file\.pt is on this machine"),
        ("base", {"only": "mirror"}, "source 'mirror' given, expected 'hub' or 'index'"),
        ("base", {"only": "index", "revision": "v1"}, "the package index has none"),
    ],
)
def test_sources_that_a_model_does_not_have_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    Path("file.pt").touch()
    with pytest.raises(OptionError, match=message):
        resolve(name, Sources(**options))


def test_a_hub_that_never_answers_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(sources, "CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        began = time.monotonic()
        assert not sources.is_reachable()
        assert not sources.is_reachable()
        assert time.monotonic() - began < 5
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"{address}/closed")
    assert not sources.is_reachable()


@pytest.mark.parametrize(("source", "is_reachable"), [(None, False), ("index", True)])
def test_the_kind_of_a_network_is_asked_of_a_hub_that_answers_and_is_allowed(
    source: Source | None, is_reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, _: str, *, local_files_only: bool = False) -> None:
        assert local_files_only, name
        raise LocalEntryNotFoundError("not in the cache")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr(sources, "is_reachable", lambda: is_reachable)
    with pytest.raises(ModelNotFoundError, match="org/nosuch: not in the cache"):
        load_model("org/nosuch", source=source)


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="model: expected a name or a path, got 3"):
        load_model(3)  # type: ignore[arg-type]


def test_a_hub_that_was_silent_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    downloads = Downloads(tmp_path)
    downloads.files = ["config.json", "model.safetensors"]
    monkeypatch.setattr("huggingface_hub.snapshot_download", downloads)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(ModelNotFoundError, match="the hub cannot be reached"):
        resolve("small")
    with HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler) as answering:
        threading.Thread(target=answering.handle_request).start()
        assert resolve("small") == tmp_path


def test_a_fetched_model_goes_by_the_name_it_was_asked_for(hub: Downloads) -> None:
    """In the hub's cache its folder is named after a commit."""
    save_huggingface(tiny.checkpoint(), hub.folder)
    assert load_checkpoint("someone/theirs").name == "someone/theirs"
    assert load_checkpoint(hub.folder).name == hub.folder.name


def sizes(n_layer: int, n_head: int, n_vocab: int) -> ModelDims:
    return tiny.dims(n_text_layer=n_layer, n_text_head=n_head, n_vocab=n_vocab)


@pytest.mark.parametrize("size", HEADS)
def test_a_renamed_model_has_the_heads_of_its_dimensions(size: tuple[int, int, int]) -> None:
    for name in ("mine", "ggml-model-q5_0", "tiny.en"):
        assert published_heads(name, sizes(*size)) == HEADS[size]


@pytest.mark.parametrize(
    "name", ["large-v1", "openai/whisper-large", "Systran/faster-whisper-large-v1", "ggml-large-v1-q5_0"]
)
def test_the_name_decides_between_models_of_the_same_dimensions(name: str) -> None:
    assert published_heads(name, sizes(32, 20, 51865)) == LARGE_V1
    assert published_heads(name, sizes(32, 20, 51866)) == HEADS[32, 20, 51866]


@pytest.mark.parametrize(
    "dims",
    [sizes(2, 20, 51866), sizes(4, 12, 51864), sizes(2, 16, 51864), sizes(4, 6, 51866), sizes(4, 6, 300)],
    ids=["distil-large-v3", "distil-small.en", "distil-medium.en", "tiny with 100 languages", "a toy"],
)
def test_heads_of_other_dimensions_are_unknown(dims: ModelDims) -> None:
    assert published_heads("tiny", dims) is None


def test_a_renamed_file_has_its_models_heads(tmp_path: Path) -> None:
    small = {"n_text_state": 24, "n_audio_state": 24, "n_audio_head": 6}
    weights = tiny.checkpoint(tiny.dims(n_text_layer=4, n_text_head=6, n_vocab=51865, **small))
    save_openai(weights, tmp_path / "my model.pt")
    assert load_checkpoint(tmp_path / "my model.pt").alignment_heads == HEADS[4, 6, 51865]
    save_huggingface(weights, tmp_path / "whisper-tiny")
    assert load_checkpoint(tmp_path / "whisper-tiny").alignment_heads == weights.alignment_heads


@pytest.mark.reference
def test_heads_equal_openai_whispers(reference: Reference) -> None:
    def compute() -> dict[str, str]:
        whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
        return {name: mask.decode() for name, mask in whisper._ALIGNMENT_HEADS.items()}

    sizes_of = {"tiny": (4, 6), "base": (6, 8), "small": (12, 12), "medium": (24, 16), "large": (32, 20)}
    for name, mask in reference(compute).items():
        kind = name.partition("-")[0].removesuffix(".en")
        n_layer, n_head = (4, 20) if name.endswith("turbo") else sizes_of[kind]
        has_100_languages = kind in ("large", "turbo") and name not in ("large-v1", "large-v2")
        n_vocab = 51864 if name.endswith(".en") else 51865 + has_100_languages
        heads = published_heads(name, sizes(n_layer, n_head, n_vocab))
        assert heads is not None
        flat = np.frombuffer(gzip.decompress(base64.b85decode(mask)), dtype=bool)
        assert [tuple(pair) for pair in np.argwhere(flat.reshape(n_layer, n_head))] == list(heads), name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("small.pt", "pt"),
        ("SMALL.PT", "pt"),
        ("ggml-small.bin", "ggml"),
        ("ggml-small.en.bin", "ggml"),
        ("small.ggml", "ggml"),
        ("small-hf", "hf"),
        ("small.en", "hf"),
        ("large-v3.5", "hf"),
        ("v3.0-turbo", "hf"),
        ("models/.hidden", "hf"),
        ("some.folder/small", "hf"),
    ],
)
def test_names_say_what_is_written(name: str, kind: str) -> None:
    assert kind in WRITTEN
    assert format_by_name(Path(name)).name == kind


@pytest.mark.parametrize("name", ["x.gguf", "x.onnx", "x.safetensors", "small.en.nemo", "x.mlmodelc"])
def test_an_ending_of_another_format_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"expected a name that ends in \.pt"):
        format_by_name(Path(name))
    for other in (name, "base.q5_0.pt"):
        with pytest.raises(OptionError, match=r"expected a name that ends in \.bin \(ggml\), got '\."):
            require_suffix(Path(other), BY_NAME["ggml"])


@pytest.mark.parametrize(
    ("name", "ending"),
    [("ggml-base.bin", ".bin"), ("base.ggml", ".ggml"), ("base-q5", ""), ("base.q5_0", ""), ("base.en", "")],
)
def test_quantised_files_have_names_of_ggml(name: str, ending: str) -> None:
    require_suffix(Path(name), BY_NAME["ggml"])
    assert ending_of(Path(name)) == ending


SCRIPT = """
import sys, sottovoce
sottovoce.load_model("nano", device="cpu")
print([name for name in ("torch._dynamo", "sympy", "huggingface_hub") if name in sys.modules])
"""


def test_a_model_loads_without_the_compiler_and_without_the_hub() -> None:
    """PyTorch's compiler alone takes longer to import than `base` to read."""
    shown = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_a_models_folder_is_looked_in(tmp_path: Path) -> None:
    save_openai(tiny.checkpoint(tiny.dims(n_vocab=51865)), tmp_path / "small.pt")
    assert load_model("small", device="cpu", model_dir=str(tmp_path)).name == "small"
    with pytest.raises(OptionError, match="the package index has none"):
        load_model("base", revision="v1", source="index")


LARGE = ModelDims(128, 1500, 1280, 20, 32, 51866, 448, 1280, 20, 32)


def test_a_name_promises_a_size() -> None:
    sizes = [expected_bytes(name) for name in ("nano", "tiny.en", "base", "small", "medium", "large-v3")]
    assert sizes == sorted(sizes)
    assert expected_bytes("large-v3-turbo") < expected_bytes("large-v3")
    assert expected_bytes("mine") == 0


@pytest.mark.parametrize(
    ("dims", "n_millions"),
    [
        (ModelDims(80, 1500, 384, 6, 4, 51864, 448, 384, 6, 4), 39),
        (ModelDims(80, 1500, 512, 8, 6, 51865, 448, 512, 8, 6), 74),
        (LARGE, 1550),
        (replace(LARGE, n_text_layer=4), 809),
    ],
)
def test_the_size_of_a_network_is_that_of_its_model_card(dims: ModelDims, n_millions: int) -> None:
    assert n_parameters(dims) == pytest.approx(n_millions * 1e6, rel=0.05 if n_millions < 100 else 0.01)


def test_a_name_promises_languages_and_nano_keeps_both_promises() -> None:
    nano = load_model("nano", device="cpu")
    assert expected_bytes("nano") == pytest.approx(4 * n_parameters(nano.backend.dims), rel=0.01)
    assert expected_languages("nano") == compact_languages() == nano.languages
    assert expected_languages("distil-small.en") == expected_languages("ggml-tiny.en-q5_1.bin") == ("en",)
    assert "yue" in expected_languages("large-v3-turbo")
    assert "yue" not in expected_languages("large-v2")
