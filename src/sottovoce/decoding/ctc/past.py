"""What a stream has behind it: the symbols that all its beams share, when they were said, and their words.

Numbers are kept in arrays of machine numbers: an hour of speech is a few megabytes. Nothing here knows how
it was found that nothing can change any more; see `settling`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from sottovoce.decoding.ctc.text import Speller
from sottovoce.decoding.ctc.times import TokenTimes


@dataclass(slots=True, eq=False)
class Past:
    """The committed part of one utterance.

    symbols: see `PrefixState`. first, last, peak: of each, as in `TokenTimes`, in frames of the utterance.
    n_frames: frames that were dropped with them. words: those that no further token can change, and the
    places [begins, ends) of their symbols. text: of these words. n_told: words that were told as events.
    n_closed: symbols in `words` and before them.
    """

    symbols: array[int] = field(default_factory=lambda: array("q"))
    first: array[int] = field(default_factory=lambda: array("i"))
    last: array[int] = field(default_factory=lambda: array("i"))
    peak: array[float] = field(default_factory=lambda: array("f"))
    n_frames: int = 0
    words: list[str] = field(default_factory=list)
    begins: array[int] = field(default_factory=lambda: array("i"))
    ends: array[int] = field(default_factory=lambda: array("i"))
    text: str = ""
    n_closed: int = 0
    n_told: int = 0

    def add(self, symbols: Sequence[int], times: TokenTimes, n_frames: int, speller: Speller) -> None:
        """Commit symbols with their times, which count from the frames that are left, and drop n_frames."""
        self.symbols.extend(symbols)
        self.first.extend(self.n_frames + frame for frame in times.first)
        self.last.extend(self.n_frames + frame for frame in times.last)
        self.peak.extend(times.peak)
        self.n_frames += n_frames
        closed, n_symbols = speller.closed(self.symbols[self.n_closed :].tolist())
        for word in closed:
            self.words.append(word.text)
            self.begins.append(self.n_closed + word.first)
            self.ends.append(self.n_closed + word.end)
        self.text = speller.together([self.text, *(word.text for word in closed)])
        self.n_closed += n_symbols

    def open_symbols(self) -> list[int]:
        """Committed symbols of a word that may go on."""
        return self.symbols[self.n_closed :].tolist()

    def times(self, later: TokenTimes) -> TokenTimes:
        """Of the committed symbols and of what comes after them."""
        n = self.n_frames
        return TokenTimes(
            [*self.first, *(n + frame for frame in later.first)],
            [*self.last, *(n + frame for frame in later.last)],
            [*self.peak, *later.peak],
        )
