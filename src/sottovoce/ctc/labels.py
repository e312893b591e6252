"""The labels of a CTC model: read from files and objects, and spelled as text."""

from __future__ import annotations

import json
import logging
import re
import tarfile
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from sottovoce.errors import OptionError, expecting
from sottovoce.text.files import decode_text, read_lines, read_text
from sottovoce.text.languages import UNSPACED_LETTERS

logger = logging.getLogger(__name__)

PIECE_START = "▁"
"""Marks the beginning of a word in SentencePiece's pieces."""
SEPARATORS = (" ", "|", PIECE_START)
"""Labels for the space between words, by precedence: plain, fairseq's and wav2vec2's, SentencePiece's."""


_UNSPACED = re.compile(f"{PIECE_START}?[{UNSPACED_LETTERS}]")

_SPECIAL = re.compile(r"<.+>|\[.+\]")
"""Names of labels such as <unk>, [UNK] and </s>, which spell no text."""

UNFINISHED = -1
"""Mark of a hypothesis' last word if it is unfinished, and spelled by its tokens."""


class SpelledWord(NamedTuple):
    """A word and the tokens [first, end) that spell it. in_lexicon: also True without a lexicon."""

    text: str
    first: int
    end: int
    in_lexicon: bool = True


def _begins_word(name: str) -> bool:
    return name.startswith(PIECE_START) and len(name) > 1


def with_space(word: str) -> str:
    """Return a word as it follows others: after a space, unless its script has none."""
    return word if _UNSPACED.match(word) else f" {word}"


def _is_character(name: str) -> bool:
    """Whether a label is a word of a script without spaces. Combining marks belong to the label before."""
    return _UNSPACED.match(name) is not None and not unicodedata.category(name[0]).startswith("M")


