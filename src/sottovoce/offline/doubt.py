"""Text that does not fit the speech it stands for: such a window of speech is read again in halves.

Two things happen where a person says the same again and again. Whisper writes it once, over all of the time;
or it writes all of it, and what is meant against loops takes it for one. Halves hold fewer copies, so that
both end there, and a loop that the model made up begins anew. Knows windows and readings, no audio, no model.
"""

from __future__ import annotations

from sottovoce.decoding.decode import DecodingResult
from sottovoce.offline.cut import MEL_FRAMES_PER_SECOND, WindowCut
from sottovoce.offline.packing import PackedWindow
from sottovoce.options.fallback import FallbackOptions
from sottovoce.types import Segment

LONG_S, FEWEST_TOKENS_S = 6.0, 1.0
"""Speech so long has more tokens a second: people say three to five, and pauses are left out here."""
DOUBTFUL_LONG_S, DOUBTFUL_TOKENS_S = 2.0, 3.0
"""The same in the halves of such speech, where the same may have happened again; text ends no earlier."""


def may_be_halved(window: PackedWindow) -> bool:
    """Tell whether a window whose text repeats itself is long enough to be read in halves, cut at a pause."""
    return len(window.pieces) > 1 and window.n_frames >= LONG_S * MEL_FRAMES_PER_SECOND


def is_silent(window: PackedWindow, result: DecodingResult, fallback: FallbackOptions) -> bool:
    """Tell whether nobody speaks in a window, by its reading; a half of silence needs less to be that too."""
    limit = fallback.no_speech_threshold
    is_likely = limit is not None and result.no_speech_prob > limit
    return fallback.is_silence(result) or (window.may_be_silent and is_likely)


def halves_to_read(
    window: PackedWindow, result: DecodingResult, cut: WindowCut, fallback: FallbackOptions, eot: int
) -> tuple[PackedWindow, ...]:
    """Return what is read instead of a window; nothing where its text is kept.

    cut: its segments, in its own time. eot: the first of the tokens that are no text.
    """
    if len(window.pieces) == 1:
        return ()
    if may_be_halved(window) and fallback.repeats(result):
        return window.halves(may_be_silent=fallback.is_silence(result))
    return window.halves() if _leaves_out(window, cut, eot) else ()


def _leaves_out(window: PackedWindow, cut: WindowCut, eot: int) -> bool:
    """Whether the text of a window is too little for its speech."""
    if not window.is_doubtful:
        return any(is_too_little(segment, eot, LONG_S, FEWEST_TOKENS_S) for segment in cut.segments)
    end_s = window.n_frames / MEL_FRAMES_PER_SECOND
    stops_early = bool(cut.segments) and end_s - cut.segments[-1].end >= DOUBTFUL_LONG_S
    return stops_early or any(
        is_too_little(segment, eot, DOUBTFUL_LONG_S, DOUBTFUL_TOKENS_S) for segment in cut.segments
    )


def is_too_little(segment: Segment, eot: int, long_s: float, fewest_s: float) -> bool:
    """Tell whether speech as long as a segment, in its window's time, is said in more tokens than it has.

    long_s: seconds from which on that can be told. fewest_s: tokens a second.
    """
    length_s = segment.end - segment.start
    n_tokens = sum(token < eot for token in segment.tokens)
    return length_s >= long_s and 0 < n_tokens < fewest_s * length_s
