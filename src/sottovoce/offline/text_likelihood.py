"""How likely the text of a stretch of speech is in each of several languages.

The likeliest text stands for all. Not known here: whose language is in doubt, between which languages, and
how text counts (`language.uncertain`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.audio.features import RecordingFeatures
from sottovoce.decoding.decode import Attempt, select_windows
from sottovoce.engine.calls import CallGenerator, DecodeCall, EncodeCall
from sottovoce.offline.packing import Piece
from sottovoce.offline.transcriber import Transcriber
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.types import EncoderOutput

ONCE = FallbackOptions(temperatures=(0.0,))
SILENCE = 30
"""Log-mel frames at most, of each pause around it, that a stretch is read with: of a word that begins faintly
speech detection hears a part."""


class TextLikelihood:
    """Decodes stretches greedily, each encoded by itself, and remembers what came of it."""

    def __init__(self, transcriber: Transcriber, features: RecordingFeatures) -> None:
        self._transcriber = transcriber
        self._features = features
        self._found: dict[Piece, dict[str, float]] = {}

    def nats(self, stretch: Piece, languages: Sequence[str]) -> CallGenerator[dict[str, float]]:
        """Return the log-probability of the text of a stretch, and its end, in each language."""
        found = self._found.setdefault(stretch, {})
        missing = [code for code in languages if code not in found]
        if missing:
            n_frames = self._transcriber.frames_to_encode(stretch.n_frames)
            features = self._features.window(stretch.start, stretch.end, n_frames=n_frames)
            encoded: EncoderOutput = yield EncodeCall(features)
            attempts: list[Attempt] = yield self._decode_call(encoded, missing)
            for code, attempt in zip(missing, attempts, strict=True):
                result = attempt.result
                found[code] = result.avg_logprob * (len(result.tokens) + 1)
        return {code: found[code] for code in languages}

    def forget_before(self, frame: int) -> None:
        """Forget stretches that end by a frame."""
        for stretch in [stretch for stretch in self._found if stretch.end <= frame]:
            del self._found[stretch]

    def _decode_call(self, encoded: EncoderOutput, languages: Sequence[str]) -> DecodeCall:
        transcriber = self._transcriber
        sample_len = transcriber.sample_len(encoded.n_frames)
        options = [
            DecodingOptions(language=code, without_timestamps=True, sample_len=sample_len)
            for code in languages
        ]
        rows = select_windows(encoded, [0] * len(languages))
        return DecodeCall(transcriber.tokenizer, rows, options, ONCE, [False] * len(languages), None)


def with_silence(stretch: Sequence[Piece], pieces: Sequence[Piece]) -> Piece:
    """Return a stretch with half of the pauses around it, SILENCE frames at most; before the first of the
    pieces nothing is known.
    """
    start, end = stretch[0].start, stretch[-1].end
    ends = [piece.end for piece in pieces if piece.end <= start]
    starts = [piece.start for piece in pieces if piece.start >= end]
    first = max((max(ends) + start) // 2, start - SILENCE) if ends else start
    last = min((min(starts) + end) // 2, end + SILENCE) if starts else end + SILENCE
    return Piece(first, last)