def _is_mark(name: str) -> bool:
    return unicodedata.category(name[:1] or "-").startswith("M")


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a CTC model.

    names: one per output. separator: id of the label between words, or None.

    Raises:
        OptionError: a blank out of range, no other labels, or a repeated label.
    """

    names: tuple[str, ...]
    blank: int
    separator: int | None = None
    word_starts: tuple[bool, ...] = field(init=False, repr=False, compare=False)
    separators: tuple[bool, ...] = field(init=False, repr=False, compare=False)
    """Which labels stand between words: the separator, or a lone "▁"."""
    has_pieces: bool = field(init=False, repr=False, compare=False)
    """Whether labels mark the beginning of words."""
    characters: tuple[bool, ...] = field(init=False, repr=False, compare=False)
    """Which labels are words of scripts without spaces."""
    marks: tuple[bool, ...] = field(init=False, repr=False, compare=False)
    """Which labels are combining marks of the label before."""
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
        others = (name for i, name in enumerate(self.names) if i != self.blank)
        is_single = all(len(name) <= 1 or _SPECIAL.fullmatch(name) for name in others)
        for name, value in (
            ("word_starts", starts),
            ("separators", separators),
            ("has_pieces", has_pieces),
            ("characters", tuple(map(_is_character, self.names))),
            ("marks", tuple(map(_is_mark, self.names))),
            ("glue", "" if is_single else " "),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, names: Sequence[str], blank: int) -> Labels:
        """Make labels with a separator of `SEPARATORS`. blank may count from the end (-1)."""
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
        words: list[SpelledWord] = []
        first = 0
        is_character = False
        for place in range(len(tokens) + 1):
            is_end = place == len(tokens) or tokens[place] == self.separator
            if not is_end and self.marks[tokens[place]]:
                continue
            was_character = is_character
            is_character = not is_end and self.characters[tokens[place]]
            if not (is_end or was_character or is_character or self.word_starts[tokens[place]]):
                continue
            text = self.spell(tokens[first:place])
            if text:
                words.append(SpelledWord(text, first, place))
            first = place + int(place < len(tokens) and tokens[place] == self.separator)
        return words


@dataclass(frozen=True, slots=True)
class SymbolReader:
    """Reads symbols (see `PrefixState`) as words.

    lexicon: the words of marks 1, 2, …; None for a word that its tokens spell. Empty without a lexicon.
    """

    labels: Labels
    lexicon: Sequence[str | None] = ()

    def words(self, symbols: Sequence[int], last_mark: int = 0) -> list[SpelledWord]:
        """Return the words of a hypothesis. last_mark: of the word that its ending completed, or
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
        """Return the words that no further token can change."""
        words = self.words(symbols)
        if not self.lexicon and words and words[-1].end == len(symbols):
            words.pop()
        return words

    def closed(self, symbols: Sequence[int]) -> tuple[list[SpelledWord], int]:
        """Return the words that no further token can change, and the symbols up to their end. Labels that
        know no words are one word each.
        """
        n_labels = len(self.labels)
        if self.lexicon:
            ends = [i + 1 for i, symbol in enumerate(symbols) if 0 < symbol // n_labels <= len(self.lexicon)]
            n_closed = ends[-1] if ends else 0
            return self.words(symbols[:n_closed]), n_closed
        if not (self.labels.has_words or any(self.labels.characters)):
            names = self.labels.names
            return [SpelledWord(names[s % n_labels], i, i + 1) for i, s in enumerate(symbols)], len(symbols)
        words = self.finished_words(symbols)
        return words, words[-1].end if words else 0

    def join(self, texts: Sequence[str]) -> str:
        present = [text for text in texts if text]
        if self.lexicon or self.labels.has_words:
            return "".join(map(with_space, present)).removeprefix(" ")
        return self.labels.glue.join(present)

    def text(self, symbols: Sequence[int], words: Sequence[SpelledWord]) -> str:
        if self.lexicon:
            return self.join([word.text for word in words])
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
    """Labels, and the index of the blank; None: the source does not say it."""

    names: tuple[str, ...]
    blank: int | None


class VocabularyTokenizer(Protocol):
    @property
    def pad_token_id(self) -> int | None: ...

    def get_vocab(self) -> Mapping[str, int]: ...


class Processor(Protocol):
    """A Hugging Face processor, such as `Wav2Vec2Processor`."""

    @property
    def tokenizer(self) -> VocabularyTokenizer: ...


LabelSource = str | Path | Sequence[str] | Processor | VocabularyTokenizer

_BLANKS = ("<blank>", "<blk>", "<ctc_blank>", "[blank]", "<b>", "<pad>", "[pad]")
_BLANK_SIGNS = ("<eps>", "<epsilon>", "_", "", "-")
"""Names of the blank, by precedence: of ESPnet, icefall, NeMo and transformers; then of Kaldi, DeepSpeech
and, as the first label, torchaudio.
"""
_FORMATS = "labels (text, JSON, .nemo, model_config.yaml, or a Hugging Face folder)"


def labels_of(source: LabelSource) -> LabelList:
    """Read the labels of a CTC model: `CtcDecoder(*labels_of("model.nemo"))`.

    The blank is where its source says, else as in `named_blank`.

    source: names; a Hugging Face processor or tokenizer, whose padding token is the blank; or a path:

    - text: one label a line, or `label id` lines (`tokens.txt` of Kaldi, icefall and sherpa);
    - JSON: a list; {"vocab": [...], "blank": n}; Hugging Face's `vocab.json` or `tokenizer.json`;
    - a folder of a Hugging Face processor or model, with one of these two;
    - NeMo: a `.nemo` file or its `model_config.yaml`; the blank is last.

    Raises:
        OptionError: the file cannot be read, its ids have gaps, or its labels are not those of `Labels`.
    """
    if isinstance(source, Path | str):
        damage = (OSError, KeyError, TypeError, ValueError, RecursionError, tarfile.TarError)
        with expecting(source, _FORMATS, causes=damage):
            listed = _of_path(Path(source))
        try:
            Labels.of(listed.names, listed.blank or 0)
        except OptionError as error:
            raise OptionError(f"{source}: {error}") from error
        return listed
    if isinstance(source, Sequence):
        return LabelList(tuple(source), named_blank(source))
    # Not `isinstance`: from Python 3.12 on it ignores a tokenizer's `__getattr__`.
    tokenizer = cast(VocabularyTokenizer, getattr(source, "tokenizer", None) or source)
    if not hasattr(tokenizer, "get_vocab"):
        raise OptionError(f"labels: expected a path, names or a processor, got {source!r:.60}")
    names = _by_id(tokenizer.get_vocab(), "processor")
    if tokenizer.pad_token_id is None:
        raise OptionError("processor: expected a padding token (the blank), got none")
    return LabelList(names, tokenizer.pad_token_id)


def named_blank(names: Sequence[str]) -> int | None:
    """Return the index of the blank by its name, such as `<blank>`, `<pad>`, `_` or an empty one; or None."""
    folded = [name.lower() for name in names]
    for name in (*_BLANKS, *_BLANK_SIGNS):
        if name in folded and (name != "-" or folded[0] == "-"):
            blank = folded.index(name)
            is_sure = name in _BLANKS or blank == 0
            logger.log(
                logging.INFO if is_sure else logging.WARNING, "blank: label %d (%r)", blank, names[blank]
            )
            return blank
    return None


def _of_path(path: Path) -> LabelList:
    if path.is_dir():
        return _of_folder(path)
    if path.suffix == ".nemo":
        return _of_nemo(path)
    if path.suffix in (".yaml", ".yml"):
        return _of_nemo_config(read_text(path, _FORMATS), str(path))
    if path.suffix == ".json":
        return _of_json(json.loads(read_text(path, _FORMATS)), str(path))
    lines = read_lines(path, _FORMATS)
    numbered = [line.rpartition("\t" if "\t" in line else " ") for line in lines]
    if not lines or not all(gap and number.isdecimal() for _, gap, number in numbered):
        return LabelList(tuple(lines), named_blank(lines))
    ids = {symbol or " ": int(number) for symbol, _, number in numbered if not is_disambiguation(symbol)}
    names = _by_id(ids, str(path))
    return LabelList(names, named_blank(names))


def is_disambiguation(symbol: str) -> bool:
    return symbol[:1] == "#" and symbol[1:].isdecimal()


def _of_json(document: object, name: str) -> LabelList:
    if isinstance(document, list):
        names = tuple(str(label) for label in document)
        return LabelList(names, named_blank(names))
    if not isinstance(document, dict):
        raise ValueError("neither a list nor an object")
    if isinstance(document.get("model"), dict):  # tokenizer.json
        vocabulary = document["model"]["vocab"]
        if isinstance(vocabulary, list):  # of a unigram model: pairs of a piece and its score
            vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
        added = {token["content"]: token["id"] for token in document.get("added_tokens") or ()}
        names = _by_id({**vocabulary, **added}, name)
        return LabelList(names, named_blank(names))
    if isinstance(document.get("vocab"), list):
        names = tuple(str(label) for label in document["vocab"])
        blank = document.get("blank")
        return LabelList(names, named_blank(names) if blank is None else int(blank))
    if not document or not all(type(value) is int for value in document.values()):
        raise ValueError("neither 'vocab' and 'blank', nor a vocabulary of one language, nor a tokenizer")
    names = _by_id(document, name)
    return LabelList(names, named_blank(names))


def _of_folder(folder: Path) -> LabelList:
    documents: dict[str, dict[str, object]] = {}
    for name in ("vocab", "added_tokens", "tokenizer", "tokenizer_config", "special_tokens_map", "config"):
        path = folder / f"{name}.json"
        if path.exists():
            documents[name] = json.loads(read_text(path, "JSON"))
    if "vocab" in documents:
        listed = _of_json({**documents["vocab"], **documents.get("added_tokens", {})}, str(folder))
    elif "tokenizer" in documents:
        listed = _of_json(documents["tokenizer"], str(folder))
    else:
        raise ValueError("a folder without vocab.json and tokenizer.json")
    for name in ("tokenizer_config", "special_tokens_map"):
        pad = documents.get(name, {}).get("pad_token")
        pad = pad.get("content") if isinstance(pad, dict) else pad
        if pad in listed.names:
            return LabelList(listed.names, listed.names.index(str(pad)))
    blank = documents.get("config", {}).get("pad_token_id")
    return LabelList(listed.names, blank) if isinstance(blank, int) else listed


def _of_nemo(path: Path) -> LabelList:
    with tarfile.open(path) as archive:
        members = {Path(each.name).name: each for each in archive.getmembers() if each.isfile()}
        texts = {
            name: decode_text(file.read())
            for name, member in members.items()
            if name.endswith(("model_config.yaml", "tokenizer.vocab", "vocab.txt"))
            and (file := archive.extractfile(member)) is not None
        }
    config = texts.pop("model_config.yaml", None)
    if config is None:
        raise ValueError("an archive without model_config.yaml")
    try:
        return _of_nemo_config(config, f"{path}: model_config.yaml")
    except OptionError:
        # SentencePiece's list of pieces; NeMo's vocab.txt is of a WordPiece tokenizer where there is no list.
        for suffix in ("tokenizer.vocab", "vocab.txt"):
            for name, text in texts.items():
                if name.endswith(suffix):
                    return _with_blank([line.split("\t")[0] for line in text.splitlines()])
        raise


def _of_nemo_config(text: str, name: str) -> LabelList:
    import yaml

    with expecting(name, "YAML", causes=(yaml.YAMLError,)):
        config = yaml.safe_load(text)
    for keys in (("decoder", "vocabulary"), ("aux_ctc", "decoder", "vocabulary"), ("labels",)):
        value = config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, list) and value:
            return _with_blank([str(label) for label in value])
    raise OptionError(f"{name}: expected decoder.vocabulary, aux_ctc.decoder.vocabulary or labels, got none")


def _with_blank(vocabulary: Sequence[str]) -> LabelList:
    return LabelList((*vocabulary, "<blank>"), len(vocabulary))


def _by_id(vocabulary: Mapping[str, int], name: str) -> tuple[str, ...]:
    names = sorted(vocabulary, key=lambda label: vocabulary[label])
    if [vocabulary[label] for label in names] != list(range(len(names))):
        raise OptionError(f"{name}: expected label ids 0 to {len(names) - 1}, each once, got others")
    return tuple(names)
