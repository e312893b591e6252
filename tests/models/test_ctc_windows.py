"""Recordings through a CTC head: every frame once, from windows that fit with their padding."""

from __future__ import annotations

import pytest
import torch

from sottovoce.audio.mel import window_features
from sottovoce.models.checkpoint.base import CtcWeights
from sottovoce.models.ctc_head import CtcHead, ctc_windows, emissions_of_recording
from sottovoce.types import EncoderOutput, Features
from tests.models import tiny

WEIGHTS = CtcWeights(torch.randn(3, 32), torch.randn(3), ("-", "a", "b"), 0)


@pytest.mark.parametrize("n_frames", [0, 1, 999, 1000, 1001, 2345, 12_345])
def test_parts_follow_one_another_away_from_edges(n_frames: int) -> None:
    windows = list(ctc_windows(n_frames, 1000))
    assert [frame for w in windows for frame in range(w.first, w.last)] == list(range(n_frames))
    for window in windows:
        assert window.end - window.start <= 1000
        assert window.first - window.start >= 50 or window.start == 0
        assert window.end - window.last >= 50 or window.end == n_frames


def test_a_short_recording_is_one_window_with_its_padding() -> None:
    head = CtcHead(WEIGHTS, tiny.backend().encode)
    mel = torch.randn(80, 31)
    found = emissions_of_recording(head, mel, n_audio_ctx=40, n_tail_frames=10)
    expected = head.emissions(window_features([mel], 52)).log_probs[0, :16]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_long_recording_has_all_its_frames() -> None:
    seen: list[tuple[int, int]] = []

    def encode(features: Features) -> EncoderOutput:
        seen.append((features.mel.shape[2], features.n_content_frames[0]))
        return tiny.backend().encode(features)

    head = CtcHead(WEIGHTS, encode)
    found = emissions_of_recording(head, torch.randn(80, 151), n_audio_ctx=40, n_tail_frames=10)
    assert found.shape == (76, 3)
    assert max(content for _, content in seen) == 60
    assert all(n <= 80 and n - content >= 20 - 1 for n, content in seen)


def test_nothing_gives_nothing() -> None:
    head = CtcHead(WEIGHTS, tiny.backend().encode)
    assert emissions_of_recording(head, torch.zeros(80, 0), n_audio_ctx=40, n_tail_frames=0).shape == (0, 3)
