"""The few hundred pieces of Whisper's vocabulary that nano writes with, and the symbols of its CTC head.

Whisper's 50257 text tokens are far too many for some twenty hours of speech. The text is cut again into
the pieces that occur often, with as few tokens as possible; single bytes are always there, so every text
can be written. The ids stay Whisper's, so every Whisper tool decodes them; a prompt must be cut in the
same way to meet trained rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from recipes.nano.texts import UNSPACED, spelled
from sottovoce.text.tokenizer import Tokenizer

MAX_PIECE_BYTES = 16
BYTE_COST = 1.01
"""A single byte costs a little more than a piece, so that ties go to the piece."""


@dataclass(slots=True)
class Pieces:
    """Cuts text into a restricted set of Whisper's tokens.

    kept: ids of the pieces besides the single bytes.
    """

    tokenizer: Tokenizer
    kept: frozenset[int]
    _cuts: dict[bytes, list[int]] = field(default_factory=dict, repr=False)
    _ids: dict[bytes, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        single = self.tokenizer.encoding.encode_single_token
        self._ids = {self.tokenizer.token_bytes(token): token for token in self.kept}
        self._ids |= {bytes([value]): single(bytes([value])) for value in range(256)}

    def encode(self, text: str, language: str) -> list[int]:
        """Ids of a text as it stands in a transcript: with a space before it where words have spaces."""
        spaced = text if language in UNSPACED else f" {text}"
        cut = (self._cut(self.tokenizer.token_bytes(token)) for token in self.tokenizer.encode(spaced))
        return [token for tokens in cut for token in tokens]

    def _cut(self, piece: bytes) -> list[int]:
        """The fewest kept pieces that spell `piece`: a shortest path over its bytes."""
        if piece not in self._cuts:
            self._cuts[piece] = self._shortest(piece)
        return self._cuts[piece]

    def _shortest(self, piece: bytes) -> list[int]:
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for end in range(1, len(piece) + 1):
            starts = [s for s in range(max(0, end - MAX_PIECE_BYTES), end) if piece[s:end] in self._ids]
            cost, start = min((best[s][0] + (BYTE_COST if end - s == 1 else 1.0), s) for s in starts)
            best.append((cost, [*best[start][1], self._ids[piece[start:end]]]))
        return best[-1][1]


def most_used(
    tokenizer: Tokenizer, texts: Iterable[tuple[str, str]], min_count: int, rounds: int = 2
) -> Pieces:
    """Pieces that occur at least min_count times in (language, text) pairs.

    Cutting the rare ones makes others more frequent, so the count is taken again `rounds` times.
    """
    pairs = list(texts)
    pieces = Pieces(tokenizer, frozenset(range(tokenizer.eot)))
    for _ in range(rounds + 1):
        counts = Counter(token for language, text in pairs for token in pieces.encode(text, language))
        pieces = Pieces(tokenizer, frozenset(token for token, n in counts.items() if n >= min_count))
    return pieces


@dataclass(frozen=True, slots=True)
class CtcSymbols:
    """Characters of the CTC head: blank 0, then those that occur, in code point order."""

    symbols: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], min_count: int = 1) -> CtcSymbols:
        counts = Counter(character for text in texts for character in text)
        return cls(("<blank>", *sorted(c for c, n in counts.items() if n >= min_count)))

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
