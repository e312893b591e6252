"""The labels of a CTC model: read from files and other toolkits' objects, and spelled as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from sottovoce.errors import OptionError, cause_of
from sottovoce.text.files import read_lines, read_text

PIECE_START = "▁"
"""Marks the beginning of a word in SentencePiece's pieces."""
SEPARATORS = (" ", "|", PIECE_START)
"""Labels for the space between words, by precedence: plain, fairseq's and wav2vec2's, SentencePiece's."""


UNFINISHED = -1
"""Mark of a hypothesis' last word if it is unfinished, and spelled by its tokens."""


class SpelledWord(NamedTuple):
    """A word and the tokens [first, end) of the hypothesis that spell it.

    in_lexicon: the lexicon has it, or there is none.
    """

    text: str
    first: int
    end: int
    in_lexicon: bool = True


def _begins_word(name: str) -> bool:
    return name.startswith(PIECE_START) and len(name) > 1


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a CTC model.

    names: one per output, including the blank. separator: id of the label between words; None if labels
    mark the beginning of words ("▁the"), or there are no words.

    Raises:
        OptionError: a blank out of range, no other labels, or a repeated label.
    """

    names: tuple[str, ...]
    blank: int
    separator: int | None = None
    word_starts: tuple[bool, ...] = field(init=False, repr=False, compare=False)
    """Which labels begin a word."""
    separators: tuple[bool, ...] = field(init=False, repr=False, compare=False)
    """Which labels spell nothing and stand between words: the separator, or a lone "▁"."""
    has_pieces: bool = field(init=False, repr=False, compare=False)
    """Whether labels mark the beginning of words."""
    glue: str = field(init=False, repr=False, compare=False)
    """Text between labels that know no words."""

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise OptionError(f"labels: expected a blank and at least one more, got {len(self.names)}")
        if not 0 <= self.blank < len(self.names):
            raise OptionError(f"blank: expected an index from 0 to {len(self.names) - 1}, got {self.blank}")
        if self.separator is not None and not 0 <= self.separator < len(self.names):
            raise OptionError(f"separator: expected a label's index, got {self.separator}")
        seen = set(self.names)
        if len(seen) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise OptionError(f"labels: expected each once, got {twice!r} {self.names.count(twice)} times")
        has_pieces = any(map(_begins_word, self.names))
        starts = tuple(has_pieces and name.startswith(PIECE_START) for name in self.names)
        separators = tuple(
            i == self.separator or (has_pieces and name == PIECE_START) for i, name in enumerate(self.names)
        )
        is_single = all(len(name) <= 1 for i, name in enumerate(self.names) if i != self.blank)
        for name, value in (
            ("word_starts", starts),
            ("separators", separators),
            ("has_pieces", has_pieces),
            ("glue", "" if is_single else " "),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, names: Sequence[str], blank: int) -> Labels:
        """Make labels with a separator of `SEPARATORS`, if any; blank may count from the end (-1).

        With word pieces ("▁the"), "▁" begins a word and is no separator.

        Raises:
            OptionError: as the class.
        """
        blank = blank + len(names) if blank < 0 else blank
        separators = SEPARATORS[:-1] if any(map(_begins_word, names)) else SEPARATORS
        places = {name: i for i, name in enumerate(names) if i != blank}
        return cls(tuple(names), blank, next((places[name] for name in separators if name in places), None))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def has_words(self) -> bool:
        """Whether labels mark where words begin or end."""
        return self.separator is not None or self.has_pieces

    def spell(self, tokens: Sequence[int]) -> str:
        if not self.has_words:
            return self.glue.join(self.names[token] for token in tokens)
        parts = (" " if token == self.separator else self.names[token] for token in tokens)
        return " ".join("".join(parts).replace(PIECE_START, " ").split())

    def words(self, tokens: Sequence[int]) -> list[SpelledWord]:
        """Split tokens into non-empty words by separators and word starts."""
        starts = self.word_starts
        words: list[SpelledWord] = []
        first = 0
        for place in range(len(tokens) + 1):
            is_end = place == len(tokens) or tokens[place] == self.separator or starts[tokens[place]]
            if not is_end:
                continue
            text = self.spell(tokens[first:place])
            if text:
                words.append(SpelledWord(text, first, place))
            first = place + int(place < len(tokens) and tokens[place] == self.separator)
        return words


@dataclass(frozen=True, slots=True)
class Speller:
    """Reads symbols (token + V * mark, see `PrefixState`) as words.

    lexicon: the words of marks 1, 2, …; None for a word that is spelled by its tokens. Empty without a
    lexicon.
    """

    labels: Labels
    lexicon: Sequence[str | None] = ()

    def words(self, symbols: Sequence[int], last_mark: int = 0) -> list[SpelledWord]:
        """Return the words of a hypothesis; last_mark: of the word that its ending completed, or
        `UNFINISHED`.
        """
        n_labels = len(self.labels)
        if not self.lexicon:
            return self.labels.words([symbol % n_labels for symbol in symbols])
        words: list[SpelledWord] = []
        first = 0
        for place, symbol in enumerate(symbols):
            if 0 < symbol // n_labels <= len(self.lexicon):
                words.append(self._word(symbols, first, place + 1, symbol // n_labels))
                first = place + 1
            elif first == place and symbol % n_labels == self.labels.separator:
                first = place + 1
        if last_mark > 0 or (last_mark == UNFINISHED and first < len(symbols)):
            words.append(self._word(symbols, first, len(symbols), last_mark))
        return [word for word in words if word.text]  # a lone "▁" spells nothing

    def finished_words(self, symbols: Sequence[int]) -> list[SpelledWord]:
        """Return the words of a hypothesis that no further token can change."""
        words = self.words(symbols)
        if not self.lexicon and words and words[-1].end == len(symbols):
            words.pop()
        return words

    def closed(self, symbols: Sequence[int]) -> tuple[list[SpelledWord], int]:
        """Return the words that no further token can change, and the number of symbols up to their end.

        Labels that know no words are one word each.
        """
        n_labels = len(self.labels)
        if self.lexicon:
            ends = [i + 1 for i, symbol in enumerate(symbols) if 0 < symbol // n_labels <= len(self.lexicon)]
            n_closed = ends[-1] if ends else 0
            return self.words(symbols[:n_closed]), n_closed
        if not self.labels.has_words:
            names = self.labels.names
            return [SpelledWord(names[s % n_labels], i, i + 1) for i, s in enumerate(symbols)], len(symbols)
        words = self.finished_words(symbols)
        return words, words[-1].end if words else 0

    def join(self, texts: Sequence[str]) -> str:
        present = [text for text in texts if text]
        if self.lexicon or self.labels.has_words:
            return " ".join(present)
        return self.labels.glue.join(present)

    def text(self, symbols: Sequence[int], words: Sequence[SpelledWord]) -> str:
        """Return the text of a hypothesis; words: its words, from `words`."""
        if self.lexicon:
            return " ".join(word.text for word in words)
        n_labels = len(self.labels)
        return self.labels.spell([symbol % n_labels for symbol in symbols])

    def _word(self, symbols: Sequence[int], first: int, end: int, mark: int) -> SpelledWord:
        tokens = [symbol % len(self.labels) for symbol in symbols[first:end]]
        while len(tokens) > 1 and tokens[-1] == self.labels.separator:
            tokens.pop()
        text = None if mark == UNFINISHED else self.lexicon[mark - 1]
        spelled = self.labels.spell(tokens) if text is None else text
        return SpelledWord(spelled, first, first + len(tokens), in_lexicon=text is not None)


class LabelList(NamedTuple):
    """One name per output, and the blank's index, or None if the source does not name it."""

    names: tuple[str, ...]
    blank: int | None


