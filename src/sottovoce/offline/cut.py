"""A window's transcript on its way to segments: cut at the timestamps that the model wrote.

Source of the rules: openai-whisper 20250625, transcribe.py. What the model writes behind the end of the audio
is cut off here; openai-whisper keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sottovoce.text.tokenizer import SECONDS_PER_TIMESTAMP, Tokenizer
from sottovoce.types import Segment

FRAMES_PER_TIMESTAMP = 2
"""Log-mel frames (10 ms) in a timestamp's step (20 ms)."""
MEL_FRAMES_PER_SECOND = 100


@dataclass(frozen=True, slots=True)
class WindowCut:
    """What a window holds, and where to go on.

    segments: tokens, text and times, later words; what the decoder knows of them comes last of all.
    seek: log-mel frame of the recording at which the next window begins.
    ends_closed: the last timestamp stands alone, so that nothing is said after it in this window.
    restarts: nothing was kept, because the window begins too early.
    """

    segments: tuple[Segment, ...]
    seek: int
    ends_closed: bool = False
    restarts: bool = False

    @property
    def end_of_speech(self) -> float | None:
        """End of the last word, of the last segment where no words are known; None without segments."""
        for segment in reversed(self.segments):
            if segment.words:
                return segment.words[-1].end
        return self.segments[-1].end if self.segments else None

    def text_tokens(self, eot: int) -> tuple[int, ...]:
        """Ids below `eot`: what is said in all segments, without timestamps."""
        return tuple(token for segment in self.segments for token in segment.tokens if token < eot)


def cut_window(
    tokens: Sequence[int], tokenizer: Tokenizer, *, seek: int, n_frames: int, keep_open: bool = False
) -> WindowCut:
    """Cut at pairs of timestamps; without a pair the window is one segment.

    tokenizer: with the language of the text. seek: log-mel frame of the recording where the window begins;
        n_frames: of audio in it. Segments end with the audio, those that begin after it are left out.
    keep_open: also keep text that follows the last pair, up to the end of the audio. Otherwise it is left
        to the next window, which begins there; as is, always, audio of which nothing was said after it.
    """
    cutter = _Cutter(tokenizer, seek / MEL_FRAMES_PER_SECOND, n_frames / MEL_FRAMES_PER_SECOND)
    is_time = [tokenizer.is_timestamp(token) for token in tokens]
    ends_closed = is_time[-2:] == [False, True]
    cuts = [at for at in range(1, len(tokens)) if is_time[at - 1] and is_time[at]]
    if not cuts:
        return WindowCut((cutter.whole_window(tokens),), seek + n_frames, ends_closed)
    bounds = [0, *cuts, len(tokens)] if ends_closed else [0, *cuts]
    closed = [
        cutter.segment(tokens[first:last], cutter.time(tokens[first]), cutter.time(tokens[last - 1]))
        for first, last in pairwise(bounds)
    ]
    rest = tokens[bounds[-1] :]
    done = n_frames
    if keep_open and not all(is_time[bounds[-1] :]):
        closed.append(cutter.segment(rest, cutter.time(rest[0]), cutter.length_s))
    elif not ends_closed:
        done = min(n_frames, (tokens[bounds[-1] - 1] - tokenizer.timestamp_begin) * FRAMES_PER_TIMESTAMP)
    inside = tuple(segment for segment in closed if segment is not None)
    return WindowCut(inside, seek + done, ends_closed)


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Makes segments of a window that begins at start_s of the recording and holds length_s of audio."""

    tokenizer: Tokenizer
    start_s: float
    length_s: float

    def time(self, token: int) -> float:
        """Seconds of a timestamp; a window that begins with text (a prefix) begins at 0."""
        return max(0, token - self.tokenizer.timestamp_begin) * SECONDS_PER_TIMESTAMP

    def segment(self, tokens: Sequence[int], start: float, end: float) -> Segment | None:
        """From start to end in the window, at most to the end of the audio; None for what lies behind it."""
        if start >= self.length_s:
            return None
        return Segment(
            id=0,
            start=round(self.start_s + start, 3),
            end=round(self.start_s + min(max(start, end), self.length_s), 3),
            text=self.tokenizer.decode(tokens),
            language=self.tokenizer.language or "en",
            tokens=tuple(tokens),
        )

    def whole_window(self, tokens: Sequence[int]) -> Segment:
        """One segment up to the last timestamp, where there is one after 0, else to the window's end."""
        times = [token for token in tokens if self.tokenizer.is_timestamp(token)]
        timed = bool(times) and times[-1] != self.tokenizer.timestamp_begin
        whole = self.segment(tokens, 0.0, self.time(times[-1]) if timed else self.length_s)
        assert whole is not None, "a window holds audio"
        return whole
