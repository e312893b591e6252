"""The few hundred tokens of Whisper's vocabulary that nano writes with, and the symbols of its CTC head.

Whisper's 50257 text tokens are far too many for some twenty hours of speech. Words (Chinese: characters)
that occur often keep their token; everything else is written letter by letter, as no bump of attention
reads a piece of two to four letters well. Single bytes are always there, so every text can be written.
The ids stay Whisper's, so every Whisper tool decodes them; a prompt must be cut in the same way to meet
trained rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from recipes.nano.texts import UNSPACED, bare_words, spelled
from sottovoce.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Pieces:
    """Cuts text into whole tokens where they are known, and into letters elsewhere.

    kept: ids of the known tokens; letters and bytes need not be among them.
    """

    tokenizer: Tokenizer
    kept: frozenset[int]
    _cuts: dict[int, list[int]] = field(default_factory=dict, repr=False)

    def encode(self, text: str, language: str) -> list[int]:
        """Ids of a text as it stands in a transcript: with a space before it where words have spaces."""
        spaced = text if language in UNSPACED else f" {text}"
        return [piece for token in self.tokenizer.encode(spaced) for piece in self._cut(token)]

    def _cut(self, token: int) -> list[int]:
        if token in self.kept:
            return [token]
        if token not in self._cuts:
            letters = _letters(self.tokenizer.token_bytes(token))
            self._cuts[token] = [piece for letter in letters for piece in self._spell(letter)]
        return self._cuts[token]

    def _spell(self, letter: bytes) -> list[int]:
        """The token of a letter (with the space before it, if any), or those of its bytes."""
        single = self.tokenizer.vocabulary.encoding.encode_single_token
        try:
            return [single(letter)]
        except KeyError:
            return [single(bytes([value])) for value in letter]


def _letters(piece: bytes) -> list[bytes]:
    """The characters of a piece, a space at its begin with the first; its bytes when it is no whole text."""
    try:
        characters = [character.encode() for character in piece.decode()]
    except UnicodeDecodeError:
        return [bytes([value]) for value in piece]
    if len(characters) > 1 and characters[0] == b" ":
        characters[:2] = [b" " + characters[1]]
    return characters


def frequent_words(tokenizer: Tokenizer, texts: Iterable[tuple[str, str]], min_count: int) -> Pieces:
    """Keeps words of one token, and unspaced characters, that occur min_count times in (language, text)."""
    counts: Counter[int] = Counter()
    for language, text in texts:
        if language in UNSPACED:
            counts.update(token for token in tokenizer.encode(text) if len(tokenizer.token_bytes(token)) > 2)
        else:
            words = (tokenizer.encode(f" {word}") for word in bare_words(text) if len(word) > 1)
            counts.update(tokens[0] for tokens in words if len(tokens) == 1)
    return Pieces(tokenizer, frozenset(token for token, n in counts.items() if n >= min_count))


@dataclass(frozen=True, slots=True)
class CtcSymbols:
    """Characters of the CTC head: blank 0, then those that occur, in code point order."""

    symbols: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> CtcSymbols:
        return cls(("<blank>", *sorted({character for text in texts for character in text})))

    def encode(self, text: str) -> list[int]:
        """Ids of the characters; those without a symbol are left out."""
        ids = {symbol: index for index, symbol in enumerate(self.symbols)}
        return [ids[character] for character in text if character in ids]


def token_spans(pieces: Pieces, tokens: Sequence[int], text: str, language: str) -> list[tuple[int, int]]:
    """First and last CTC character of each token: where in the spelled text its sound is.

    A token without a sound of its own (punctuation, half a character) takes the place of the one before.
    """
    written = text if language in UNSPACED else f" {text}"
    places = _places_unspaced(written) if language in UNSPACED else _places(written, spelled(language, text))
    by_byte = [place for character, place in zip(written, places, strict=True) for _ in character.encode()]
    spans: list[tuple[int, int]] = []
    start, last = 0, (0, 0)
    for token in tokens:
        end = start + len(pieces.tokenizer.token_bytes(token))
        found = [place for place in by_byte[start:end] if place is not None]
        if found:
            last = (min(found)[0], max(found)[1])
        spans.append(last if found else (last[1], last[1]))
        start = end
    return spans


def _places(written: str, spelling: str) -> list[tuple[int, int] | None]:
    """Each written letter's place in the spelling, in order; None for what has no sound."""
    places: list[tuple[int, int] | None] = []
    at = 0
    for character in written.lower().replace("’", "'"):
        following = at + 1 if at < len(spelling) and spelling[at] == " " else at
        if character != " " and following < len(spelling) and spelling[following] == character:
            places.append((following, following))
            at = following + 1
        else:
            places.append(None)
    return places


def _places_unspaced(written: str) -> list[tuple[int, int] | None]:
    """Each Chinese character's syllable in the pinyin."""
    places: list[tuple[int, int] | None] = []
    at = 0
    for character in written:
        syllable = spelled("zh", character)
        places.append((at, at + len(syllable) - 1) if syllable else None)
        at += len(syllable) + 1 if syllable else 0
    return places
