"""Whisper's tokenizer.

Order of ids: BPE pieces, end of text, start of transcript, languages, translate, transcribe, startoflm,
startofprev, nospeech, notimestamps, then <|0.00|> ... <|30.00|> in steps of 20 ms. Source: openai-whisper
20250625, `whisper/tokenizer.py` (`get_encoding`).
"""

from __future__ import annotations

import binascii
import codecs
import gzip
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.errors import OptionError
from sottovoce.text.languages import UNSPACED, find_language, language_codes
from sottovoce.text.normalize import composed
from sottovoce.types import Task

if TYPE_CHECKING:
    import tiktoken

ASSETS = Path(__file__).parent / "assets"
SECONDS_PER_TIMESTAMP = 0.02
N_TIMESTAMPS = 1501
"""From 0 to 30 s. Source: openai-whisper 20250625, tokenizer.py."""
N_VOCAB_ENGLISH, N_VOCAB_99, N_VOCAB_100 = 51864, 51865, 51866

# GPT-2's rule for cutting text before BPE (tiktoken's r50k pattern).
_PIECES = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Tokens of annotations: speaker tags, brackets, music. Hyphen and apostrophe may stand inside words, so only
# their spaced forms are among them. Source: openai-whisper 20250625, `Tokenizer.non_speech_tokens`.
# fmt: off
NON_SPEECH_TOKENS = (
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 359, 503, 522,
    542, 873, 893, 902, 918, 922, 931, 1350, 1853, 1982, 2460, 2627, 3246, 3253, 3268, 3536, 3846, 3961,
    4183, 4667, 6585, 6647, 7273, 9061, 9383, 10428, 10929, 11938, 12033, 12331, 12562, 13793, 14157,
    14635, 15265, 15618, 16553, 16604, 18362, 18956, 20075, 21675, 22520, 26130, 26161, 26435, 28279,
    29464, 31650, 32302, 32470, 36865, 42863, 47425, 49870, 50254,
)
NON_SPEECH_TOKENS_ENGLISH = (
    1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93, 357, 366, 438,
    532, 685, 705, 796, 930, 1058, 1220, 1267, 1279, 1303, 1343, 1377, 1391, 1635, 1782, 1875, 2162, 2361,
    2488, 3467, 4008, 4211, 4600, 4808, 5299, 5855, 6329, 7203, 9609, 9959, 10563, 10786, 11420, 11709,
    11907, 13163, 13697, 13700, 14808, 15306, 16410, 16791, 17992, 19203, 19510, 20724, 22305, 22935,
    27007, 30109, 30420, 33409, 34949, 40283, 40493, 40549, 47282, 49146,
)
# fmt: on
SPACE = 220

BYTE_COST = 1.01


