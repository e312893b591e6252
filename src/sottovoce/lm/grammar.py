"""Grammars in a search: text has the form of a GBNF file, or is penalised.

GBNF is the notation of llama.cpp and whisper.cpp. `llguidance` computes the tokens that may follow a prefix.
A state is the prefix itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.errors import LanguageModelError, OptionError, needs
from sottovoce.lm.base import Floats, Ints
from sottovoce.text.files import read_text
from sottovoce.text.normalize import composed

if TYPE_CHECKING:
    from llguidance import LLMatcher

RULE = re.compile(r"^\s*([A-Za-z_][\w-]*)\s*::=", re.MULTILINE)
QUOTED = r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]'
NAME = r"[A-Za-z_][\w-]*"
_COMMENT = re.compile(rf"({QUOTED})|#[^\n]*")
_SYMBOL = re.compile(rf"{QUOTED}|{NAME}|\{{[^}}\n]*\}}|[()|?*+.]")


def left_open(text: str) -> tuple[int, str] | None:
    """Return the first line, from 1, with an open quotation mark or bracket, and which."""
    for number, line in enumerate(text.splitlines(), 1):
        rest = _COMMENT.sub("", line)
        if mark := re.search(r'["\[]', rest):
            return number, mark[0]
    return None


def endless_rules(text: str) -> set[str]:
    """Return the rules that no finite text satisfies, such as `loop ::= "x" loop`; undefined names do."""
    plain = _COMMENT.sub(lambda piece: piece[1] or "", text)
    _, *parts = RULE.split(plain)
    bodies = {name: _SYMBOL.findall(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    before: set[str] = set()
    endless = set(bodies)
    while endless != before:
        before, endless = endless, {name for name in endless if not _can_end(bodies[name], endless)}
    return endless


def _can_end(symbols: list[str], endless: set[str]) -> bool:
    """Match a rule as a regular expression in which endless rules fail and all other symbols are empty."""
    empty = ("(?!)" if each in endless else each if each[0] in "()|?*+{" else "()" for each in symbols)
    try:
        return re.match("".join(empty), "") is not None
    except re.error:  # no GBNF
        return True


BROKEN, SKIPPED = -1, -2
"""In a state instead of tokens: the end of what the grammar allows, after which nothing is penalised, and a
token that is no text.
"""
CACHE_SIZE = 4096
"""Prefixes whose matchers are kept, to save time alone."""
_PIECE = re.compile(rf"{QUOTED}|#[^\n]*|{NAME}")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A GBNF grammar. rule: of an utterance, which may begin with an additional space.

    Raises:
        LanguageModelError: the text is no grammar, or has no such rule.
    """

    text: str
    rule: str = "root"

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", composed(self.text))  # as Whisper writes
        rules = RULE.findall(self.text)
        if not rules:
            raise LanguageModelError('grammar: expected rules such as root ::= "yes" | "no", got none')
        if self.rule not in rules:
            present = ", ".join(dict.fromkeys(rules))[:200]
            raise LanguageModelError(f"grammar: expected a rule '{self.rule}', got {present}")
        if opened := left_open(self.text):
            raise LanguageModelError(f"grammar, line {opened[0]}: expected an end of what {opened[1]} begins")
        if self.rule in endless_rules(self.text):
            raise LanguageModelError(
                f"grammar: expected a rule '{self.rule}' with texts, got one that allows nothing"
            )

    @classmethod
    def read(cls, path: str | Path, rule: str = "root") -> Grammar:
        """Read a file. Raises: LanguageModelError: it cannot be read, and as the class."""
        return cls(read_text(path, "a grammar", LanguageModelError), rule)

    @property
    def whisper_text(self) -> str:
        """The grammar after an optional space, as Whisper's words begin with one."""
        body = _PIECE.sub(lambda piece: "the-root" if piece[0] == "root" else piece[0], self.text)
        rule = "the-root" if self.rule == "root" else self.rule
        return f'root ::= " "? {rule}\n{body}\n'


