"""What may be taken out of spoken text in a language: fillers, and words that nobody repeats on purpose.

A short table on purpose. A filler is a sound of hesitation that is no word of the language: German "um" and
"er", Portuguese "um" and "em", Italian "eh" and Dutch "hè" are words, and are not here; nor are discourse
words ("like", "also", "pues"), which mean something more often than not. Words that stand twice by right
("that that", "very very", "der der", "nous nous", numbers) are in no list: whatever is not listed stays.

Languages are here once the rules ran over edited text and changed next to nothing (docs/verbatim.md); those that are written without spaces are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class DisfluencyRules:
    """The rules of one language, all in lower case.

    fillers: matches the whole of one, without signs around it. restarts: words of which one that follows
    itself at once is a restart ("the the"). openers: pronouns that may begin a repeated phrase of two or
    three words ("it was it was"). parted: words that are restarts only where a sign stands between ("to, to
    get", but "listened to to"); parted_openers: the same of phrases ("in the, in the house", but "to confuse
    the audience the audience is"). conjunctions: none is in a repeated phrase ("again and again and again"),
    though one that follows itself is a restart.
    """

    fillers: re.Pattern[str]
    restarts: frozenset[str]
    openers: frozenset[str]
    conjunctions: frozenset[str]
    parted: frozenset[str]
    parted_openers: frozenset[str]

    @classmethod
    def of(
        cls,
        fillers: str,
        *,
        restarts: str,
        openers: str,
        conjunctions: str,
        parted_openers: str,
        parted: str = "",
    ) -> DisfluencyRules:
        """Make rules from a regular expression, and words separated by spaces."""
        return cls(
            re.compile(fillers),
            frozenset(f"{restarts} {conjunctions}".split()),
            frozenset(openers.split()),
            frozenset(conjunctions.split()),
            frozenset(parted.split()),
            frozenset(parted_openers.split()),
        )

    def may_restart(self, words: Sequence[str], is_parted: bool) -> bool:
        """Tell whether a phrase that is repeated at once is a restart.

        words: of the phrase, in lower case. is_parted: punctuation stands between the two.
        """
        if len(words) == 1:
            return words[0] in self.restarts or (is_parted and words[0] in self.parted)
        opens = words[0] in self.openers or (is_parted and words[0] in self.parted_openers)
        return opens and self.conjunctions.isdisjoint(words) and len(set(words)) > 1

    def is_filler(self, word: str) -> bool:
        """Tell whether a word is a filler; in capitals it is an abbreviation (ER, UM)."""
        return not (word.isupper() and len(word) > 1) and bool(self.fillers.fullmatch(word.casefold()))


DISFLUENCIES: Mapping[str, DisfluencyRules] = MappingProxyType(
    {
        "en": DisfluencyRules.of(
            r"u+h+|u+h*m+|e+rm*|h+m+|m{3,}",
            restarts="i i'm i've i'll i'd we we're we've we'll they they're they've the a an because if your "
            "our their it's there's he's she's you're",
            openers="i i'm i've we we're they they're you you're he he's she she's it it's that's there's",
            conjunctions="and or but",
            parted="to with of for at from",
            parted_openers="the a an if because your our their in on to of for with from at that this there "
            "when",
        ),
        "de": DisfluencyRules.of(
            r"ä+h*m+|[äö]+h+m*|e+h+m+|u+h+m*|h+m+|m{3,}",
            restarts="ich wir weil dass ob wenn ein eine einen einem einer im am zum zur vom beim von für in",
            openers="ich wir er sie es man du das",
            conjunctions="und oder aber",
            parted_openers="weil dass ob wenn ein eine einen im zum zur in der die den dem des ihr mit auf "
            "an zu bei aus nach über da",
        ),
        "es": DisfluencyRules.of(
            r"e+h+m*|e+m+|e{3,}|u+h*m+|u+h+|h+m+|m{3,}",
            restarts="yo el los las un porque de en con por para a su",
            openers="yo lo que se me te le nos",
            conjunctions="y o e u pero",
            parted_openers="el la los las un una porque en es como cuando si",
        ),
        "fr": DisfluencyRules.of(
            r"e+u+h+m*|h+e+u+|u+h+m*|h+m+|m{3,}",
            restarts="je j'ai le les il ils on ce c'est de du des à dans pour avec sur par",
            openers="je j'ai il ils on ce c'est tu elle elles ça",
            conjunctions="et ou mais",
            parted_openers="le la les dans en que y nous vous",
        ),
        "it": DisfluencyRules.of(
            r"e+h+m+|u+h*m+|e{3,}|h+m+|m{3,}",
            restarts="io il i perché di del della dei delle nel nella al con per in",
            openers="io si mi che non",
            conjunctions="e ed o ma",
            parted_openers="il i lo la gli le un una perché è",
        ),
        "nl": DisfluencyRules.of(
            r"u+h+m*|e+h+m*|e+u+h+m*|h+m+|m{3,}",
            restarts="ik we wij de omdat met naar mijn onze",
            openers="ik we wij hij ze zij je jij het dat",
            conjunctions="en maar",
            parted_openers="de een die er in op van voor te dit omdat",
        ),
        "pl": DisfluencyRules.of(
            r"y{2,}m*|y+m+|e{3,}m*|e+h+m+|h+m+|m{3,}",
            restarts="ja my w z że do od dla przez po ten się",
            openers="ja my to on ona oni",
            conjunctions="i a ale lub",
            parted_openers="że w z do jest",
        ),
        "pt": DisfluencyRules.of(
            r"e+h+m*|u+h+m*|h+m+|m{3,}",
            restarts="eu o os porque de do dos das com para por",
            openers="eu ele ela você que se",
            conjunctions="e ou mas",
            parted_openers="o os a as porque é",
        ),
        "ru": DisfluencyRules.of(
            r"э+м+|э{2,}|х+м+|м{3,}",
            restarts="я мы они он она в с к у по из от для",
            openers="я мы они он она ты вы это",
            conjunctions="и а но или",
            parted_openers="как что",
        ),
    }
)
"""By Whisper's code of the language."""
