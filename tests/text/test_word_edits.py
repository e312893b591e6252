"""The pairing of equal words."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sottovoce.text.word_edits import equal_words

WORDS = st.lists(st.sampled_from("abcd"), max_size=12)


def longest_common(first: list[str], second: list[str]) -> int:
    rows = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, word in enumerate(first):
        for j, other in enumerate(second):
            rows[i + 1][j + 1] = rows[i][j] + 1 if word == other else max(rows[i][j + 1], rows[i + 1][j])
    return rows[-1][-1]


@given(WORDS, WORDS)
def test_pairs_are_equal_words_in_order_and_as_many_as_can_be(first: list[str], second: list[str]) -> None:
    pairs = equal_words(first, second)
    matches = [(i, j) for i, j in enumerate(pairs) if j is not None]
    assert len(pairs) == len(first)
    assert all(first[i] == second[j] for i, j in matches)
    assert all(a[1] < b[1] for a, b in itertools.pairwise(matches))
    assert len(matches) == longest_common(first, second)
