"""The end-of-word detector: a part of a word each frame, and an end where the sum is whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce.audio.vad import VadStream
from sottovoce.errors import CheckpointError
from sottovoce.streaming.session import Session, SessionOptions, Switching
from sottovoce.streaming.words import EndOfWord, ends_word
from sottovoce.types import EncoderOutput
from tests.backends.fake import FAKE_DIMS, FakeBackend, Script
from tests.streaming.sessions import ALIGNATT, TOKENIZER, listen, said_words
from tests.streaming.speech import TOKEN_OF, ToneDetector, hear, say, silence


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


PIECE = TOKENIZER.encode("child")[0]
"""Has no space before it: it goes on with the word before."""


def hear_pieces(mel: Tensor, row: int = 0) -> Script:
    """Tones, of which one is a piece of a word."""
    script = hear(mel, row)
    tokens = [replace(one, id=PIECE) if one.id == TOKEN_OF["child"] else one for one in script.tokens]
    return replace(script, tokens=tuple(tokens))


@pytest.mark.parametrize(("switching", "gap_s"), [("off", 0.1), ("restart", 0.1), ("parallel", 0.4)])
def test_every_mode_asks_the_detector(
    switching: Switching, gap_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a piece was refused, the word before it is let go if the detector says that it ends.

    In parallel mode speech is slow: words wait for the timeline, and what follows soon is read by then.
    """
    n_asked = 0
    fires = EndOfWord.fires

    def counted(self: EndOfWord, encoded: EncoderOutput) -> bool:
        nonlocal n_asked
        n_asked += 1
        return fires(self, encoded)

    monkeypatch.setattr(EndOfWord, "fires", counted)
    languages = ("en",) if switching == "off" else ("en", "de")
    options = SessionOptions(languages, switching=switching, stream=replace(ALIGNATT, chunk_s=0.1))
    audio = np.concatenate(
        [silence(0.5), say(["time", "child", "way", "day", "child", "man"] * 3, gap_s=gap_s), silence(1.0)]
    )
    said = {}
    for answer, bias in (("ends", 20.0), ("goes on", -20.0)):
        detector = EndOfWord(torch.zeros(1, FAKE_DIMS.n_audio_state), torch.tensor([bias]))
        live = Session(
            FakeBackend(hear_pieces),
            TOKENIZER,
            options,
            vad=VadStream(model=ToneDetector()),
            end_of_word=detector,
        )
        said[answer] = [word.word for word in said_words(listen(live, audio))]
        assert n_asked, f"nobody asked in {switching} mode"
        n_asked = 0
    assert "".join(said["ends"]) == "".join(said["goes on"])
    assert set(said["goes on"]) == {" timechild", " way", " daychild", " man"}
    assert " time" in said["ends"]


def test_a_file_of_something_else_is_refused_without_advice_to_run_it(tmp_path: Path) -> None:
    path = tmp_path / "notes.pt"
    path.write_text("And so, my fellow Americans")
    with pytest.raises(CheckpointError, match="expected end-of-word weights") as caught:
        EndOfWord.load(path, 512)
    assert "weights_only" not in str(caught.value)
    assert "\n" not in str(caught.value)
