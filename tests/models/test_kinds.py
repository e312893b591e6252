"""Which format the name of a model file asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.kinds import KINDS, ending_of, kind_by_name, require_ggml_name


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
    assert kind in KINDS
    assert kind_by_name(Path(name)) == kind


@pytest.mark.parametrize("name", ["x.gguf", "x.onnx", "x.safetensors", "small.en.nemo", "x.mlmodelc"])
def test_an_ending_of_another_format_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"expected a name that ends in \.pt"):
        kind_by_name(Path(name))
    with pytest.raises(OptionError, match=r"expected a name that ends in \.bin"):
        require_ggml_name(Path(name))


@pytest.mark.parametrize(
    ("name", "ending"),
    [("ggml-base.bin", ".bin"), ("base.ggml", ".ggml"), ("base-q5", ""), ("base.q5_0", ""), ("base.en", "")],
)
def test_quantised_files_have_names_of_ggml(name: str, ending: str) -> None:
    require_ggml_name(Path(name))
    assert ending_of(Path(name)) == ending
    with pytest.raises(OptionError, match=r"expected a name that ends in \.bin \(ggml\), got '\.pt'"):
        require_ggml_name(Path(f"{name}.pt"))
