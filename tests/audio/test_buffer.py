"""The buffer behaves as a slice of the whole stream, and refuses what is not audio."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.audio.samples import AudioBuffer
from sottovoce.errors import AudioError


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 60_000)), max_size=20))
def test_equals_a_slice_of_everything_pushed(steps: list[tuple[int, int]]) -> None:
    buffer = AudioBuffer()
    everything = np.zeros(0, np.float32)
    for n_new, n_dropped in steps:
        new = np.arange(len(everything), len(everything) + n_new, dtype=np.float32) / np.float32(2**20)
        everything = np.concatenate((everything, new))
        buffer.append(new)
        buffer.drop_before(buffer.start + n_dropped)
        assert buffer.end == len(everything)
        np.testing.assert_array_equal(buffer.view(), everything[buffer.start :])
        middle = (buffer.start + buffer.end) // 2
        np.testing.assert_array_equal(buffer.view(middle), everything[middle:])


def test_a_view_outlives_later_pushes_and_is_read_only() -> None:
    buffer = AudioBuffer()
    buffer.append(np.ones(10, np.float32))
    view = buffer.view(2, 5)
    for _ in range(5):
        buffer.drop_before(buffer.end)
        buffer.append(np.zeros(30_000, np.float32))
    assert view.tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 2.0


def test_memory_follows_what_is_held() -> None:
    buffer = AudioBuffer()
    second = np.zeros(16_000, np.float32)
    for _ in range(2_000):
        buffer.append(second)
        buffer.drop_before(buffer.end - 32_000)
    assert buffer.end == 2_000 * 16_000
    base = buffer.view().base
    assert base is not None
    assert len(base) <= 4 * 48_000


def test_bad_requests_are_refused() -> None:
    buffer = AudioBuffer()
    buffer.append(np.ones(10, np.float32))
    buffer.append(np.zeros(0, np.float32))
    buffer.drop_before(4)
    for start, end in ((3, 8), (5, 11), (8, 5)):
        with pytest.raises(AudioError, match=r"expected samples in \[4, 10\)"):
            buffer.view(start, end)
