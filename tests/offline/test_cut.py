from __future__ import annotations

import pytest

from sottovoce.offline.segments import WindowCut, cut_window
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Word

TOKENIZER = Tokenizer.for_model(51865, language="en")
A, B, C = 1000, 2000, 3000


def at(seconds: float) -> int:
    return TOKENIZER.timestamp(seconds)


def times(
    tokens: list[int], *, n_frames: int = 3000, keep_open: bool = False
) -> tuple[list[tuple[float, float]], int, bool]:
    """Spans in a window that begins at 10 s, the frames of it that are done with, and how it ends."""
    cut = cut_window(tokens, TOKENIZER, seek=1000, n_frames=n_frames, keep_open=keep_open)
    return [(one.start, one.end) for one in cut.segments], cut.seek - 1000, cut.ends_closed


def test_pairs_cut_and_the_open_rest_is_left_to_the_next_window() -> None:
    tokens = [at(0), A, at(2), at(2.5), B, at(4), at(4), C]
    assert times(tokens) == ([(10.0, 12.0), (12.5, 14.0)], 400, False)


def test_a_single_last_timestamp_ends_the_window() -> None:
    assert times([at(0), A, at(2), at(2.5), B, at(4)]) == ([(10.0, 12.0), (12.5, 14.0)], 3000, True)


def test_without_a_pair_the_window_is_one_segment() -> None:
    assert times([at(0), A, at(3)]) == ([(10.0, 13.0)], 3000, True)
    assert times([at(0), A, B]) == ([(10.0, 40.0)], 3000, False)
    assert times([A, B]) == ([(10.0, 40.0)], 3000, False)
    assert times([]) == ([(10.0, 40.0)], 3000, False)


def test_the_open_rest_is_kept_where_no_window_follows() -> None:
    tokens = [at(0), A, at(2), at(3), C]
    assert times(tokens, keep_open=True) == ([(10.0, 12.0), (13.0, 40.0)], 3000, False)
    kept = cut_window(tokens, TOKENIZER, seek=0, n_frames=3000, keep_open=True).segments
    assert [token for one in kept for token in one.tokens] == tokens


def test_audio_of_which_nothing_was_said_is_left_to_a_next_window_always() -> None:
    tokens = [at(0), A, at(2), at(2)]
    assert times(tokens, keep_open=True) == times(tokens) == ([(10.0, 12.0)], 200, False)


def test_no_token_is_lost_or_doubled() -> None:
    tokens = [at(0), A, at(2), at(2), B, at(4), at(4), C, at(5)]
    cut = cut_window(tokens, TOKENIZER, seek=0, n_frames=3000)
    assert [token for one in cut.segments for token in one.tokens] == tokens
    assert cut.text_tokens(TOKENIZER.eot) == (A, B, C)


@pytest.mark.parametrize("keep_open", [False, True])
def test_nothing_lies_behind_the_end_of_the_audio(keep_open: bool) -> None:
    tokens = [at(0), A, at(2), at(2), B, at(29), at(29), C, at(30)]
    assert times(tokens, n_frames=600, keep_open=keep_open) == ([(10.0, 12.0), (12.0, 16.0)], 600, True)
    tokens = [at(0), A, at(2), at(7), B, at(9), at(9), C]
    assert times(tokens, n_frames=600, keep_open=keep_open) == ([(10.0, 12.0)], 600, False)
    assert times([at(0), A, at(9)], n_frames=600, keep_open=keep_open) == ([(10.0, 16.0)], 600, True)


def test_speech_ends_with_the_last_word() -> None:
    def of(*segments: Segment) -> float | None:
        return WindowCut(segments, 0).end_of_speech

    assert of() is None
    assert of(Segment(0, 0, 3, "", "en")) == 3
    said = Segment(0, 0, 3, "", "en", words=(Word("a", 0.0, 1.5, 0.9),))
    assert of(said, Segment(0, 3, 9, "", "en", words=())) == 1.5
