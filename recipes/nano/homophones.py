"""Which words sound alike, so that errors of hearing can be told from errors of spelling.

In a random sequence of words nothing but the sound tells "quelque" from "quelques". Pronunciations come
from espeak-ng, the program that speaks the clips; of Chinese from pypinyin, syllable by syllable.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from recipes.nano.speech import BASES
from recipes.nano.texts import UNSPACED, plain, spelled

STRESS = re.compile("[ˈˌ]")


def measurable(language: str) -> bool:
    """Whether pronunciations of the language can be had here."""
    return language in UNSPACED or (language in BASES and shutil.which("espeak-ng") is not None)


@cache
def pronunciation(language: str, word: str) -> str:
    """A word alone in phonetic letters without stress; of Chinese, its syllables with their tones."""
    if language in UNSPACED:
        return spelled(language, word)
    command = ["espeak-ng", "-q", "--ipa", "-v", BASES[language][0], "--", word]
    said = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    return STRESS.sub("", "".join(said.split()))


def by_sound(language: str, texts: Sequence[str]) -> list[str]:
    """The texts, each word (Chinese: character) replaced by the first that sounds like it in any of them.

    Two texts that differ in homophones alone become equal.
    """
    first: dict[str, str] = {}
    for word in _words(language, texts):
        first.setdefault(pronunciation(language, word), word)
    glue = "" if language in UNSPACED else " "
    return [
        glue.join(first[pronunciation(language, word)] for word in _words(language, [text])) for text in texts
    ]


def least_error_rate(language: str, texts: Sequence[str]) -> float:
    """Share of words that are wrong where every sound is heard and written as its most frequent word here.

    What a listener cannot better in random sequences, where no sense tells "sé" from "se".
    """
    words = Counter(_words(language, texts))
    best: dict[str, int] = {}
    for word, count in words.items():
        sound = pronunciation(language, word)
        best[sound] = max(best.get(sound, 0), count)
    return 1 - sum(best.values()) / max(1, words.total())


def _words(language: str, texts: Iterable[str]) -> list[str]:
    split = list if language in UNSPACED else str.split
    return [word for text in texts for word in split(plain(text)) if word.strip()]
