"""The part of a text that comes after what a session has committed."""

from __future__ import annotations

import pytest

from benchmarks.live.closing import rest


@pytest.mark.parametrize(
    ("committed", "text", "after"),
    [
        ("", "She is a genius.", " She is a genius."),
        (" She is", "She is a genius.", " a genius."),
        (" she, is", "She is a genius.", " a genius."),
        (" He is", "She is a genius.", " a genius."),
        (" She is a genius.", "She is a genius.", ""),
    ],
)
def test_what_comes_after_the_committed_words(committed: str, text: str, after: str) -> None:
    assert rest(committed, text) == after
