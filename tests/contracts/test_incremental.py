"""What every backend keeps to where audio grows, whatever it keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.audio.mel import window_features
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, EncoderState, IncrementalResult, IncrementalWindow
from sottovoce.models.dims import EXACT, EncoderMode
from sottovoce.types import Features, Floats
from tests.contracts.subjects import NAMES, TOLERANCE, difference, noise, short_backend
from tests.runtime.fake import FakeBackend
from tests.runtime.reading import read

N_FULL = 60
"""Encoder frames of the full window here: 1.2 s."""
PADDED = EncoderMode(tail_s=0.2)
INCREMENTAL = EncoderMode(tail_s=0.2, recompute_s=0.16, refresh_s=0.2)
EVERYTHING = EncoderMode(tail_s=0.2, recompute_s=1.2, refresh_s=0.0)
THIN = EncoderMode(stride=3, recompute_s=0.16, refresh_s=0.2)


@pytest.fixture(scope="module", params=NAMES)
def backend(request: pytest.FixtureRequest) -> Backend:
    return short_backend(request.param, N_FULL)


def audio(backend: Backend, n_frames: int, seed: int = 0) -> Floats:
    """Log-mel of n_frames encoder frames whose loudest value stands at the very beginning."""
    mel = noise(backend.dims.n_mels, 2 * n_frames, seed=seed)
    mel[0, 0] = 6.0
    return mel


def grow(backend: Backend, mel: Floats, mode: EncoderMode, updates: Sequence[int]) -> list[IncrementalResult]:
    """The updates of one window, after these numbers of encoder frames."""
    state: EncoderState | None = None
    grown: list[IncrementalResult] = []
    for n_frames in updates:
        grown += backend.encode_incremental([IncrementalWindow(mel[:, : 2 * n_frames], mode, state)])
        state = grown[-1].state
    return grown


def logits(backend: Backend, grown: IncrementalResult) -> Floats:
    return read(backend, grown.encoded, [[5, 9, 30]]).logits


@pytest.mark.parametrize("n_columns", [2, 3, 47, 60, 120])
@pytest.mark.parametrize(
    "mode", [PADDED, EXACT, EncoderMode(tail_s=0.2, bucket_s=0.1), EncoderMode(tail_s=0.0)]
)
def test_a_window_computed_whole_is_what_encode_gives(
    backend: Backend, mode: EncoderMode, n_columns: int
) -> None:
    mel = audio(backend, N_FULL)[:, :n_columns]
    n_content = n_columns // 2
    n_frames = n_content + mode.padding(n_content, N_FULL).n_frames
    whole = backend.encode(window_features([mel], 2 * n_frames))
    (grown,) = backend.encode_incremental([IncrementalWindow(mel, mode)])
    assert difference(grown.encoded.states, whole.states) <= TOLERANCE
    assert grown.encoded.n_content_frames == (n_content,)
    assert grown.state.n_content_frames == n_content
    assert grown.n_computed == n_frames


def test_padding_up_to_the_full_window_is_exact(backend: Backend) -> None:
    mel = audio(backend, 25)
    exact, padded = backend.encode_incremental(
        [IncrementalWindow(mel, EXACT), IncrementalWindow(mel, EncoderMode(tail_s=30.0))]
    )
    assert difference(padded.encoded.states, exact.encoded.states) <= TOLERANCE


def test_everything_computed_anew_is_what_padding_gives(backend: Backend) -> None:
    mel = audio(backend, 40)
    for n_frames, grown in zip((10, 18, 40), grow(backend, mel, EVERYTHING, (10, 18, 40)), strict=True):
        (whole,) = backend.encode_incremental([IncrementalWindow(mel[:, : 2 * n_frames], PADDED)])
        assert difference(grown.encoded.states, whole.encoded.states) <= TOLERANCE
        assert difference(logits(backend, grown), logits(backend, whole)) <= TOLERANCE


@pytest.mark.parametrize("mode", [INCREMENTAL, THIN])
def test_a_batch_gives_what_single_windows_give(backend: Backend, mode: EncoderMode) -> None:
    """Of several lengths, with and without a state, at several ages of the padding."""
    mels = [audio(backend, N_FULL, seed) for seed in range(4)]
    histories = [(10, 14), (12, 16, 20), (), (11, 24)]
    states = [
        grow(backend, mel, mode, updates)[-1].state if updates else None
        for mel, updates in zip(mels, histories, strict=True)
    ]
    windows = [
        IncrementalWindow(mel[:, : 2 * n_frames], mode, state)
        for mel, n_frames, state in zip(mels, (18, 23, 15, 40), states, strict=True)
    ]
    together = backend.encode_incremental(windows)
    for window, grown in zip(windows, together, strict=True):
        (alone,) = backend.encode_incremental([window])
        assert grown.n_computed == alone.n_computed
        assert difference(grown.encoded.states, alone.encoded.states) <= TOLERANCE
        if not isinstance(backend, FakeBackend):  # whose rows are known by their place
            assert difference(logits(backend, grown), logits(backend, alone)) <= TOLERANCE


@pytest.mark.parametrize("n_content", [20, 31])
def test_windows_that_are_joined_read_as_alone(backend: Backend, n_content: int) -> None:
    """Of one length or several, with sparse padding and without weights, in any order and number."""
    (thin,) = backend.encode_incremental([IncrementalWindow(audio(backend, n_content), THIN)])
    (other,) = backend.encode_incremental([IncrementalWindow(audio(backend, 20), THIN)])
    n_frames = other.encoded.n_frames
    plain = backend.encode(Features(audio(backend, n_frames, 1)[None], (2 * n_frames,)))
    joined = thin.encoded.joined([plain])
    alone = [read(backend, item, [[5, 9, 30]]).logits for item in (thin.encoded, plain)]
    for order in ([0, 1], [1, 0], [1], [0, 0, 1]):
        result = read(backend, joined.rows(order), [[5, 9, 30]] * len(order)).logits
        assert difference(result, np.concatenate([alone[window] for window in order])) <= TOLERANCE


@pytest.mark.parametrize("mode", [INCREMENTAL, THIN])
def test_a_state_is_never_changed(backend: Backend, mode: EncoderMode) -> None:
    """Two ways on from one update do not notice each other."""
    mel, other = audio(backend, 40), audio(backend, 40, 1)
    other[:, :60] = mel[:, :60]
    forked = grow(backend, mel, mode, (20, 30))[-1].state
    first = backend.encode_incremental([IncrementalWindow(mel, mode, forked)])[0]
    states, said = first.encoded.states_on_host().copy(), logits(backend, first)
    backend.encode_incremental([IncrementalWindow(other, mode, forked)])
    again = backend.encode_incremental([IncrementalWindow(mel, mode, forked)])[0]
    assert np.array_equal(again.encoded.states_on_host(), states)
    assert np.array_equal(first.encoded.states_on_host(), states)
    assert np.array_equal(logits(backend, again), said)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (INCREMENTAL, [30, 8, 8, 18, 8]),  # 10 frames of padding at first, and after 0.2 s (10 frames)
        (replace(INCREMENTAL, between_s=0.08), [30, 5, 5, 18, 5]),  # fewer while the padding is kept
        (THIN, [40, 18, 18, 24, 18]),  # the 10 frames right behind the audio each time, single ones as above
    ],
)
def test_an_update_computes_the_newest_frames_and_now_and_then_the_padding(
    backend: Backend, mode: EncoderMode, expected: Sequence[int]
) -> None:
    updates = (20, 24, 28, 32, 36)
    assert [grown.n_computed for grown in grow(backend, audio(backend, 40), mode, updates)] == expected


def test_padding_is_computed_anew_where_the_audio_leaves_no_room_for_it(backend: Backend) -> None:
    mode = replace(THIN, refresh_s=2.0)
    counts = [grown.n_computed for grown in grow(backend, audio(backend, N_FULL), mode, (30, 40, 50, 55, 60))]
    assert counts == [47, 21, 21, 13, 8]


def test_kept_padding_that_the_audio_has_reached_is_left_out(backend: Backend) -> None:
    first, second = grow(backend, audio(backend, N_FULL), replace(THIN, refresh_s=2.0), (30, 40))
    assert first.encoded.n_frames == 30 + 10 + 7  # of each three frames of [40, 60) the middle one
    assert second.encoded.n_frames == 40 + 10 + 4  # those from 50 on


def test_audio_longer_than_what_is_recomputed_leaves_no_gap(backend: Backend) -> None:
    """The last frame kept is computed anew as well: it had seen the padding."""
    assert grow(backend, audio(backend, 40), INCREMENTAL, (10, 15, 40))[-1].n_computed == 40 - 14 + 10


def test_all_is_computed_anew_when_asked_for_or_when_nothing_else_will_do(backend: Backend) -> None:
    mel = audio(backend, 40)
    state = grow(backend, mel, INCREMENTAL, (20, 24))[-1].state

    def n_computed(log_mel: Floats, mode: EncoderMode, kept: EncoderState | None) -> int:
        return backend.encode_incremental([IncrementalWindow(log_mel, mode, kept)])[0].n_computed

    louder = mel.copy()
    louder[0, 51] = 6.6
    assert n_computed(mel[:, :52], INCREMENTAL, state) == 8
    assert n_computed(mel[:, :52], INCREMENTAL, None) == 36
    assert n_computed(mel[:, :52], PADDED, state) == 36
    assert n_computed(mel[:, :52], EXACT, state) == N_FULL
    assert n_computed(mel[:, :36], INCREMENTAL, state) == 18  # it ends earlier: in other padding
    assert n_computed(louder[:, :52], INCREMENTAL, state) == 36
    assert n_computed(louder[:, :52], replace(INCREMENTAL, level_drift=1.0), state) == 8


def test_another_padding_than_the_kept_one_is_computed(backend: Backend) -> None:
    mel = audio(backend, 40)
    exact = grow(backend, mel, EXACT, (20,))[-1].state
    (grown,) = backend.encode_incremental([IncrementalWindow(mel[:, :48], INCREMENTAL, exact)])
    assert grown.n_computed == 8 + 10
    assert grown.encoded.n_frames == 24 + 10


def test_thin_padding_counts_for_what_it_stands_for(backend: Backend) -> None:
    (grown,) = backend.encode_incremental([IncrementalWindow(audio(backend, 20), THIN)])
    weights = grown.encoded.log_weights
    assert weights.shape == (1, grown.encoded.n_frames)
    assert float(np.exp(np.asarray(weights)).sum()) == pytest.approx(N_FULL)
    assert not weights[:, :30].any()
    assert grown.n_computed == 20 + 10 + 10


def test_what_cannot_be_encoded_is_refused(backend: Backend) -> None:
    mel = audio(backend, N_FULL + 1)
    for windows, message in (
        ([], "at least one window"),
        ([IncrementalWindow(mel[:, :1], PADDED)], "1 log-mel frames given, expected 2 to 120"),
        ([IncrementalWindow(mel, PADDED)], "122 log-mel frames given, expected 2 to 120"),
        ([IncrementalWindow(mel[:3, :20], PADDED)], "3 mel bands given"),
        ([IncrementalWindow(mel[:, :20], PADDED, Foreign())], "a state of Foreign given"),
    ):
        with pytest.raises(OptionError, match=message):
            backend.encode_incremental(windows)


class Foreign:
    """A state of another backend."""

    n_content_frames = 10
