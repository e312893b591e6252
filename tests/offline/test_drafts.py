from __future__ import annotations

from sottovoce.offline.drafts import Draft, cut_window, end_of_speech
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Word

TOKENIZER = Tokenizer.for_model(51865, language="en")
A, B, C = 1000, 2000, 3000


def at(seconds: float) -> int:
    return TOKENIZER.timestamp(seconds)


def times(tokens: list[int], **more: bool) -> tuple[list[tuple[float, float]], int, bool]:
    cut = cut_window(tokens, TOKENIZER, start_s=10.0, n_frames=3000, **more)
    return [(draft.start, draft.end) for draft in cut.drafts], cut.n_frames, cut.ends_closed


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
    kept = cut_window(tokens, TOKENIZER, start_s=0.0, n_frames=3000, keep_open=True).drafts
    assert [token for draft in kept for token in draft.tokens] == tokens


def test_no_token_is_lost_or_doubled() -> None:
    tokens = [at(0), A, at(2), at(2), B, at(4), at(4), C, at(5)]
    drafts = cut_window(tokens, TOKENIZER, start_s=0.0, n_frames=3000).drafts
    assert [token for draft in drafts for token in draft.tokens] == tokens


def test_speech_ends_with_the_last_word() -> None:
    assert end_of_speech([]) is None
    assert end_of_speech([Draft(0, 3, ())]) == 3
    said = Draft(0, 3, (), [Word("a", 0.0, 1.5, 0.9)])
    assert end_of_speech([said, Draft(3, 9, ())]) == 1.5
