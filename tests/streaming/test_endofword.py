"""The end-of-word detector: a part of a word each frame, and an end where the sum is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sottovoce.errors import CheckpointError
from sottovoce.streaming.endofword import EndOfWord, ends_word
from sottovoce.types import EncoderOutput


def parts(*ends: int, n_frames: int) -> torch.Tensor:
    """A peak of 0.9 at each end, a little elsewhere, one word's worth each."""
    values = torch.full((n_frames,), 1e-4)
    values[list(ends)] = 1.0
    return values


def test_a_word_that_ends_with_the_audio_fires() -> None:
    assert ends_word(parts(10, 38, n_frames=40))


def test_a_word_that_ended_before_does_not() -> None:
    assert not ends_word(parts(10, 20, n_frames=40))


def test_the_peak_of_the_cut_itself_is_left_out() -> None:
    assert not ends_word(parts(10, 39, n_frames=40))


def test_nothing_said_ends_nothing() -> None:
    assert not ends_word(torch.full((40,), 1e-4))


def test_only_content_is_looked_at() -> None:
    states = torch.zeros(1, 60, 1)
    states[0, [10, 38], 0] = 20.0
    detector = EndOfWord(torch.ones(1, 1), torch.tensor([-10.0]))
    assert detector.fires(EncoderOutput(states, (40,)))
    assert not detector.fires(EncoderOutput(states, (60,)))
    assert not detector.fires(EncoderOutput(states, (2,)))


@pytest.mark.shared
def test_published_weights_are_read(shared_dir: Path) -> None:
    detector = EndOfWord.load(shared_dir / "fixtures" / "cif-base.pt", 512)
    assert tuple(detector.weight.shape) == (1, 512)
    with pytest.raises(CheckpointError, match=r"\(1, 768\)"):
        EndOfWord.load(shared_dir / "fixtures" / "cif-base.pt", 768)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"weights\.pt"):
        EndOfWord.load(path, 512)