class GrammarModel:
    """A grammar as a language model over text tokens. Text may be empty.

    States (N, L) int64 are the L tokens so far, with `BROKEN` and `SKIPPED`.

    token_bytes: of every token. encode: for text that the grammar forces. penalty: cost of a token that the
    grammar does not allow (nats); None: forbidden.

    Raises:
        MissingExtraError: without llguidance.
        LanguageModelError: a grammar that is invalid or cannot be satisfied.
        OptionError: a penalty below 0.
    """

    def __init__(
        self,
        grammar: Grammar,
        token_bytes: Sequence[bytes],
        encode: Callable[[str], list[int]],
        *,
        penalty: float | None = None,
    ) -> None:
        if penalty is not None and not 0 <= penalty < float("inf"):
            raise OptionError(f"grammar penalty: expected 0 or more, got {penalty}")
        self._n_tokens = len(token_bytes)
        self._refused = -float("inf") if penalty is None else -penalty
        self._first = _matcher(grammar, token_bytes, encode)
        self._matchers: dict[tuple[int, ...], LLMatcher] = {(): self._first}
        self._row = lru_cache(64)(self._make_row)
        if not self._allows_something(token_bytes):
            raise LanguageModelError("grammar: expected one with texts, got one that allows nothing")

    @property
    def n_tokens(self) -> int:
        return self._n_tokens

    def start(self, n: int) -> Ints:
        return np.empty((n, 0), np.int64)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        """Score as `LanguageModel.score`; the states after tokens are (N, L + 1)."""
        prefixes = _prefixes(states)
        if tokens is None:
            return np.stack([self._row(prefix) for prefix in prefixes]), states
        rows = zip(prefixes, tokens.tolist(), strict=True)
        scores = np.array([self._row(prefix)[token] for prefix, token in rows], np.float32)
        return scores, np.column_stack((states, np.where(scores != 0, BROKEN, tokens)))

    def finish(self, states: Ints) -> Floats:
        """Return the scores (N,) of ending: 0 after complete or no text, else the penalty."""
        ends = [
            0.0 if not prefix or self._matcher(prefix).is_accepting() else self._refused
            for prefix in _prefixes(states)
        ]
        return np.array(ends, np.float32)

    def _allows_something(self, token_bytes: Sequence[bytes]) -> bool:
        firsts = np.flatnonzero(self._row(()) == 0).tolist()
        if firsts and all(token_bytes[token] == b" " for token in firsts):
            return bool((self._row((firsts[0],)) == 0).any())
        return bool(firsts)

    def _make_row(self, prefix: tuple[int, ...] | None) -> Floats:
        if prefix is None:
            return np.zeros(self._n_tokens, np.float32)
        packed = np.frombuffer(self._matcher(prefix).compute_bitmask(), np.uint8)
        is_allowed = np.unpackbits(packed, bitorder="little")[: self._n_tokens].astype(bool)
        return np.where(is_allowed, np.float32(0), np.float32(self._refused))

    def _matcher(self, prefix: tuple[int, ...]) -> LLMatcher:
        """Return the matcher after a prefix, which must not be advanced."""
        matchers = self._matchers
        if prefix not in matchers:
            before = matchers.get(prefix[:-1])
            matcher = (before or self._first).deep_copy()
            matcher.consume_tokens(list(prefix if before is None else prefix[-1:]))
            if len(matchers) >= CACHE_SIZE:
                self._matchers = matchers = {(): self._first}
            matchers[prefix] = matcher
        return matchers[prefix]


def _prefixes(states: Ints) -> list[tuple[int, ...] | None]:
    """Return the tokens of states (N, L); None after the end of what the grammar allows."""
    rows = states.tolist()
    return [None if BROKEN in row else tuple(token for token in row if token != SKIPPED) for row in rows]


class _Tokens:
    bos_token_id = None

    def __init__(self, token_bytes: Sequence[bytes], encode: Callable[[str], list[int]]) -> None:
        self.tokens = [*token_bytes, b"<|endoftext|>"]
        self.eos_token_id = len(token_bytes)
        self.special_token_ids = [self.eos_token_id]
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace"))


def _matcher(grammar: Grammar, token_bytes: Sequence[bytes], encode: Callable[[str], list[int]]) -> LLMatcher:
    with needs("llguidance", "grammar", "a grammar"):
        from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
        from llguidance.gbnf_to_lark import gbnf_to_lark
    try:
        lark = gbnf_to_lark(grammar.whisper_text)
    except Exception as error:  # its errors have no common base but this
        raise LanguageModelError(f"grammar: expected GBNF ({_first_line(str(error))})") from error
    tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(token_bytes, encode)))
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
    if matcher.is_error():
        raise LanguageModelError(f"grammar: expected GBNF ({_first_line(matcher.get_error())})")
    return matcher


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
