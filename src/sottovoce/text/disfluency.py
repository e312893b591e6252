"""Fillers, repetitions and words that were broken off, taken out of text by rule.

    Um, I I think we, we should, uh, go.  ->  I think we, we should, go.

Only what a table of the language names goes (`disfluency_rules`), and repetitions only where the sentence
goes on: "No, no, no.", "I know, I know." and "bye bye" stay. Nothing else is changed but signs at the seams
and the capital at the beginning of a sentence. Knows no times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sottovoce.errors import OptionError
from sottovoce.text.disfluency_rules import DISFLUENCIES, DisfluencyRules
from sottovoce.text.languages import find_language

ENDS = frozenset(".!?…")
"""Signs that end a sentence."""
PAUSES = ",;:-–—"
"""Signs within one."""
ELLIPSES = ("...", "…")
LONGEST_PHRASE = 3
BREAK_SIGNS = frozenset({"", ",", "-", "–", "—", "-,", "...", "…"})
"""What may stand between the two of a repetition."""
BROKEN_OFF = frozenset({"-", "-,"})
"""What a word ends with that was broken off."""
PIECE = re.compile(r"\s*\S+(?:\s+$)?")
PARTS = re.compile(r"([\W_]*)(.*?)([\W_]*)", re.DOTALL)


@dataclass(slots=True)
class _Piece:
    """What spaces separate: a word with the space and signs before it (lead) and the signs after it (tail).

    index: in the text as it was.
    """

    index: int
    lead: str
    word: str
    tail: str

    @classmethod
    def of(cls, index: int, text: str) -> _Piece:
        parts = PARTS.fullmatch(text)
        assert parts is not None, "the expression matches every text"
        return cls(index, *parts.groups())

    @property
    def text(self) -> str:
        return self.lead + self.word + self.tail

    @property
    def folded(self) -> str:
        return self.word.casefold().replace("’", "'")

    @property
    def ends_sentence(self) -> bool:
        return not ENDS.isdisjoint(self.tail)

    @property
    def is_capital(self) -> bool:
        return self.word[:1].isupper()

    @property
    def is_plain(self) -> bool:
        """Whether nothing but a space stands before the word."""
        return not self.lead.strip()

    def capitalize(self) -> None:
        self.word = self.word[:1].upper() + self.word[1:]


def check_cleanable(language: str) -> None:
    """Check that there are rules for a language, given by code or English name.

    Raises: OptionError where there are none.
    """
    if find_language(language) not in DISFLUENCIES:
        checked = ", ".join(DISFLUENCIES)
        raise OptionError(
            f"clean: expected a language whose rules were checked ({checked}), got '{language}'"
        )


def clean_text(text: str, language: str) -> str:
    """Remove fillers, repetitions and words that were broken off; "" where nothing else is in the text.

    language: code or English name. Raises: OptionError for one without rules.
    """
    check_cleanable(language)
    pieces = PIECE.findall(text)
    return "".join(clean_pieces(pieces, DISFLUENCIES[find_language(language)]).values())


def clean_pieces(pieces: Sequence[str], rules: DisfluencyRules) -> dict[int, str]:
    """Drop fillers and restarts from a text; return the pieces that stay, by their index, in order.

    pieces: words with their punctuation, each with the space before it. Punctuation and capitals at the seams
    are corrected.
    """
    found = [_Piece.of(index, text) for index, text in enumerate(pieces)]
    left = _without_fillers(found, rules)
    for piece in left:
        piece.word = _without_stutter(piece.word, rules)
    while (place := next(_restarts(left, rules), None)) is not None:
        _drop_restart(left, *place)
    if left and left[0].index > 0:  # a text that begins without a space goes on doing so
        left[0].lead = _space_of(pieces[0]) + left[0].lead.lstrip()
    return {piece.index: piece.text for piece in left}


def _without_fillers(pieces: Sequence[_Piece], rules: DisfluencyRules) -> list[_Piece]:
    left: list[_Piece] = []
    owes_capital = False
    for place, piece in enumerate(pieces):
        before = left[-1] if left else None
        if not _is_loose_filler(piece, rules):
            if owes_capital:
                piece.capitalize()
            left.append(piece)
            owes_capital = False
            continue
        opens = before is None or before.ends_sentence
        owes_capital = owes_capital or (opens and piece.is_capital)
        after = pieces[place + 1] if place + 1 < len(pieces) else None
        if before is not None and not opens:
            _take_end(before, piece.tail.strip(), after)
            if before.tail == "," and before.folded in rules.restarts:
                before.tail = ""  # "the, uh, house": no such word has a comma of its own
    return left


def _is_loose_filler(piece: _Piece, rules: DisfluencyRules) -> bool:
    """Whether it is a filler that neither asks nor calls, and stands within no quotes or brackets."""
    signs = (piece.lead + piece.tail).split()
    return rules.is_filler(piece.word) and not set("".join(signs)) - set(PAUSES + ".…")


def _take_end(before: _Piece, tail: str, after: _Piece | None) -> None:
    """Let the word before a filler end the sentence that the filler ended."""
    if ENDS.isdisjoint(tail):
        return
    goes_on = after is not None and after.word[:1].islower()
    if tail in ELLIPSES and goes_on:
        return
    before.tail = before.tail.rstrip().rstrip(PAUSES) + tail


def _restarts(pieces: Sequence[_Piece], rules: DisfluencyRules) -> Iterator[tuple[int, int]]:
    """Where something is said again at once: the place of the first one, and of how many pieces it is."""
    for n_words in range(1, LONGEST_PHRASE + 1):
        for start in range(len(pieces) - n_words):
            if _is_restart(pieces, start, n_words, rules):
                yield start, n_words


def _is_restart(pieces: Sequence[_Piece], start: int, n_words: int, rules: DisfluencyRules) -> bool:
    first, second = pieces[start : start + n_words], pieces[start + n_words : start + 2 * n_words]
    if n_words == 1 and _is_broken_off(first[0], second[0]):
        return True
    after = pieces[start + 2 * n_words] if start + 2 * n_words < len(pieces) else None
    if after is None or second[-1].tail or not after.is_plain or not after.word:
        return False  # said twice, and the sentence does not go on: meant so
    opens = start == 0 or pieces[start - 1].ends_sentence
    return (
        _is_same(first, second, opens)
        and first[-1].tail in BREAK_SIGNS
        and not any(piece.tail for piece in [*first[:-1], *second[:-1]])
        and all(piece.is_plain for piece in [*first[1:], *second])
        and all(piece.folded.replace("'", "").isalpha() for piece in first)
        and rules.may_restart([piece.folded for piece in first], is_parted=bool(first[-1].tail))
        and not (n_words > 1 and start > 0 and pieces[start - 1].folded == first[-1].folded)
    )


def _is_broken_off(first: _Piece, second: _Piece) -> bool:
    """Whether a word was broken off that the next one is the whole of: "thi- thinking"."""
    whole = second.folded
    return (
        first.tail in BROKEN_OFF
        and first.word.isalpha()
        and second.is_plain
        and whole.isalpha()
        and whole != first.folded
        and whole.startswith(first.folded)
        and (second.word[0] == first.word[0] or first.is_capital)
    )


def _is_same(first: Sequence[_Piece], second: Sequence[_Piece], opens: bool) -> bool:
    """Whether both say the same, letter for letter but for a capital that begins the sentence."""
    words, again = [piece.word for piece in first], [piece.word for piece in second]
    if opens and again[0][:1].islower():
        words[0] = words[0][:1].lower() + words[0][1:]
    return words == again


def _drop_restart(pieces: list[_Piece], start: int, n_words: int) -> None:
    """Keep what is said again, which the sentence goes on with."""
    first, again = pieces[start], pieces[start + n_words]
    again.lead = first.lead
    if first.is_capital and (start == 0 or pieces[start - 1].ends_sentence):
        again.capitalize()
    del pieces[start : start + n_words]


def _without_stutter(word: str, rules: DisfluencyRules) -> str:
    """A word that was begun again with a hyphen, once: "I-I"."""
    parts = word.split("-")
    folded = {part.casefold() for part in parts}
    if len(parts) > 1 and len(folded) == 1 and folded <= rules.restarts:
        return parts[0]
    return word


def _space_of(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
