"""The self-test that finds the encoder mode of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.errors import OptionError
from sottovoce.evaluation import encoder_mode
from sottovoce.evaluation.encoder_mode import ReferencePiece, Trial, find_anchors, find_encoder_mode, measure
from sottovoce.models.backend import Backend
from sottovoce.models.dims import DENSE, EXACT, EncoderMode
from sottovoce.types import SAMPLE_RATE, Samples

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"


@pytest.fixture(scope="module")
def speech() -> Samples:
    return np.tile(load_audio(CLIP), 8)[: 25 * SAMPLE_RATE]


@pytest.fixture(scope="module")
def pieces(model: Model, speech: Samples) -> list[ReferencePiece]:
    return list(encoder_mode.speech_pieces(model.backend, model.tokenizer.with_language("en"), speech))


def piece(n_frames: int, low: Sequence[int]) -> ReferencePiece:
    norms = np.full(1500, 20.0, np.float32)
    norms[list(low)] = 5.0
    return ReferencePiece(
        np.zeros((80, 2 * n_frames), np.float32), norms, (1,), 1, np.zeros((1, 4), np.float32)
    )


def test_anchors_are_padding_of_low_norm_in_a_fifth_of_the_pieces() -> None:
    short, long = piece(100, [50, 105, 300, 700, 1490]), piece(500, [300, 1490, 1200])
    assert find_anchors([short, short, short, long]) == (300, 700, 1490)
    assert find_anchors([short, long, long]) == (1200, 1490), "300 and 700 are low padding of one piece"
    assert find_anchors([short] * 3 + [long] * 13) == (300, 1200, 1490), "700 in less than a fifth"


@pytest.mark.long
def test_the_full_window_is_its_own_measure(model: Model, pieces: list[ReferencePiece]) -> None:
    exact = measure(model.backend, pieces, EXACT)
    assert exact.mean == pytest.approx(0.0, abs=1e-5)
    n_frames = sum(piece.n_frames for piece in pieces)
    n_updates = sum(-(-piece.n_frames // 25) for piece in pieces)
    assert exact.work == pytest.approx(n_updates * model.backend.dims.n_audio_ctx / n_frames)
    whole, kept = (measure(model.backend, pieces, mode) for mode in (DENSE.whole(), DENSE))
    assert 0.0 < whole.mean <= whole.worst
    assert kept.work < whole.work < exact.work


@pytest.mark.long
def test_what_is_found_is_as_near_as_dense_padding(
    model: Model, speech: Samples, pieces: list[ReferencePiece]
) -> None:
    trial = find_encoder_mode(model.backend, model.tokenizer.with_language("en"), speech)
    assert measure(model.backend, pieces, trial.mode) == trial
    whole = measure(model.backend, pieces, DENSE.whole())
    if trial.mode != EXACT:
        assert trial.mean <= encoder_mode.TOLERANCE * whole.mean
        assert trial.worst < encoder_mode.LOOP
        assert trial.work <= whole.work
    else:
        assert whole.worst >= encoder_mode.LOOP


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("sparse", "dense", "whole", "chosen"),
    [
        ((0.02, 0.1), (0.03, 0.2), (0.03, 0.2), "sparse"),
        ((0.04, 0.2), (0.03, 0.2), (0.03, 0.2), "dense"),
        ((0.02, 0.3), (0.03, 0.2), (0.03, 0.2), "dense"),
        ((0.20, 1.2), (0.50, 3.0), (0.03, 0.2), "whole"),
        ((0.20, 1.2), (0.20, 1.1), (0.20, 1.1), "exact"),
    ],
)
def test_the_cheapest_mode_that_is_near_enough_is_kept(
    sparse: tuple[float, float],
    dense: tuple[float, float],
    whole: tuple[float, float],
    chosen: str,
    model: Model,
    speech: Samples,
    pieces: list[ReferencePiece],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(_: Backend, __: Sequence[ReferencePiece], mode: EncoderMode) -> Trial:
        named = {DENSE: dense, DENSE.whole(): whole, EXACT: (0.0, 0.0)}
        return Trial(mode, *named.get(mode, sparse), 1.0)

    monkeypatch.setattr(encoder_mode, "speech_pieces", lambda *_: iter(pieces))
    monkeypatch.setattr(encoder_mode, "measure", measured)
    mode = find_encoder_mode(model.backend, model.tokenizer.with_language("en"), speech).mode
    name = {DENSE: "dense", DENSE.whole(): "whole", EXACT: "exact"}.get(mode, "sparse")
    assert name == chosen
    assert name != "sparse" or (mode.stride, mode.recompute_s) == encoder_mode.SPARSE[0]


@pytest.mark.parametrize("seconds", [0.5, 20.0])
def test_too_little_speech_is_refused(seconds: float, model: Model, speech: Samples) -> None:
    samples = speech[: int(seconds * SAMPLE_RATE)]
    with pytest.raises(OptionError, match=rf"expected at least 24 s of speech, got {seconds} s of audio"):
        find_encoder_mode(model.backend, model.tokenizer.with_language("en"), samples)
