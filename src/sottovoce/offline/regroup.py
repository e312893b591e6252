"""Changes of finished segments: other times, no hesitations, and rules that split and join them.

    split pause=0.5 after=.?!; split letters=80; merge pause=0.2 letters=80

Each rule takes the output of the one before. Cuts are between words, never before a closing mark or inside a
grapheme cluster; words and their times do not change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, Protocol, TypeAlias, TypeVar

from sottovoce.errors import OptionError
from sottovoce.speakers.labels import part_of
from sottovoce.text.disfluency import DISFLUENCIES, PIECE, DisfluencyRules, clean_pieces
from sottovoce.text.filters import as_one_word
from sottovoce.text.languages import CLOSING_MARKS
from sottovoce.text.normalize import n_clusters, unbreakable
from sottovoce.types import Segment, Word

FORM = "split or merge with pause=, after=, letters=, words= or seconds=, as 'split pause=0.5; merge words=9'"


def segment_moved(segment: Segment, seconds: float) -> Segment:
    def move(time_s: float) -> float:
        return round(time_s + seconds, 3)

    return segment_retimed(segment, move, move)


def segment_retimed(
    segment: Segment, of_start: Callable[[float], float], of_end: Callable[[float], float]
) -> Segment:
    """Return a segment with new starts and ends (s), also of its words and tokens."""
    words = segment.words and tuple(
        replace(
            word,
            start=of_start(word.start),
            end=of_end(word.end),
            tokens=tuple(
                replace(token, start=of_start(token.start), end=of_end(token.end)) for token in word.tokens
            ),
        )
        for word in segment.words
    )
    return replace(segment, start=of_start(segment.start), end=of_end(segment.end), words=words)


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum length of a segment in letters (clusters, without the leading space), words and seconds.

    Raises:
        OptionError: a limit is not positive.
    """

    letters: float = math.inf
    words: float = math.inf
    seconds: float = math.inf

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise OptionError(f"regroup: {name}: expected more than 0, got {getattr(self, name)}")

    def excess(self, words: Sequence[Word]) -> float:
        letters = n_clusters("".join(word.word for word in words).strip())
        seconds = words[-1].end - words[0].start
        return max(letters / self.letters, len(words) / self.words, seconds / self.seconds)


class _Timed(Protocol):
    @property
    def start(self) -> float: ...


T = TypeVar("T", bound=_Timed)


class StartOrder(Generic[T]):
    """Puts pieces of segments in the order of their starts while segments, in that order, still come."""

    def __init__(self) -> None:
        self._waiting: list[T] = []

    def add(self, pieces: Iterable[T], begun_s: float = math.inf) -> list[T]:
        """Add pieces; return all that start until begun_s, before which no later piece starts."""
        waiting = sorted([*self._waiting, *pieces], key=_start)
        n_ready = bisect_right(waiting, begun_s, key=_start)
        self._waiting = waiting[n_ready:]
        return waiting[:n_ready]


def _start(piece: _Timed) -> float:
    return piece.start


Unit: TypeAlias = list[Word]
"""Words that stay together."""


