"""Words that were committed and whose audio is still held, and where that audio can be cut.

Not known here: audio and decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sottovoce.streaming.words import ReadWord
from sottovoce.types import Word


class CommittedWords:
    """Committed words in order of time; `until_s` is the end of the last one ever."""

    def __init__(self, start_s: float) -> None:
        self._words: list[ReadWord] = []
        self.until_s = start_s

    def __iter__(self) -> Iterator[ReadWord]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)

    @property
    def last(self) -> Word | None:
        """The last word whose audio is still held."""
        return self._words[-1].word if self._words else None

    def add(self, word: ReadWord) -> None:
        self._words.append(word)
        self.until_s = max(self.until_s, word.word.end)

    def tokens(self, language: str | None = None) -> tuple[int, ...]:
        """Tokens of all words, or of those of one language."""
        chosen = [word for word in self._words if language in (None, word.word.language)]
        return _tokens(chosen)

    def run_of(self, language: str) -> tuple[float | None, tuple[int, ...], tuple[int, ...]]:
        """The words of a language since another one was said.

        Returns the end of the last word of another language (None without one), the tokens of the
        language's words before it, and of those after it.
        """
        others = [i for i, read in enumerate(self._words) if read.word.language != language]
        if not others:
            return None, (), self.tokens(language)
        until = others[-1]
        before = [read for read in self._words[:until] if read.word.language == language]
        after = self._words[until + 1 :]
        return self._words[until].word.end, _tokens(before), _tokens(after)

    def cut_point(self, earliest_s: float, target_s: float) -> float:
        """Where to cut the audio held: no earlier than earliest_s, at target_s or up to 2 s later.

        That is the middle of the widest gap after a committed word; without one, target_s if all before
        it is committed, else earliest_s.
        """
        words = [word.word for word in self._words]
        ends = [word.end for word in words]
        starts = [*(word.start for word in words[1:]), *([self.until_s + 0.2] if words else [])]
        gaps = [
            (after - before, (before + after) / 2)
            for before, after in zip(ends, starts, strict=True)
            if earliest_s <= (before + after) / 2 <= target_s + 2.0
        ]
        if gaps:
            return max(gaps)[1]
        return target_s if self.until_s >= target_s else earliest_s

    def half_point(self) -> float:
        """Where half of the tokens lie before: the widest gap between words of the middle third.

        Of less than three words, the end of the last one.
        """
        n_tokens = [len(read.tokens) for read in self._words]
        total, so_far, gaps = sum(n_tokens), 0, []
        for read, after, n in zip(self._words, self._words[1:], n_tokens, strict=False):
            so_far += n
            if total / 3 <= so_far <= 2 * total / 3:
                gaps.append((after.word.start - read.word.end, (read.word.end + after.word.start) / 2))
        return max(gaps)[1] if gaps else self.until_s

    def drop_before(self, cut_s: float) -> list[ReadWord]:
        """Forget the words that end by cut_s; returns them."""
        n_gone = 0
        while n_gone < len(self._words) and self._words[n_gone].word.end <= cut_s + 1e-6:
            n_gone += 1
        gone, self._words = self._words[:n_gone], self._words[n_gone:]
        return gone


def _tokens(words: Sequence[ReadWord]) -> tuple[int, ...]:
    return tuple(token for word in words for token in word.tokens)
