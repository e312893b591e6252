"""What names promise of models, before they are loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sottovoce.api import load_model
from sottovoce.models.checkpoint.compact import compact_languages
from sottovoce.models.dims import ModelDims
from sottovoce.models.load import expected_bytes, expected_languages, n_parameters

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
    nano = load_model("nano", device="cpu", dtype="float32")
    assert expected_bytes("nano") == pytest.approx(4 * n_parameters(nano.backend.dims), rel=0.01)
    assert expected_languages("nano") == compact_languages() == nano.languages
    assert expected_languages("distil-small.en") == expected_languages("ggml-tiny.en-q5_1.bin") == ("en",)
    assert "yue" in expected_languages("large-v3-turbo")
    assert "yue" not in expected_languages("large-v2")