@dataclass(frozen=True, slots=True)
class Split:
    """Split at pauses (s) and after words that end in one of the signs `after`, then evenly to the limits."""

    pause: float = math.inf
    after: str = ""
    limits: Limits = Limits()

    def __call__(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        order: StartOrder[Segment] = StartOrder()
        for segment in segments:
            parts = [part for run in self._runs(segment) for part in self._fitting(run)]
            yield from order.add(cut(segment, parts), segment.start)
        yield from order.add(())

    def _runs(self, segment: Segment) -> list[list[Unit]]:
        runs: list[list[Unit]] = []
        for unit in unbreakable(words_of(segment), lambda word: word.word):
            last = runs[-1][-1] if runs else None
            if last is None or unit[0].start - last[-1].end >= self.pause or self._ends(last):
                runs.append([])
            runs[-1].append(unit)
        return runs

    def _ends(self, unit: Unit) -> bool:
        text = "".join(word.word for word in unit).strip().rstrip(CLOSING_MARKS)
        return bool(self.after) and text.endswith(tuple(self.after))

    def _fitting(self, units: list[Unit]) -> list[list[Word]]:
        fewest = self._filled(units, 1.0)
        low, high = 0.0, 1.0
        # Each halves the range of the limit: to a 2^24th of it.
        for _ in range(24 if len(fewest) > 1 else 0):
            middle = (low + high) / 2
            is_enough = len(self._filled(units, middle)) <= len(fewest)
            low, high = (low, middle) if is_enough else (middle, high)
        return self._filled(units, high)

    def _filled(self, units: Sequence[Unit], most: float) -> list[list[Word]]:
        parts: list[list[Word]] = [[]]
        for unit in units:
            if parts[-1] and self.limits.excess([*parts[-1], *unit]) > most:
                parts.append([])
            parts[-1] += unit
        return parts


@dataclass(frozen=True, slots=True)
class Merge:
    """Join segments of one speaker and language less than `pause` seconds apart, within the limits."""

    pause: float = math.inf
    limits: Limits = Limits()

    def __call__(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        return merged(segments, self._belongs)

    def _belongs(self, first: Segment, second: Segment) -> bool:
        is_alike = (first.speaker, first.language) == (second.speaker, second.language)
        words = [*words_of(first), *words_of(second)]
        is_near = second.start - first.end < self.pause
        return is_alike and is_near and (not words or self.limits.excess(words) <= 1)


Rule: TypeAlias = Split | Merge


def regrouped(segments: Iterable[Segment], rules: Sequence[Rule]) -> Iterator[Segment]:
    """Apply rules to segments with words, and number the result.

    Raises:
        OptionError: a segment has no words.
    """
    for rule in rules:
        segments = rule(segments)
    for number, segment in enumerate(segments):
        yield replace(segment, id=number)


def parse_rules(text: str) -> list[Rule]:
    """Parse the rules of a text.

    Raises:
        OptionError: the text is not valid.
    """
    return [_rule(rule) for rule in text.split(";") if rule.strip()] or _refuse(text)


def _rule(text: str) -> Rule:
    kind, *pieces = text.split()
    values = dict(piece.partition("=")[::2] for piece in pieces)
    names = {"split": ("pause", "after", *Limits.__slots__), "merge": ("pause", *Limits.__slots__)}
    if kind not in names or not pieces or any(name not in names[kind] or not values[name] for name in values):
        _refuse(text)
    try:
        numbers = {name: float(value) for name, value in values.items() if name != "after"}
    except ValueError:
        _refuse(text)
    pause = numbers.pop("pause", math.inf)
    if not pause >= 0:
        raise OptionError(f"regroup: pause: expected 0 or more seconds, got {pause}")
    limits = Limits(**numbers)
    return Split(pause, values.get("after", ""), limits) if kind == "split" else Merge(pause, limits)


def _refuse(text: str) -> list[Rule]:
    raise OptionError(f"regroup: expected {FORM}, got '{text.strip()[:100]}'")


def words_of(segment: Segment) -> Sequence[Word]:
    if segment.words is None:
        raise OptionError("regroup: expected segments with word times, got one without")
    return segment.words


def cut(segment: Segment, parts: Sequence[list[Word]]) -> Iterator[Segment]:
    if len(parts) < 2:
        yield segment
        return
    for index, words in enumerate(parts):
        yield replace(part_of(segment, tuple(words), parts, index), speaker=segment.speaker)


def merged(segments: Iterable[Segment], belongs: Callable[[Segment, Segment], bool]) -> Iterator[Segment]:
    """Join each segment with the next ones while `belongs` holds."""
    held: Segment | None = None
    for segment in segments:
        if held is not None and belongs(held, segment):
            held = joined(held, segment)
            continue
        if held is not None:
            yield held
        held = segment
    if held is not None:
        yield held


def joined(first: Segment, second: Segment) -> Segment:
    words = None if first.words is None or second.words is None else (*first.words, *second.words)
    n_first, n_second = max(1, len(first.tokens)), max(1, len(second.tokens))
    mean = (first.avg_logprob * n_first + second.avg_logprob * n_second) / (n_first + n_second)
    return replace(
        first,
        end=max(first.end, second.end),
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        avg_logprob=mean,
        temperature=max(first.temperature, second.temperature),
        compression_ratio=max(first.compression_ratio, second.compression_ratio),
        no_speech_prob=min(first.no_speech_prob, second.no_speech_prob),
        words=words,
        translation=" ".join(filter(None, (first.translation, second.translation))) or None,
    )


def clean_segment(segment: Segment, language: str) -> Segment | None:
    """Return a segment without hesitations; None if nothing remains. Its tokens stay.

    language: a code; one without rules changes nothing.
    """
    rules = DISFLUENCIES.get(language)
    if rules is None:
        return segment
    text = "".join(clean_pieces(PIECE.findall(segment.text), rules).values())
    if text == segment.text:
        return segment
    if not text.strip():
        return None
    if not segment.words:
        return replace(segment, text=text)
    words = clean_words(segment.words, rules)
    if not words:
        return replace(segment, text=text, words=())
    start = segment.start if words[0].start == segment.words[0].start else words[0].start
    end = segment.end if words[-1].end == segment.words[-1].end else words[-1].end
    return replace(segment, text=text, words=words, start=start, end=end)


def clean_words(words: Sequence[Word], rules: DisfluencyRules) -> tuple[Word, ...]:
    groups: list[list[Word]] = []
    for word in words:
        if not groups or word.word[:1].isspace():
            groups.append([])
        groups[-1].append(word)
    texts = ["".join(word.word for word in group) for group in groups]
    left = clean_pieces(texts, rules)
    each = (groups[i] if text == texts[i] else [as_one_word(groups[i], text)] for i, text in left.items())
    return tuple(chain.from_iterable(each))
