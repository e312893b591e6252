"""Names of speakers, and assignment of words and segments to turns.

Word times are off by some tenths of a second, so the speakers of a segment's words are chosen jointly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby

from sottovoce.text.languages import CLAUSE_ENDS, CLOSING_MARKS, SENTENCE_ENDS
from sottovoce.text.normalize import shared_out, width
from sottovoce.types import Segment, Turn, Word


def letter(index: int) -> str:
    """Return the letter of speaker `index`: A, B, … Z, AA."""
    name = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        name = chr(ord("A") + place) + name
    return name


def replace_letter(speaker: str | None, names: Sequence[str]) -> str | None:
    """Replace a letter by a name, A by the first; without a name the letter stays."""
    if speaker is None or not (speaker.isascii() and speaker.isalpha() and speaker.isupper()):
        return speaker
    place = letter_index(speaker)
    return names[place] if place < len(names) else speaker


def letter_index(name: str) -> int:
    place = 0
    for character in name:
        place = 26 * place + ord(character) - ord("A") + 1
    return place - 1


def name_turns(
    turns: Iterable[tuple[float, float, Hashable]], taken: Mapping[Hashable, str] | None = None
) -> list[Turn]:
    """Name the speakers of turns (start, end in seconds, any label) in order of appearance.

    taken: names of known labels.
    """
    names = dict(taken or {})
    letters = (name for name in map(letter, count()) if name not in (taken or {}).values())
    turns_named = []
    for start, end, speaker in sorted(turns, key=lambda turn: turn[:2]):
        if speaker not in names:
            names[speaker] = next(letters)
        turns_named.append(Turn(start, end, names[speaker]))
    return turns_named


PAUSE_S = 0.25
FAR_S = 2.0
SENTENCE_COST, PAUSE_COST, INSIDE_COST = 0.05, 0.15, 0.3
"""Costs of a change, in seconds of words of a silent speaker: at the end of a sentence; in a pause or at the
end of a clause; elsewhere.
"""


class SpeakerLabels:
    """Assigns speakers to the segments of a recording, in order; without turns none.

    last: the speaker of the segment before.
    """

    def __init__(self, turns: Sequence[Turn], last: str | None = None) -> None:
        self._turns = sorted(turns, key=lambda turn: turn.start)
        self._starts = [turn.start for turn in self._turns]
        self._longest = max((turn.end - turn.start for turn in turns), default=0.0)
        self._last = last

    def split(self, segment: Segment) -> Iterator[Segment]:
        """Split a segment into parts of one speaker each, which keep its id."""
        if not self._turns:
            yield segment
        elif not segment.words:
            yield replace(segment, speaker=self._of_span(segment.start, segment.end))
        else:
            words = segment.words
            speakers = self.of_words(words)
            spoken = [replace(word, speaker=name) for word, name in zip(words, speakers, strict=True)]
            groups = [tuple(group) for _, group in groupby(spoken, key=lambda word: word.speaker)]
            yield from parts_of(segment, groups)

    def _of_span(self, start: float, end: float) -> str:
        near = self._near(start, end)
        costs = {name: _cost(start, end, turns) for name, turns in near.items()}
        self._last = min(costs, key=lambda name: (costs[name], name != self._last))
        return self._last

    def of_words(self, words: Sequence[Word]) -> list[str]:
        near = self._near(words[0].start, words[-1].end)
        names = sorted(near)
        change = SENTENCE_COST if self._last in near else 0.0
        totals = {name: 0.0 if name == self._last else change for name in names}
        ways: list[dict[str, str]] = []
        for index, word in enumerate(words):
            if index:
                cheapest = min(names, key=lambda name: totals[name])
                change = _change_cost(word, words[index - 1])
                way = {
                    name: name if totals[name] <= totals[cheapest] + change else cheapest for name in names
                }
                totals = {name: totals[way[name]] + (change if way[name] != name else 0.0) for name in names}
                ways.append(way)
            for name in names:
                totals[name] += _cost(word.start, word.end, near[name])
        speaker = min(names, key=lambda name: totals[name])
        path = [speaker]
        for way in reversed(ways):
            path.append(way[path[-1]])
        self._last = path[0]
        return path[::-1]

    def _near(self, start: float, end: float) -> dict[str, list[Turn]]:
        first = bisect_left(self._starts, start - FAR_S - self._longest)
        last = bisect_left(self._starts, end + FAR_S)
        near: dict[str, list[Turn]] = {}
        for turn in self._turns[first:last]:
            if turn.end > start - FAR_S:
                near.setdefault(turn.speaker, []).append(turn)
        if not near:
            nearest = min(self._turns, key=lambda turn: max(turn.start - end, start - turn.end))
            near[nearest.speaker] = [nearest]
        return near


def _change_cost(word: Word, last: Word) -> float:
    end = last.word.strip().rstrip(CLOSING_MARKS)
    if end.endswith(SENTENCE_ENDS):
        return SENTENCE_COST
    is_pause = word.start - last.end >= PAUSE_S or end.endswith(CLAUSE_ENDS)
    return PAUSE_COST if is_pause else INSIDE_COST


def _cost(start: float, end: float, turns: Sequence[Turn]) -> float:
    covered_s = sum(max(0.0, min(end, turn.end) - max(start, turn.start)) for turn in turns)
    away = min(max(0.0, turn.start - end, start - turn.end) for turn in turns)
    return max(0.0, end - start - covered_s) + min(away, FAR_S)


def spoken_by(segment: Segment, speaker: str | None) -> Segment:
    words = segment.words and tuple(replace(word, speaker=speaker) for word in segment.words)
    return replace(segment, speaker=speaker, words=words)


def part_of(
    segment: Segment, words: tuple[Word, ...], groups: Sequence[Sequence[Word]], index: int
) -> Segment:
    """Return the part of a segment that has the words of one group."""
    widths = [width("".join(word.word for word in group)) for group in groups]
    translation = "".join(shared_out(segment.translation or "", widths)[index])
    return replace(
        segment,
        start=words[0].start if any(groups[:index]) else segment.start,
        end=words[-1].end if any(groups[index + 1 :]) else segment.end,
        text="".join(word.word for word in words),
        tokens=tuple(token.id for word in words for token in word.tokens),
        words=words,
        speaker=words[0].speaker,
        translation=translation.strip() or None,
    )


def parts_of(segment: Segment, groups: Sequence[tuple[Word, ...]]) -> Iterator[Segment]:
    """Cut a segment between groups of its words, one per speaker."""
    if len(groups) == 1:
        yield replace(segment, words=groups[0], speaker=groups[0][0].speaker)
        return
    tokens = tokens_of(segment.tokens, groups)
    for index, (words, ids) in enumerate(zip(groups, tokens, strict=True)):
        yield replace(part_of(segment, words, groups, index), tokens=ids)


def tokens_of(tokens: Sequence[int], groups: Sequence[Sequence[Word]]) -> list[tuple[int, ...]]:
    counts = [sum(len(word.tokens) for word in words) for words in groups]
    texts = iter(token.id for words in groups for word in words for token in word.tokens)
    shared: list[list[int]] = [[] for _ in groups]
    group, n_taken = 0, 0
    expected = next(texts, None)
    for token in tokens:
        if token == expected:
            while group < len(groups) - 1 and n_taken == counts[group]:
                group, n_taken = group + 1, 0
            n_taken += 1
            expected = next(texts, None)
        shared[group].append(token)
    return [tuple(ids) for ids in shared]
