from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from sottovoce.audio.vad import SpeechSegment
from sottovoce.offline.pieces import PackedWindow, Piece, pack_speech

WINDOW = 3000


def speech(*spans: tuple[float, float]) -> list[SpeechSegment]:
    return [SpeechSegment(round(start * 16000), round(end * 16000)) for start, end in spans]


def test_speech_fills_windows_in_order() -> None:
    first, second = pack_speech(speech((1, 11), (12, 30), (40, 45)), WINDOW)
    assert first.pieces == (Piece(100, 1100), Piece(1200, 3000))
    assert second.pieces == (Piece(4000, 4500),)


def test_long_speech_is_cut_at_the_window() -> None:
    assert [window.n_frames for window in pack_speech(speech((0, 70)), WINDOW)] == [3000, 3000, 1000]


def test_no_window_reaches_across_a_break() -> None:
    windows = pack_speech(speech((1, 3), (4, 6), (14, 16), (17, 19)), WINDOW, breaks=[1000])
    assert [window.pieces for window in windows] == [
        (Piece(100, 300), Piece(400, 600)),
        (Piece(1400, 1600), Piece(1700, 1900)),
    ]


def test_times_are_found_again_across_pauses() -> None:
    window = PackedWindow((Piece(100, 300), Piece(1000, 1100)))
    assert window.recording_s(0.5) == 1.5
    assert window.recording_s(2.0, is_end=True) == 3.0  # the first piece ends here
    assert window.recording_s(2.0) == 10.0  # and the second begins
    assert window.recording_s(2.5) == 10.5
    assert window.recording_s(9.0, is_end=True) == 11.0  # never beyond the speech


spans = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 8000)), max_size=12)


@given(spans)
def test_every_frame_of_speech_is_read_once(gaps: list[tuple[int, int]]) -> None:
    segments, now = [], 0
    for gap, length in gaps:
        segments.append(SpeechSegment((now + gap) * 160, (now + gap + length) * 160))
        now += gap + length
    windows = list(pack_speech(segments, WINDOW))
    read = [frame for w in windows for piece in w.pieces for frame in range(piece.start, piece.end)]
    expected = [f for s in segments for f in range(s.start_sample // 160, s.end_sample // 160)]
    assert read == expected
    assert all(0 < window.n_frames <= WINDOW for window in windows)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=6), st.data())
def test_later_in_the_window_is_later_in_the_recording(
    gaps: list[tuple[int, int]], data: st.DataObject
) -> None:
    pieces, now = [], 0
    for gap, length in gaps:
        pieces.append(Piece(now + gap, now + gap + length))
        now += gap + length
    window = PackedWindow(tuple(pieces))
    seconds = st.floats(0, window.n_frames / 100)
    early, late = sorted((data.draw(seconds), data.draw(seconds)))
    assert window.recording_s(early) <= window.recording_s(late)
    assert window.recording_s(early, is_end=True) <= window.recording_s(early)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=6), st.data())
def test_a_split_window_is_read_as_before(gaps: list[tuple[int, int]], data: st.DataObject) -> None:
    pieces, now = [], 0
    for gap, length in gaps:
        pieces.append(Piece(now + gap, now + gap + length))
        now += gap + length
    window = PackedWindow(tuple(pieces))
    assume(window.n_frames > 1)
    at = data.draw(st.integers(1, window.n_frames - 1))
    parts = window.split(at)

    def frames(part: PackedWindow) -> list[int]:
        return [frame for piece in part.pieces for frame in range(piece.start, piece.end)]

    assert parts[0].n_frames == at
    assert frames(parts[0]) + frames(parts[1]) == frames(window)
