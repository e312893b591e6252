"""Of what kind the errors of live transcripts are, and where: word by word beside what was said and the file.

Units as in `live.counts`. Knows no model and no audio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from benchmarks.live.counts import TimedUnit, timed_units, utterance
from benchmarks.live.runs import Item, Live, Whole
from sottovoce.evaluation.wer import split_units
from sottovoce.text.normalize import normalizer_for
from sottovoce.text.word_edits import align_words
from sottovoce.types import Word

N_EDGE = 2
"""Units at the beginning and at the end of what was said."""
N_NEAR = 6
"""A unit too many is said again if it is among so many before or after it."""
STOPS = (".", "?", "!", "…", "。", "？", "！")


@dataclass(frozen=True, slots=True)
class Kinds:
    """Units heard as others, missing, too many; of these, those that say again what was just heard. opening,
    ending: errors in the first and last units of what was said, or beside them. stops, capitals: words with
    a mark of a sentence's end, and with a capital letter, which the file's transcript writes without."""

    other: int = 0
    missing: int = 0
    too_many: int = 0
    again: int = 0
    opening: int = 0
    ending: int = 0
    stops: int = 0
    capitals: int = 0

    def __add__(self, more: Kinds) -> Kinds:
        return Kinds(*(a + b for a, b in zip(astuple(self), astuple(more), strict=True)))


HEADS = tuple(one.name.replace("_", " ") for one in fields(Kinds))


def kinds(item: Item, words: Sequence[Word], whole: Whole) -> Kinds:
    """Errors of these words of a recording, and how they are written beside the file's transcript."""
    return errors_of(item, words) + writing_of(item, words, whole)


def errors_of(item: Item, words: Sequence[Word]) -> Kinds:
    text = "".join(word.word for word in words).strip()
    normalize, both = normalizer_for(item.language), utterance(item, text)
    said, heard = (split_units(normalize(one), "mixed") for one in (both.reference, both.hypothesis))
    found = Kinds()
    at = 0  # units of what was said that are behind
    for i, j in align_words(heard, said):
        is_opening, is_ending = at < N_EDGE, at >= len(said) - N_EDGE
        if j is not None:
            at = j + 1
            is_opening, is_ending = j < N_EDGE, j >= len(said) - N_EDGE
        if i is not None and j is not None and heard[i] == said[j]:
            continue
        near = [] if i is None else heard[max(0, i - N_NEAR) : i] + heard[i + 1 : i + 1 + N_NEAR]
        is_again = i is not None and j is None and heard[i] in near
        found += Kinds(
            other=i is not None and j is not None,
            missing=i is None,
            too_many=j is None,
            again=is_again,
            opening=is_opening,
            ending=is_ending and not is_opening,
        )
    return found


def writing_of(item: Item, words: Sequence[Word], whole: Whole) -> Kinds:
    """Stops and capitals of words that the file's transcript has too, without them."""
    ours, theirs = (timed_units(some, item.language) for some in (words, whole.words))
    found = Kinds()
    for i, j in align_words([one.text for one in ours], [one.text for one in theirs]):
        if i is None or j is None or ours[i].text != theirs[j].text:
            continue
        word, other = _written(words, ours[i]), _written(whole.words, theirs[j])
        found += Kinds(
            stops=word.endswith(STOPS) and not other.endswith(STOPS),
            capitals=word[:1].isupper() and not other[:1].isupper(),
        )
    return found


def _written(words: Sequence[Word], unit: TimedUnit) -> str:
    return words[unit.at].word.strip()


def rows(items: Sequence[Item], wholes: Sequence[Whole], heard: dict[str, list[Live]]) -> list[list[str]]:
    """A row for the files' transcripts and one for each side."""
    texts = {"file": [whole.words for whole in wholes]}
    texts |= {name: [live.run.words for live in lives] for name, lives in heard.items()}
    found = []
    for name, some in texts.items():
        all_of = (kinds(*one) for one in zip(items, some, wholes, strict=True))
        found.append([name, *map(str, astuple(sum(all_of, Kinds())))])
    return found
