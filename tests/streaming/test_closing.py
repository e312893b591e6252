"""Where speech ends, what came since the last end is encoded anew, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.models.backend import IncrementalResult, IncrementalWindow
from sottovoce.models.dims import EXACT, EncoderMode
from sottovoce.types import FRAMES_PER_SECOND
from tests.runtime.fake import FakeBackend
from tests.streaming.sessions import ALIGNATT, listen, session, spoken, words_of
from tests.streaming.speech import hear, say, silence

MODE = EncoderMode(tail_s=1.0, recompute_s=1.5, refresh_s=0.0)


class Counting(FakeBackend):
    """Notes of every window how many frames of audio it held and how many were computed."""

    def __init__(self) -> None:
        super().__init__(hear)
        self.windows: list[tuple[EncoderMode, int, int]] = []

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        grown = super().encode_incremental(windows)
        for window, encoded in zip(windows, grown, strict=True):
            self.windows.append((window.mode, encoded.encoded.n_content_frames[0], encoded.n_computed))
        return grown


def closings(backend: Counting) -> list[tuple[int, int]]:
    """Frames of audio, and frames computed, of the windows at ends of speech."""
    return [(n_content, n_computed) for mode, n_content, n_computed in backend.windows if mode != MODE]


def test_of_a_long_utterance_only_the_newest_part_is_encoded_anew_at_a_pause() -> None:
    words = [spoken("en", 8, seed) for seed in range(4)]
    audio = np.concatenate([np.concatenate([say(some), silence(1.2)]) for some in words])
    backend = Counting()
    live = session(["en"], model=backend, switching="off", stream=replace(ALIGNATT, encoder=MODE))
    assert words_of(listen(live, audio)) == [word for some in words for word in some]
    ends = closings(backend)
    assert len(ends) == 4
    padding = round(MODE.tail_s * FRAMES_PER_SECOND) if MODE.tail_s else 0
    assert ends[0][1] == ends[0][0] + padding, "the first time everything"
    spoken_s = 8 * 0.4 + 1.2
    most = round((spoken_s + 1.5 + 0.5) * FRAMES_PER_SECOND) + padding
    for n_content, n_computed in ends[1:]:
        assert n_computed <= most < n_content + padding
    assert [n_content for n_content, _ in ends] == sorted(n_content for n_content, _ in ends)


@pytest.mark.parametrize("mode", [MODE.whole(), EXACT])
def test_a_mode_that_computes_everything_does_so_at_ends_too(mode: EncoderMode) -> None:
    audio = np.concatenate([say(spoken("en", 6)), silence(1.2), say(spoken("en", 6, 1)), silence(1.0)])
    backend = Counting()
    listen(session(["en"], model=backend, switching="off", stream=replace(ALIGNATT, encoder=mode)), audio)
    assert all(n_computed >= n_content for _, n_content, n_computed in backend.windows)
