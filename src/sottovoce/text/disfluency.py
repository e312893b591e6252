"""Disfluencies: prompts that make Whisper write them, and rules that remove them from text.

`clean_pieces` removes words in a table of the language: "Um, I I think we should, uh, go." becomes "I think
we should, go." Repetitions go only if the sentence continues: "No, no, no." stays. See docs/verbatim.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from sottovoce.errors import OptionError
from sottovoce.text.languages import find_language

if TYPE_CHECKING:
    from sottovoce.text.tokenizer import Tokenizer


VERBATIM_PROMPTS: Mapping[str, str] = MappingProxyType(
    {
        "en": "So I was, uh, in Berlin with Mr. Smith on, on Monday, and, um, we, we talked about, uh, "
        "the new- the next plan. Hmm, yeah.",
        "de": "Also, äh, ich war am, am Montag mit Herrn Schmidt in Berlin, und, ähm, wir, wir haben über, "
        "äh, den neu- den nächsten Plan gesprochen. Hm, ja.",
        "es": "Bueno, eh, yo estuve el, el lunes con el señor López en Madrid, y, em, hablamos, hablamos "
        "sobre, eh, el nue- el próximo plan. Mmm, sí.",
        "fr": "Alors, euh, j'étais à, à Paris lundi avec monsieur Martin, et, euh, on a, on a parlé du, hum, "
        "du nouv- du prochain projet. Hmm, oui.",
    }
)
"""By Whisper's code of the language, with names and capitals, because Whisper copies the style."""


def check_verbatim(language: str) -> None:
    """Raises: OptionError for a language without a prompt for verbatim text."""
    if find_language(language) not in VERBATIM_PROMPTS:
        measured = ", ".join(VERBATIM_PROMPTS)
        raise OptionError(f"verbatim: expected a language that was measured ({measured}), got '{language}'")


def verbatim_tokens(tokenizer: Tokenizer) -> list[int]:
    prompt = VERBATIM_PROMPTS.get(tokenizer.language or "en")
    return [] if prompt is None else tokenizer.encode(" " + prompt)


class DisfluencyRules:
    """The rules of one language, in lower case; words are separated by spaces.

    fillers: a regular expression. restarts: words whose repetition is a restart ("the the"). openers: may
    begin a repeated phrase of two or three words ("it was it was"). conjunctions: restarts too, but never
    part of a repeated phrase. parted, parted_openers: restarts and openers only with punctuation between
    ("to, to get").
    """

    def __init__(
        self,
        fillers: str,
        *,
        restarts: str,
        openers: str,
        conjunctions: str,
        parted_openers: str,
        parted: str = "",
    ) -> None:
        self.restarts = frozenset(f"{restarts} {conjunctions}".split())
        self._fillers = re.compile(fillers)
        self.openers, self._parted_openers = frozenset(openers.split()), frozenset(parted_openers.split())
        self._conjunctions, self._parted = frozenset(conjunctions.split()), frozenset(parted.split())

    def may_restart(self, words: Sequence[str], is_parted: bool) -> bool:
        if len(words) == 1:
            return words[0] in self.restarts or (is_parted and words[0] in self._parted)
        opens = words[0] in self.openers or (is_parted and words[0] in self._parted_openers)
        return opens and self._conjunctions.isdisjoint(words) and len(set(words)) > 1

    def is_filler(self, word: str) -> bool:
        """Return whether a word is a filler; in capitals it is an abbreviation (ER, UM)."""
        return not (word.isupper() and len(word) > 1) and bool(self._fillers.fullmatch(word.casefold()))


DISFLUENCIES: Mapping[str, DisfluencyRules] = MappingProxyType(
    {
        "en": DisfluencyRules(
            r"u+h+|u+h*m+|e+rm*|h+m+|m{3,}",
            restarts="i i'm i've i'll i'd we we're we've we'll they they're they've the a an because if your "
            "our their it's there's he's she's you're",
            openers="i i'm i've we we're they they're you you're he he's she she's it it's that's there's",
            conjunctions="and or but",
            parted="to with of for at from",
            parted_openers="the a an if because your our their in on to of for with from at that this there "
            "when",
        ),
        "de": DisfluencyRules(
            r"ä+h*m+|[äö]+h+m*|e+h+m+|u+h+m*|h+m+|m{3,}",
            restarts="ich wir weil dass ob wenn ein eine einen einem einer im am zum zur vom beim von für in",
            openers="ich wir er sie es man du das",
            conjunctions="und oder aber",
            parted_openers="weil dass ob wenn ein eine einen im zum zur in der die den dem des ihr mit auf "
            "an zu bei aus nach über da",
        ),
        "es": DisfluencyRules(
            r"e+h+m*|e+m+|e{3,}|u+h*m+|u+h+|h+m+|m{3,}",
            restarts="yo el los las un porque de en con por para a su",
            openers="yo lo que se me te le nos",
            conjunctions="y o e u pero",
            parted_openers="el la los las un una porque en es como cuando si",
        ),
        "fr": DisfluencyRules(
            r"e+u+h+m*|h+e+u+|u+h+m*|h+m+|m{3,}",
            restarts="je j'ai le les il ils on ce c'est de du des à dans pour avec sur par",
            openers="je j'ai il ils on ce c'est tu elle elles ça",
            conjunctions="et ou mais",
            parted_openers="le la les dans en que y nous vous",
        ),
        "it": DisfluencyRules(
            r"e+h+m+|u+h*m+|e{3,}|h+m+|m{3,}",
            restarts="io il i perché di del della dei delle nel nella al con per in",
            openers="io si mi che non",
            conjunctions="e ed o ma",
            parted_openers="il i lo la gli le un una perché è",
        ),
        "nl": DisfluencyRules(
            r"u+h+m*|e+h+m*|e+u+h+m*|h+m+|m{3,}",
            restarts="ik we wij de omdat met naar mijn onze",
            openers="ik we wij hij ze zij je jij het dat",
            conjunctions="en maar",
            parted_openers="de een die er in op van voor te dit omdat",
        ),
        "pl": DisfluencyRules(
            r"y{2,}m*|y+m+|e{3,}m*|e+h+m+|h+m+|m{3,}",
            restarts="ja my w z że do od dla przez po ten się",
            openers="ja my to on ona oni",
            conjunctions="i a ale lub",
            parted_openers="że w z do jest",
        ),
        "pt": DisfluencyRules(
            r"e+h+m*|u+h+m*|h+m+|m{3,}",
            restarts="eu o os porque de do dos das com para por",
            openers="eu ele ela você que se",
            conjunctions="e ou mas",
            parted_openers="o os a as porque é",
        ),
        "ru": DisfluencyRules(
            r"э+м+|э{2,}|х+м+|м{3,}",
            restarts="я мы они он она в с к у по из от для",
            openers="я мы они он она ты вы это",
            conjunctions="и а но или",
            parted_openers="как что",
        ),
    }
)