class PieceTable:
    """A restricted vocabulary: the id of each allowed piece, including all 256 single bytes.

    Prompts of a small model must avoid the rows that it has not trained (`Checkpoint.trained_tokens`).
    """

    def __init__(self, ids: Mapping[bytes, int]) -> None:
        assert all(bytes([value]) in ids for value in range(256))
        self.ids = dict(ids)
        self._longest = max(map(len, ids))

    def cut(self, text: bytes) -> list[int]:
        """Return the ids of the fewest pieces of a UTF-8 text."""
        costs, starts = [0.0], [0]
        for end in range(1, len(text) + 1):
            possible = [s for s in range(max(0, end - self._longest), end) if text[s:end] in self.ids]
            cost, start = min((costs[s] + (BYTE_COST if end - s == 1 else 1.0), s) for s in possible)
            costs.append(cost)
            starts.append(start)
        tokens, end = [], len(text)
        while end:
            tokens.append(self.ids[text[starts[end] : end]])
            end = starts[end]
        return tokens[::-1]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Ids and text of one vocabulary, with the language and task of the next transcript. Immutable.

    n_vocab: rows of the embedding. pieces: the text tokens that `encode` may use; None: all.
    """

    vocabulary: Vocabulary
    n_vocab: int
    language: str | None
    task: Task
    pieces: PieceTable | None = None

    @classmethod
    def for_model(cls, n_vocab: int, *, language: str | None = None, task: Task = "transcribe") -> Tokenizer:
        """Create the tokenizer of a checkpoint.

        n_vocab: 51864 English-only, 51865 with 99 languages, 51866 with 100 (large-v3, turbo). language: code
        or English name; None: to be detected. Raises: OptionError for anything that the model lacks.
        """
        if n_vocab not in (N_VOCAB_ENGLISH, N_VOCAB_99, N_VOCAB_100):
            raise OptionError(
                f"n_vocab: expected 51864, 51865 or 51866 (Whisper's vocabularies), got {n_vocab}"
            )
        tokenizer = cls(_vocabulary(n_vocab), n_vocab, None, "transcribe").with_task(task)
        if not tokenizer.is_multilingual:
            language = language or "en"
        return tokenizer if language is None else tokenizer.with_language(language)

    def with_language(self, language: str) -> Tokenizer:
        """Return this tokenizer for a language. Raises: OptionError if the model lacks it."""
        among = self.language_codes if self.is_multilingual else ("en",)
        return replace(self, language=find_language(language, among))

    def with_task(self, task: Task) -> Tokenizer:
        if task not in ("transcribe", "translate"):
            raise OptionError(f"task: expected 'transcribe' or 'translate', got '{task}'")
        if task == "translate" and not self.is_multilingual:
            raise OptionError("task 'translate': an English-only model can only transcribe")
        return replace(self, task=task)

    def with_pieces(self, trained: Iterable[int]) -> Tokenizer:
        """Return this tokenizer restricted to trained text tokens and single bytes."""
        ids = {self.token_bytes(token): token for token in range(256)}  # single bytes come first
        text = (token for token in trained if token < self.eot)
        return replace(self, pieces=PieceTable(ids | {self.token_bytes(token): token for token in text}))

    @property
    def is_multilingual(self) -> bool:
        return self.n_vocab != N_VOCAB_ENGLISH

    @property
    def language_codes(self) -> tuple[str, ...]:
        return language_codes(self.n_vocab - 51766) if self.is_multilingual else ()

    @property
    def language_tokens(self) -> tuple[int, ...]:
        return tuple(range(self.sot + 1, self.sot + 1 + len(self.language_codes)))

    def language_token(self, language: str) -> int:
        return self.sot + 1 + self.language_codes.index(find_language(language, self.language_codes))

    @property
    def eot(self) -> int:
        """End of text: all lower ids, and no others, are text."""
        return self.vocabulary.n_pieces

    @property
    def sot(self) -> int:
        return self.eot + 1

    @property
    def translate(self) -> int:
        return self.timestamp_begin - 6

    @property
    def transcribe(self) -> int:
        return self.timestamp_begin - 5

    @property
    def sot_lm(self) -> int:
        return self.timestamp_begin - 4

    @property
    def sot_prev(self) -> int:
        return self.timestamp_begin - 3

    @property
    def no_speech(self) -> int:
        return self.timestamp_begin - 2

    @property
    def no_timestamps(self) -> int:
        return self.timestamp_begin - 1

    @property
    def timestamp_begin(self) -> int:
        """Id of <|0.00|>; <|30.00|> is the last id of the vocabulary."""
        return self.n_vocab - N_TIMESTAMPS

    def is_timestamp(self, token: int) -> bool:
        return token >= self.timestamp_begin

    @property
    def sot_sequence(self) -> tuple[int, ...]:
        """The tokens that begin a transcript. Raises: OptionError while the language is unknown."""
        if not self.is_multilingual:
            return (self.sot,)
        if self.language is None:
            raise OptionError("no language: detect it or choose one (with_language) before decoding")
        task = self.transcribe if self.task == "transcribe" else self.translate
        return (self.sot, self.language_token(self.language), task)

    @property
    def sot_sequence_including_notimestamps(self) -> tuple[int, ...]:
        return (*self.sot_sequence, self.no_timestamps)

    @property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """Sorted ids of brackets, tags and music, to suppress."""
        return NON_SPEECH_TOKENS if self.is_multilingual else NON_SPEECH_TOKENS_ENGLISH

    @property
    def blank(self) -> int:
        """The token of a single space."""
        return SPACE

    def encode(self, text: str) -> list[int]:
        """Encode text to ids. Names of special tokens in it ("<|en|>") are ordinary text."""
        tokens = self.vocabulary.encoding.encode_ordinary(text)
        if self.pieces is None:
            return tokens
        return [piece for token in tokens for piece in self.pieces.cut(self.token_bytes(token))]

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a prompt in NFC with a leading space."""
        stripped = composed(text).strip()
        return self.encode(f" {stripped}") if stripped else []

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode the text tokens; broken UTF-8 becomes U+FFFD."""
        eot = self.eot
        return self.decode_with_timestamps(token for token in tokens if token < eot)

    def decode_with_timestamps(self, tokens: Iterable[int]) -> str:
        """Decode all tokens, including special ones and timestamps ("<|1.08|>")."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def token_text(self, token: int) -> str:
        """Decode any one token; U+FFFD for a partial character."""
        return self.decode_with_timestamps((token,))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, which may start or end inside a character."""
        return self.vocabulary[token]

    @property
    def splits_on_spaces(self) -> bool:
        return self.language not in UNSPACED

    def split_to_word_tokens(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Split into words and the tokens of each; into characters in languages without spaces.

        Equal to openai-whisper on valid UTF-8.
        """
        characters = self._split_on_characters(tokens)
        words = self._join_words(characters) if self.splits_on_spaces else characters
        return [word for word, _ in words], [ids for _, ids in words]

    def split_to_characters(self, tokens: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """Split into the shortest runs of characters at which tokens can be cut, and the tokens of each."""
        characters = self._split_on_characters(tokens)
        return [text for text, _ in characters], [ids for _, ids in characters]

    def _split_on_characters(self, tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
        texts = [self.vocabulary.text(token) for token in tokens]
        if None not in texts:
            return [(text or "", [token]) for text, token in zip(texts, tokens, strict=True)]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        runs: list[tuple[str, list[int]]] = []
        text, ids = "", []
        for token in tokens:
            text += decoder.decode(self.token_bytes(token))
            ids.append(token)
            if not decoder.getstate()[0]:
                runs.append((text, ids))
                text, ids = "", []
        if ids:
            runs.append((text + decoder.decode(b"", True), ids))
        return runs

    def ends_within_character(self, tokens: Sequence[int]) -> bool:
        """Return whether more tokens are needed to complete the last character."""
        if None not in map(self.vocabulary.text, tokens):
            return False
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(map(self.token_bytes, tokens)))
        return bool(decoder.getstate()[0])

    def _join_words(self, characters: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
        words: list[tuple[str, list[int]]] = []
        for text, ids in characters:
            if not words or self._begins_word(text, ids[0]):
                words.append((text, list(ids)))
            else:
                words[-1] = (words[-1][0] + text, words[-1][1] + ids)
        return words

    def _begins_word(self, text: str, first: int) -> bool:
        # A substring test, as in OW: "" (white space alone) and "()" count, ".." does not.
        return first >= self.eot or text.startswith(" ") or text.strip() in string.punctuation


class Vocabulary:
    """The tokens of one vocabulary. tiktoken, which encodes text, is loaded when it is first needed.

    n_pieces: BPE pieces, whose ids come before those of the special tokens.
    """

    def __init__(self, n_vocab: int) -> None:
        name = "gpt2" if n_vocab == N_VOCAB_ENGLISH else "multilingual"
        languages = language_codes(99 if n_vocab == N_VOCAB_ENGLISH else n_vocab - 51766)
        self._name = f"whisper-{name}-{len(languages)}"
        self._lines = gzip.decompress((ASSETS / f"{name}.tiktoken.gz").read_bytes()).splitlines()
        self.n_pieces = len(self._lines)
        self._texts: dict[int, str | None] = {}
        self._special = [
            "<|endoftext|>",
            "<|startoftranscript|>",
            *(f"<|{code}|>" for code in languages),
            *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"),
            *("<|nospeech|>", "<|notimestamps|>"),
            *(f"<|{i * SECONDS_PER_TIMESTAMP:.2f}|>" for i in range(N_TIMESTAMPS)),
        ]

    def __getitem__(self, token: int) -> bytes:
        """Return the bytes of a token. Raises: KeyError."""
        if 0 <= token < self.n_pieces:
            return binascii.a2b_base64(self._lines[token].partition(b" ")[0])
        if 0 <= token - self.n_pieces < len(self._special):
            return self._special[token - self.n_pieces].encode()
        raise KeyError(token)

    def text(self, token: int) -> str | None:
        """Return the text of a token, or None if it ends inside a character."""
        try:
            return self._texts[token]
        except KeyError:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(self[token])
            return self._texts.setdefault(token, None if decoder.getstate()[0] else text)

    @cached_property
    def encoding(self) -> tiktoken.Encoding:
        import tiktoken

        return tiktoken.Encoding(
            name=self._name,
            explicit_n_vocab=self.n_pieces + len(self._special),
            pat_str=_PIECES,
            mergeable_ranks={self[token]: token for token in range(self.n_pieces)},
            special_tokens={special: self.n_pieces + i for i, special in enumerate(self._special)},
        )


@cache
def _vocabulary(n_vocab: int) -> Vocabulary:
    return Vocabulary(n_vocab)


@dataclass(frozen=True, slots=True)
class TokenWord:
    text: str
    tokens: tuple[int, ...]