class VocabularyTokenizer(Protocol):
    """A Hugging Face CTC tokenizer."""

    @property
    def pad_token_id(self) -> int | None: ...

    def get_vocab(self) -> Mapping[str, int]: ...


class Processor(Protocol):
    """A Hugging Face processor, such as `Wav2Vec2Processor`."""

    @property
    def tokenizer(self) -> VocabularyTokenizer: ...


def labels_of_processor(processor: Processor | VocabularyTokenizer) -> LabelList:
    """Read the labels of a Hugging Face processor or tokenizer; the padding token is the blank.

    Raises:
        OptionError: ids with gaps, or no padding token.
    """
    # Not `isinstance`: from Python 3.12 on it ignores a tokenizer's `__getattr__`.
    tokenizer = cast(VocabularyTokenizer, getattr(processor, "tokenizer", None) or processor)
    names = _by_id(tokenizer.get_vocab())
    if tokenizer.pad_token_id is None:
        raise OptionError("processor: expected a padding token (the blank), got none")
    return LabelList(names, tokenizer.pad_token_id)


def labels_of_nemo(vocabulary: Sequence[str]) -> LabelList:
    """Make labels of a NeMo CTC model's `decoder.vocabulary`, with the blank last."""
    return LabelList((*vocabulary, "<blank>"), len(vocabulary))


def read_labels(path: str | Path) -> LabelList:
    """Read the labels of a file.

    Text: one label a line, spaces kept. JSON: a list; {"vocab": [...], "blank": n}; or a vocabulary
    {label: id} as Hugging Face's `vocab.json`, with "<pad>" or "[PAD]" as the blank.

    Raises:
        OptionError: the file cannot be read, or holds no labels.
    """
    path = Path(path)
    if path.suffix != ".json":
        return LabelList(tuple(read_lines(path, "labels")), None)
    try:
        return _of_json(json.loads(read_text(path, "labels")))
    except OptionError:
        raise
    except ValueError as error:
        raise OptionError(f"{path}: expected labels, got {cause_of(error)}") from error


def _of_json(document: object) -> LabelList:
    if isinstance(document, list):
        return LabelList(tuple(str(name) for name in document), None)
    if isinstance(document, dict) and isinstance(document.get("vocab"), list):
        return LabelList(tuple(str(name) for name in document["vocab"]), document.get("blank"))
    if isinstance(document, dict) and all(isinstance(value, int) for value in document.values()):
        names = _by_id(document)
        pad = next((i for i, name in enumerate(names) if name.lower() in ("<pad>", "[pad]")), None)
        return LabelList(names, pad)
    raise ValueError("neither a list, nor 'vocab' and 'blank', nor a vocabulary")


def _by_id(vocabulary: Mapping[str, int]) -> tuple[str, ...]:
    names = sorted(vocabulary, key=lambda name: vocabulary[name])
    if [vocabulary[name] for name in names] != list(range(len(names))):
        raise OptionError(f"labels: expected ids 0 to {len(names) - 1}, each once, got others")
    return tuple(names)
