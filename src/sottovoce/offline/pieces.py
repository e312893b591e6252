"""Speech in pieces that are in one language each, as a rule: cut at pauses, and long ones at quiet moments.

Not known here: models and languages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.vad import SpeechFinder
from sottovoce.offline.cut import MEL_FRAMES_PER_SECOND
from sottovoce.offline.packing import Piece
from sottovoce.options.vad import VadOptions
from sottovoce.types import HOP_SAMPLES

PIECE_VAD = VadOptions(
    min_silence_ms=100.0, speech_pad_ms=50.0, max_speech_s=8.0, min_silence_at_max_speech_ms=60.0
)
"""Pieces end at short pauses, so that each is in one language."""
LONGEST_S, LEAST_S = 3.0, 1.2
"""Where nobody pauses, or noise fills the pauses, a piece may hold two languages: a longer one is cut at its
quietest moments into pieces of about so many seconds, of which the language can still be told."""
AROUND_S, BESIDE_S, MOST_MOMENTS = 1.5, 0.5, 6
"""Where two pieces were cut apart and their languages differ, so many quiet moments within so many seconds
may be the border; so much of both pieces is left on its sides."""
SMOOTH_FRAMES = 5
"""Loudness is averaged over so many frames of 10 ms: the quietest moment is a short pause, not one frame."""


def speech_pieces(features: RecordingFeatures, speech: SpeechFinder, start: int, end: int) -> list[Piece]:
    """List the pieces of speech in frames [start, end) of a recording, cut to them; 10 ms at least, no pause
    between those that were cut apart.
    """
    return [part for piece in pieces_between(speech, start, end) for part in _in_parts(features, piece)]


def pieces_between(speech: SpeechFinder, start: int, end: int) -> list[Piece]:
    """List the speech between pauses in frames [start, end) of a recording, cut to them; 10 ms at least."""
    found = speech.segments(start * HOP_SAMPLES, end * HOP_SAMPLES)
    frames = [Piece(one.start_sample // HOP_SAMPLES, -(-one.end_sample // HOP_SAMPLES)) for one in found]
    return [Piece(one.start, min(one.end, end)) for one in frames if min(one.end, end) > one.start]


def quietest_moment(features: RecordingFeatures, before: Piece, after: Piece) -> int:
    """Find the frame where a language ends in the pause between two pieces."""
    loudness = _loudness(features, before.end, after.start)
    middle = (len(loudness) - 1) / 2
    return before.end + int((loudness + 1e-6 * np.abs(np.arange(len(loudness)) - middle)).argmin())


def quiet_moments(features: RecordingFeatures, before: Piece, after: Piece) -> list[int]:
    """List the frames where a language may end in two pieces without a pause between, quietest first.

    The place where they were cut apart is the first, the others are quieter than what is beside them.
    """
    start, end = before.start + _frames(BESIDE_S), after.end - _frames(BESIDE_S)
    start, end = max(start, after.start - _frames(AROUND_S)), min(end, after.start + _frames(AROUND_S))
    if end - start < SMOOTH_FRAMES:
        return [after.start]
    loudness = _loudness(features, start, end)
    is_dip = (loudness[1:-1] <= loudness[:-2]) & (loudness[1:-1] < loudness[2:])
    dips = start + 1 + np.flatnonzero(is_dip)
    far = [int(dip) for dip in dips if abs(dip - after.start) >= SMOOTH_FRAMES]
    return [after.start, *sorted(far, key=lambda frame: loudness[frame - start])[: MOST_MOMENTS - 1]]


def _in_parts(features: RecordingFeatures, piece: Piece) -> Iterator[Piece]:
    """Cut a long piece at quiet moments, front to back: where it is cut hangs on what lies before alone."""
    longest, least = _frames(LONGEST_S), _frames(LEAST_S)
    if piece.n_frames <= longest:
        yield piece
        return
    loudness = _loudness(features, piece.start, piece.end)
    at = 0
    while len(loudness) - at > longest:
        last = min(at + longest, len(loudness) - least)
        cut = at + least + int(loudness[at + least : last].argmin())
        yield Piece(piece.start + at, piece.start + cut)
        at = cut
    yield Piece(piece.start + at, piece.end)


def _loudness(features: RecordingFeatures, start: int, end: int) -> npt.NDArray[np.float64]:
    """Return the mean log-mel of frames [start, end), smoothed: (n,)."""
    means = features.log_mel(start, end).float().mean(dim=0)  # over mel bands
    loudness: npt.NDArray[np.float64] = means.cpu().double().numpy()
    if len(loudness) <= SMOOTH_FRAMES:
        return loudness
    padded = np.pad(loudness, SMOOTH_FRAMES // 2, mode="edge")
    return np.convolve(padded, np.ones(SMOOTH_FRAMES) / SMOOTH_FRAMES, mode="valid")


def _frames(seconds: float) -> int:
    return round(seconds * MEL_FRAMES_PER_SECOND)
