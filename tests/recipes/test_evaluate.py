"""The evaluation's measures, on audio whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.nano import homophones, measures
from recipes.nano.evaluate import table
from recipes.nano.measures import Recording


def tone(seconds: float) -> np.ndarray:
    return (0.1 * np.sin(np.arange(int(16_000 * seconds)) * 0.3)).astype(np.float32)


def test_noise_has_the_ratio_asked_for() -> None:
    clean = tone(2.0)
    noisy = measures.with_noise(clean, 10.0, np.random.default_rng(0))
    ratio = np.mean(clean.astype(float) ** 2) / np.mean((noisy - clean).astype(float) ** 2)
    assert 10 * np.log10(ratio) == pytest.approx(10.0, abs=0.1)


def test_the_middle_is_cut_and_a_short_clip_is_kept() -> None:
    samples = np.arange(16_000 * 4, dtype=np.float32)
    assert measures.middle(samples, 2.0)[0] == 16_000
    assert len(measures.middle(samples, 2.0)) == 32_000
    assert len(measures.middle(samples, 9.0)) == len(samples)


def test_joined_clips_lie_where_they_are_said_to() -> None:
    window, spans = measures.joined([Recording(tone(1.0), "en", "one"), Recording(tone(2.0), "en", "two")])
    assert window.text == "one two"
    assert spans == [(0.6, 1.6), (2.2, 4.2)]
    for start, end in spans:
        inside = window.samples[int(start * 16_000) : int(end * 16_000)]
        assert np.abs(inside).max() > 0.05
    assert np.abs(window.samples[: int(0.6 * 16_000)]).max() == 0


def test_padding_is_zero_or_silence_or_none() -> None:
    clips = [tone(1.0), tone(0.5)]
    zero, silent, short = (measures.features_of(clips, p).mel for p in ("zero", "silence", "none"))
    assert zero.shape == silent.shape == (2, 80, 3000)
    assert short.shape == (2, 80, 100)
    assert (zero[:, :, -1] == 0).all()
    assert (silent[:, :, -1] < -0.4).all()
    assert np.allclose(zero[0, :, :90], silent[0, :, :90], atol=1e-4)


def test_the_table_has_a_row_for_each_set_with_text() -> None:
    row = {
        "clips": 3,
        "error rate": [0.1, 0.05, 0.2],
        "ctc character error rate": [0.2, 0.1, 0.3],
        "language at 2 s": 1.0,
        "language at 2 s, 10 dB": 0.9,
    }
    lines = table({"en-x": row, "no speech": {}}).splitlines()
    assert len(lines) == 3
    assert "10.0 % (5.0–20.0)" in lines[2]


@pytest.mark.parametrize(
    ("language", "said", "written", "misheard"),
    [
        ("fr", "Quelques maisons, monsieur?", "quelque maison monsieur", "quelque raison monsieur"),
        ("es", "sé que hay", "se qué hay", "si que hay"),
        ("zh", "它一走。", "他一走", "他一周"),
    ],
)
def test_homophones_are_equal_by_sound(language: str, said: str, written: str, misheard: str) -> None:
    if not homophones.measurable(language):
        pytest.skip("espeak-ng is not installed")
    wanted, alike, other = homophones.by_sound(language, [said, written, misheard])
    assert wanted == alike
    assert wanted != other


def test_what_no_listener_can_tell_is_the_rarer_homophones() -> None:
    if not homophones.measurable("fr"):
        pytest.skip("espeak-ng is not installed")
    assert homophones.least_error_rate("fr", ["et ou et", "où maison"]) == pytest.approx(1 / 5)
    assert homophones.least_error_rate("fr", ["maison"]) == 0.0
