"""Times of tokens, and the committed history of a stream: the symbols that all beams share, their times,
words.

The history is stored in arrays of machine numbers: an hour of speech takes a few megabytes. What may be
committed is found in `common_prefix`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from sottovoce.decoding.ctc.text import Speller
from sottovoce.lm.base import HistoryWord, WordHistory


class TokenSpans(NamedTuple):
    """First frame, last frame (inclusive) and highest log-probability of every token: (N, L) each.

    Padding holds zeros. score: (N,) float32, log-probability of the path.
    """

    first: Tensor
    last: Tensor
    peak: Tensor
    score: Tensor


class TokenTimes(NamedTuple):
    """First frame, last frame (inclusive) and highest log-probability of the tokens of one hypothesis."""

    first: list[int]
    last: list[int]
    peak: list[float]


def token_times(spans: TokenSpans, n_tokens: Sequence[int]) -> list[TokenTimes]:
    """Convert spans (N, L) to numbers, without the padding. n_tokens: of each hypothesis."""
    parts = (part.tolist() for part in (spans.first, spans.last, spans.peak))
    rows = zip(*parts, n_tokens, strict=True)
    return [TokenTimes(first[:n], last[:n], peak[:n]) for first, last, peak, n in rows]


@dataclass(slots=True, eq=False)
class CommittedHistory:
    """The committed part of one utterance.

    symbols: see `PrefixState`. first, last, peak: of each, as in `TokenTimes`, in frames of the utterance.
    n_frames: frames that were dropped with them. words: those that no further token can change; word_starts,
    word_ends: [start, end) of each in `symbols`. text: of these words. n_emitted: words sent as events so
    far. n_closed: symbols up to the end of the last word. in_lexicon: of each word, see `SpelledWord`.
    n_scored: words that a `HistoryScorer` has scored. past: those words. living: what beams go on from it
    with, so that its scores live.
    """

    symbols: array[int] = field(default_factory=lambda: array("q"))
    first: array[int] = field(default_factory=lambda: array("i"))
    last: array[int] = field(default_factory=lambda: array("i"))
    peak: array[float] = field(default_factory=lambda: array("f"))
    n_frames: int = 0
    words: list[str] = field(default_factory=list)
    word_starts: array[int] = field(default_factory=lambda: array("i"))
    word_ends: array[int] = field(default_factory=lambda: array("i"))
    text: str = ""
    n_closed: int = 0
    n_emitted: int = 0
    in_lexicon: bytearray = field(default_factory=bytearray)
    n_scored: int = 0
    past: WordHistory = field(default_factory=WordHistory)
    living: list[WordHistory] = field(default_factory=list)

    def add(self, symbols: Sequence[int], times: TokenTimes, n_frames: int, speller: Speller) -> None:
        """Commit symbols and drop n_frames frames. times: relative to the frames dropped before."""
        self.symbols.extend(symbols)
        self.first.extend(self.n_frames + frame for frame in times.first)
        self.last.extend(self.n_frames + frame for frame in times.last)
        self.peak.extend(times.peak)
        self.n_frames += n_frames
        closed, n_symbols = speller.closed(self.symbols[self.n_closed :].tolist())
        for word in closed:
            self.words.append(word.text)
            self.in_lexicon.append(word.in_lexicon)
            self.word_starts.append(self.n_closed + word.first)
            self.word_ends.append(self.n_closed + word.end)
        self.text = speller.join([self.text, *(word.text for word in closed)])
        self.n_closed += n_symbols

    def history(self) -> WordHistory:
        """Return the committed words as a history."""
        newer = zip(self.words[self.n_scored :], self.in_lexicon[self.n_scored :], strict=True)
        return self.past.after(HistoryWord(text, bool(in_lexicon)) for text, in_lexicon in newer)

    def mark_scored(self, living: list[WordHistory]) -> None:
        """Take the committed words as scored; living: what beams go on with."""
        self.past, self.living = self.history(), living
        self.past.forget_beginning()
        self.n_scored = len(self.words)

    def open_symbols(self) -> list[int]:
        """Return committed symbols of a word that may go on."""
        return self.symbols[self.n_closed :].tolist()

    def times(self, later: TokenTimes, begin: int = 0) -> TokenTimes:
        """Return the times of committed symbols from `begin` on, and of `later` ones, which count from the
        dropped frames.
        """
        n = self.n_frames
        return TokenTimes(
            [*self.first[begin:], *(n + frame for frame in later.first)],
            [*self.last[begin:], *(n + frame for frame in later.last)],
            [*self.peak[begin:], *later.peak],
        )