ENDS = frozenset(".!?…")
PAUSES = ",;:-–—"
ELLIPSES = ("...", "…")
BREAK_SIGNS = frozenset({"", ",", "-", "–", "—", "-,", "...", "…"})
BROKEN_OFF = frozenset({"-", "-,"})
PIECE = re.compile(r"\s*\S+(?:\s+$)?")
PARTS = re.compile(r"([\W_]*)(.*?)([\W_]*)", re.DOTALL)


class _Piece:
    def __init__(self, index: int, text: str) -> None:
        parts = PARTS.fullmatch(text)
        assert parts is not None, "the expression matches every text"
        self.index = index
        self.lead, self.word, self.tail = parts.groups()

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
        return not self.lead.strip()

    def capitalize(self) -> None:
        self.word = self.word[:1].upper() + self.word[1:]


def check_cleanable(language: str) -> None:
    """Raises: OptionError for a language (code or English name) without rules."""
    if find_language(language) not in DISFLUENCIES:
        checked = ", ".join(DISFLUENCIES)
        raise OptionError(
            f"clean: expected a language whose rules were checked ({checked}), got '{language}'"
        )


def clean_pieces(pieces: Sequence[str], rules: DisfluencyRules) -> dict[int, str]:
    """Clean words with their punctuation and preceding space; return the remaining ones by index."""
    units = [_Piece(index, text) for index, text in enumerate(pieces)]
    left = _without_fillers(units, rules)
    for piece in left:
        piece.word = _without_stutter(piece.word, rules)
    while (place := next(_restarts(left, rules), None)) is not None:
        _drop_restart(left, *place)
    if left and left[0].index > 0:  # keep the absence of a leading space
        space = pieces[0][: len(pieces[0]) - len(pieces[0].lstrip())]
        left[0].lead = space + left[0].lead.lstrip()
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
                before.tail = ""  # "the, uh, house": the comma belongs to the filler
    return left


def _is_loose_filler(piece: _Piece, rules: DisfluencyRules) -> bool:
    signs = (piece.lead + piece.tail).split()
    return rules.is_filler(piece.word) and not set("".join(signs)) - set(PAUSES + ".…")


def _take_end(before: _Piece, tail: str, after: _Piece | None) -> None:
    if ENDS.isdisjoint(tail):
        return
    goes_on = after is not None and after.word[:1].islower()
    if tail in ELLIPSES and goes_on:
        return
    before.tail = before.tail.rstrip().rstrip(PAUSES) + tail


def _restarts(pieces: Sequence[_Piece], rules: DisfluencyRules) -> Iterator[tuple[int, int]]:
    for n_words in range(1, 4):  # words of a repeated phrase
        for start in range(len(pieces) - n_words):
            if _is_restart(pieces, start, n_words, rules):
                yield start, n_words


def _is_restart(pieces: Sequence[_Piece], start: int, n_words: int, rules: DisfluencyRules) -> bool:
    first, second = pieces[start : start + n_words], pieces[start + n_words : start + 2 * n_words]
    if n_words == 1 and _is_broken_off(first[0], second[0]):
        return True
    after = pieces[start + 2 * n_words] if start + 2 * n_words < len(pieces) else None
    if after is None or second[-1].tail or not after.is_plain or not after.word:
        return False  # a repetition that ends the sentence is intended
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
    words, again = [piece.word for piece in first], [piece.word for piece in second]
    if opens and again[0][:1].islower():
        words[0] = words[0][:1].lower() + words[0][1:]
    return words == again


def _drop_restart(pieces: list[_Piece], start: int, n_words: int) -> None:
    first, again = pieces[start], pieces[start + n_words]
    again.lead = first.lead
    if first.is_capital and (start == 0 or pieces[start - 1].ends_sentence):
        again.capitalize()
    del pieces[start : start + n_words]


def _without_stutter(word: str, rules: DisfluencyRules) -> str:
    parts = word.split("-")
    folded = {part.casefold() for part in parts}
    if len(parts) > 1 and len(folded) == 1 and folded <= rules.restarts:
        return parts[0]
    return word
