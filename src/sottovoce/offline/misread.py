"""Text in a wrong language, which is less probable than text in the right one.

Whisper translates what is said in another language than the one it was asked for, or spells it as that one.
What languages are heard by (`follow`) misses a sentence in minutes of another language; its text gives it
away. Such a segment is encoded by itself; where it is heard in another language, it is read in that one, and
the likelier text is kept. Not known here: how a stretch is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.decoding.decode import DecodingResult
from sottovoce.offline.cut import MEL_FRAMES_PER_SECOND
from sottovoce.offline.packing import Piece
from sottovoce.types import Segment

LEAST_S = 0.8
"""Seconds of speech in a segment whose language is asked."""
GAIN, FAR_GAIN, LEAST = 0.1, 0.3, -0.7
"""Mean log-probabilities of tokens, where the recording is in several languages: so much better the text in
another one must be, and the least that it may have."""
FIRST_NATS, FIRST_LEAST = 5.0, -0.4
"""Of a recording that counted as one in a single language, FIRST_NATS and FAR_GAIN are asked, and more of the
text: of development recordings in one language, many of which the model hardly knows, none became several."""


@dataclass(frozen=True, slots=True)
class LanguageHypothesis:
    """That segments of one window, one after the other, are in another language than their text.

    speech: their frames from the first word to the last. mean: log-probability of the tokens of their text.
    language: the other one. nats: log-likelihood ratio by which they are detected in it.
    """

    segments: tuple[Segment, ...]
    speech: Piece
    mean: float
    language: str
    nats: float

    def is_accepted_by(self, mean: float, *, is_first: bool) -> bool:
        """Tell whether a text of this mean log-probability in the other language is to be kept instead.

        is_first: the recording counted as one in a single language.
        """
        if is_first:
            return self.nats >= FIRST_NATS and mean >= max(FIRST_LEAST, self.mean + FAR_GAIN)
        return mean >= max(LEAST, self.mean + GAIN)


def joined(hypotheses: Sequence[LanguageHypothesis], segments: Sequence[Segment]) -> list[LanguageHypothesis]:
    """Join hypotheses of segments that follow each other, all of the same other language.

    hypotheses: of one segment each. segments: all of the window, in order.
    """
    found: list[LanguageHypothesis] = []
    for one in hypotheses:
        at = segments.index(one.segments[0])
        before = found[-1] if found else None
        if before and before.language == one.language and at and segments[at - 1] is before.segments[-1]:
            mean = float(
                np.average([before.mean, one.mean], weights=[before.speech.n_frames, one.speech.n_frames])
            )
            speech, nats = Piece(before.speech.start, one.speech.end), before.nats + one.nats
            one = LanguageHypothesis((*before.segments, *one.segments), speech, mean, one.language, nats)
            found.pop()
        found.append(one)
    return found


def speech_in(segment: Segment, speech: Sequence[Piece]) -> Piece | None:
    """Return the speech of a segment, from the first piece to the last; None where that is too short.

    speech: pieces of the recording.
    """
    start, end = round(segment.start * MEL_FRAMES_PER_SECOND), round(segment.end * MEL_FRAMES_PER_SECOND)
    inside = [Piece(max(start, one.start), min(end, one.end)) for one in speech]
    inside = [one for one in inside if one.n_frames > 0]
    is_long = sum(one.n_frames for one in inside) >= LEAST_S * MEL_FRAMES_PER_SECOND
    return Piece(inside[0].start, inside[-1].end) if is_long else None


def segment_means(result: DecodingResult, segments: Sequence[Segment], eot: int) -> list[float | None]:
    """Return the mean log-probability of the text of each segment; None where it has none.

    segments: as they were cut from `result`, in order; some may be missing.
    """
    tokens, logprobs = result.tokens, result.token_logprobs
    means: list[float | None] = []
    at = 0
    for segment in segments:
        n = len(segment.tokens)
        while at + n <= len(tokens) and tokens[at : at + n] != segment.tokens:
            at += 1
        own = [logprobs[i] for i in range(at, min(at + n, len(tokens))) if tokens[i] < eot]
        means.append(float(np.mean(own)) if own else None)
        at += n
    return means


def text_mean(result: DecodingResult, eot: int) -> float:
    """Return the mean log-probability of the tokens of a reading that are text; it has some."""
    pairs = zip(result.tokens, result.token_logprobs, strict=True)
    return float(np.mean([logprob for token, logprob in pairs if token < eot]))
