"""How a window of growing audio is filled: what is computed, and what it counts for."""

from __future__ import annotations

import math

import pytest

from sottovoce.models.checkpoint.compact import read_compact
from sottovoce.models.dims import (
    BASE,
    DENSE,
    EXACT,
    NEAR_FRAMES,
    EncoderMode,
    Padding,
    default_encoder_mode,
)
from tests.models import tiny

N_FULL = 1500
ANCHORS = (3, 297, 312, 313, 1493, 1499)
THIN = EncoderMode(stride=30, anchors=ANCHORS)


@pytest.mark.parametrize(
    ("mode", "n_content", "n_padding"),
    [
        (EXACT, 1, 1499),
        (EXACT, 1500, 0),
        (EncoderMode(tail_s=5.0), 100, 250),
        (EncoderMode(tail_s=5.0), 1400, 100),
        (EncoderMode(tail_s=0.0), 77, 0),
        (EncoderMode(tail_s=5.0, bucket_s=1.0), 101, 49 + 250),
        (EncoderMode(tail_s=0.0, bucket_s=0.5), 100, 0),
    ],
)
def test_dense_padding_fills_the_window(mode: EncoderMode, n_content: int, n_padding: int) -> None:
    assert mode.padding(n_content, N_FULL) == Padding(n_padding)
    assert mode.padding(n_content, N_FULL).log_weights(n_content) is None


@pytest.mark.parametrize("n_content", [1, 100, 297, 1480, 1489, 1495, 1500])
@pytest.mark.parametrize(
    "mode", [THIN, EncoderMode(stride=7), EncoderMode(tail_s=3.0, stride=30, anchors=ANCHORS)]
)
def test_thin_padding_stands_for_all_of_it(mode: EncoderMode, n_content: int) -> None:
    padding = mode.padding(n_content, N_FULL)
    dense = EncoderMode(tail_s=mode.tail_s).padding(n_content, N_FULL)
    first = n_content + padding.n_near
    assert padding.n_near == min(NEAR_FRAMES, dense.n_near)
    assert padding.n_near + sum(padding.counts) == dense.n_near
    assert list(padding.places) == sorted(set(padding.places))
    assert all(first <= place < n_content + dense.n_near for place in padding.places)
    weights = padding.log_weights(n_content)
    if weights is not None:
        assert len(weights) == n_content + padding.n_frames
        assert sum(map(math.exp, weights)) == pytest.approx(n_content + dense.n_near)


def test_anchors_are_computed_and_stand_for_themselves() -> None:
    padding = THIN.padding(290, N_FULL)
    counted = dict(zip(padding.places, padding.counts, strict=True))
    assert {place: counted[place] for place in (312, 313, 1493, 1499)} == {312: 1, 313: 1, 1493: 1, 1499: 1}
    assert not counted.keys() & {310, 311, 314, 315, 1492, 1494}
    assert max(counted.values()) == 30


def test_a_model_bears_what_was_measured_of_it() -> None:
    """Anchors belong to one size; what nothing is known of gets dense padding, and nano none."""
    base = tiny.dims(n_audio_layer=6, n_audio_state=512, n_vocab=51865, n_audio_ctx=N_FULL)
    assert default_encoder_mode(base) is BASE
    assert BASE.anchors[-1] < N_FULL
    random = tiny.backend()
    assert (random.encoder_mode, random.tail_s) == (DENSE, 5.0)
    assert DENSE.tail_s == 5.0
    nano = tiny.backend(read_compact())
    assert nano.encoder_mode.padding(50, N_FULL).n_frames == 0
    assert nano.encoder_mode.tail_s == nano.tail_s == 0.0
