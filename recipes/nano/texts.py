"""Sentences to speak: from a folder of text files, or the few that are built in; and random word sequences.

A folder holds `<language>.txt` (one sentence a line) and, if wanted, `<language>.words.txt` (one word a
line, most frequent first). Which sentences are held out is told by a hash of their text, so the split is
the same on every machine. This module knows no audio.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.errors import InputError

LANGUAGES = ("en", "de", "es", "fr", "zh")
HELD_OUT_SHARE = 0.03
UNSPACED = ("zh",)
PUNCTUATION = ".,;:!?¡¿\"'«»„“”()…"

BUILT_IN: dict[str, tuple[str, ...]] = {
    "en": (
        "The train to the coast leaves at nine.",
        "We found the old map under the stairs.",
        "Nobody knows how the cat got in.",
        "She writes a letter to her brother every week.",
        "The rain stopped before we reached the village.",
        "Please close the window and turn off the light.",
    ),
    "de": (
        "Der Zug ans Meer fährt um neun Uhr ab.",
        "Wir haben die alte Karte unter der Treppe gefunden.",
        "Niemand weiß, wie die Katze hereinkam.",
        "Sie schreibt ihrem Bruder jede Woche einen Brief.",
        "Der Regen hörte auf, bevor wir das Dorf erreichten.",
        "Bitte mach das Fenster zu und das Licht aus.",
    ),
    "es": (
        "El tren a la costa sale a las nueve.",
        "Encontramos el mapa viejo debajo de la escalera.",
        "Nadie sabe cómo entró el gato.",
        "Ella escribe una carta a su hermano cada semana.",
        "La lluvia paró antes de llegar al pueblo.",
        "Por favor, cierra la ventana y apaga la luz.",
    ),
    "fr": (
        "Le train pour la côte part à neuf heures.",
        "Nous avons trouvé la vieille carte sous l'escalier.",
        "Personne ne sait comment le chat est entré.",
        "Elle écrit une lettre à son frère chaque semaine.",
        "La pluie s'est arrêtée avant le village.",
        "Ferme la fenêtre et éteins la lumière.",
    ),
    "zh": (
        "火车九点开往海边。",
        "我们在楼下找到了旧地图。",
        "没有人知道猫是怎么进来的。",
        "她每个星期给弟弟写一封信。",
        "我们到村子以前雨就停了。",
        "请关上窗户。",
    ),
}
"""Enough to try every step of the recipe; far too little for a model that recognises anything."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text to speak. kind: "sentence" as found, "words" drawn at random."""

    language: str
    text: str
    kind: str

    @property
    def held_out(self) -> bool:
        return _share(f"{self.language}/{plain(self.text)}") < HELD_OUT_SHARE


def plain(text: str) -> str:
    """Lower case without punctuation but the apostrophe: compared, hashed, and put into CTC targets."""
    lowered = text.lower().replace("’", "'")
    return " ".join(re.sub(r"[^\w' ]|_", " ", lowered).split())


def spelled(language: str, text: str) -> str:
    """The CTC target of a text: plain letters; Chinese as pinyin with tone digits, one syllable a word.

    Source: pypinyin (MIT), imported here because only Chinese needs it.
    """
    if language not in UNSPACED:
        return plain(text)
    from pypinyin import Style, lazy_pinyin

    return plain(" ".join(lazy_pinyin(text, style=Style.TONE3, neutral_tone_with_five=True)))


def sentences_of(folder: Path | None, language: str) -> list[Sentence]:
    """The sentences of a language, each text once; the built-in ones when there is no folder.

    Raises: InputError when the folder has no file for the language.
    """
    if folder is None:
        lines: Sequence[str] = BUILT_IN[language]
    else:
        path = folder / f"{language}.txt"
        if not path.is_file():
            raise InputError(f"{path}: no such file, expected one sentence a line")
        lines = path.read_text(encoding="utf-8").splitlines()
    return [Sentence(language, text, "sentence") for text in dict.fromkeys(map(str.strip, lines)) if text]


def bare_words(text: str) -> list[str]:
    """The words of a text without the punctuation around them, in the case they are written in."""
    return [bare for word in text.split() if (bare := word.strip(PUNCTUATION))]


def words_of(folder: Path | None, sentences: Sequence[Sentence]) -> list[str]:
    """Words, most frequent first: from `<language>.words.txt`, or counted in the sentences.

    They are written as they mostly are inside a sentence, as lists often hold lower case alone.
    """
    language = sentences[0].language
    path = None if folder is None else folder / f"{language}.words.txt"
    written = _written([sentence.text for sentence in sentences], language)
    if path is not None and path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        listed = [line.split()[0] for line in lines if line.strip()]
        return list(dict.fromkeys(written.get(word.lower(), word) for word in listed))
    counts: Counter[str] = Counter()
    for sentence in sentences:
        text = plain(sentence.text)
        counts.update(written.get(word, word) for word in (text if language in UNSPACED else text.split()))
    return sorted(counts, key=lambda word: (-counts[word], word))


def _written(texts: Sequence[str], language: str) -> dict[str, str]:
    """Each word in lower case -> as it is mostly written after the first word of a sentence."""
    if language in UNSPACED:
        return {}
    forms: dict[str, Counter[str]] = {}
    for text in texts:
        for word in bare_words(text)[1:]:
            forms.setdefault(word.lower(), Counter())[word] += 1
    return {lowered: counts.most_common(1)[0][0] for lowered, counts in forms.items()}


def word_sequences(words: Sequence[str], language: str, n: int, rng: random.Random) -> list[Sentence]:
    """n sequences of 2 to 8 words drawn with the 0.4th power of a Zipf frequency, written as sentences.

    They keep the model from learning the sentences by heart: nothing but the sound tells the next word.
    """
    weights = [(rank + 1) ** -0.4 for rank in range(len(words))]
    return [_sequence(rng.choices(words, weights, k=rng.randint(2, 8)), language, rng) for _ in range(n)]


def corpus(
    folder: Path | None, language: str, n_sequences: int, rng: random.Random, *, n_words: int | None = None
) -> list[Sentence]:
    """All texts of a language: its sentences, and n_sequences random ones, each text once.

    n_words: draw from the most frequent words only. The fewer there are, the sooner each is known.
    """
    found = sentences_of(folder, language)
    drawn = word_sequences(words_of(folder, found)[:n_words], language, n_sequences, rng)
    return list({plain(sentence.text): sentence for sentence in reversed([*found, *drawn])}.values())[::-1]


def _sequence(words: list[str], language: str, rng: random.Random) -> Sentence:
    if language in UNSPACED:
        return Sentence(language, "".join(words) + "。", "words")
    text = " ".join(words)
    return Sentence(language, text[0].upper() + text[1:] + rng.choice([".", ".", ".", "?", ""]), "words")


def _share(text: str) -> float:
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8], 16) / 0xFFFFFFFF
