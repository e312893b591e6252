"""Grammars in a search: text has the form of a GBNF file, or is penalised.

GBNF is the notation of llama.cpp and whisper.cpp. `llguidance` computes the tokens that may follow a prefix.
States are numbers of prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, MissingExtraError, OptionError
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
    endless = set(bodies)
    while True:
        found = {name for name in endless if not _can_end(bodies[name], endless)}
        if found == endless:
            return found
        endless = found


def _can_end(symbols: list[str], endless: set[str]) -> bool:
    signs = (
        ("?" if symbol[1] in "0," else "")
        if symbol[0] == "{"
        else symbol
        if symbol in "()|?*+"
        else "F"
        if symbol in endless
        else "T"
        for symbol in symbols
    )
    body, reduced = "", f"({''.join(signs).replace('+', '')})"
    while body != reduced:
        body = reduced
        optional = re.sub("[TF][?*]+", "T", body)
        reduced = re.sub(
            r"\(([TF|]*)\)", lambda group: "FT"[any("F" not in way for way in group[1].split("|"))], optional
        )
    return body != "F"


START, BROKEN = 0, -1
"""The empty prefix, and one outside the grammar, after which nothing is penalised."""
CACHE_SIZE = 4096
"""Prefixes whose place in the grammar is kept."""
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
        if found := left_open(self.text):
            raise LanguageModelError(f"grammar, line {found[0]}: expected an end of what {found[1]} begins")
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
    """A grammar as a language model over text tokens; states are (N,) int64. Text may be empty.

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
        device: torch.device | None = None,
    ) -> None:
        if penalty is not None and not 0 <= penalty < float("inf"):
            raise OptionError(f"grammar penalty: expected 0 or more, got {penalty}")
        self._n_tokens = len(token_bytes)
        self._refused = -float("inf") if penalty is None else -penalty
        self._device = device or torch.device("cpu")
        self._first = _matcher(grammar, token_bytes, encode)
        self._prefixes: list[tuple[int, int]] = [(BROKEN, BROKEN)]
        """The prefix before each, and its last token."""
        self._numbers: dict[tuple[int, int], int] = {}
        self._place = lru_cache(CACHE_SIZE)(self._make_place)
        self._row = lru_cache(64)(self._make_row)
        if not self._allows_something(token_bytes):
            raise LanguageModelError("grammar: expected one with texts, got one that allows nothing")

    @property
    def n_tokens(self) -> int:
        return self._n_tokens

    def start(self, n: int) -> Tensor:
        if len(self._prefixes) > CACHE_SIZE:  # a new search: prefixes of the old one are not continued
            self._prefixes = self._prefixes[:1]
            self._numbers.clear()
            self._place.cache_clear()
            self._row.cache_clear()
        return torch.full((n,), START, dtype=torch.int64, device=self._device)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        before = states.tolist()
        if tokens is None:
            return torch.stack([self._row(state) for state in before]).to(states.device), states
        new = tokens.tolist()
        scores = [float(self._row(state)[token]) for state, token in zip(before, new, strict=True)]
        after = [
            self._after(state, token) if score == 0 and state != BROKEN else BROKEN
            for state, token, score in zip(before, new, scores, strict=True)
        ]
        return torch.tensor(scores, device=states.device), torch.tensor(after, device=states.device)

    def finish(self, states: Tensor) -> Tensor:
        """Return the scores (N,) of ending: 0 after complete or no text, else the penalty."""
        ends = [
            0.0 if state in (START, BROKEN) or self._place(state).is_accepting() else self._refused
            for state in states.tolist()
        ]
        return torch.tensor(ends, device=states.device)

    def _allows_something(self, token_bytes: Sequence[bytes]) -> bool:
        firsts = (self._row(START) == 0).nonzero()[:, 0].tolist()
        if firsts and all(token_bytes[token] == b" " for token in firsts):
            return bool((self._row(self._after(START, firsts[0])) == 0).any())
        return bool(firsts)

    def _make_row(self, state: int) -> Tensor:
        if state == BROKEN:
            return torch.zeros(self._n_tokens)
        packed = np.frombuffer(self._place(state).compute_bitmask(), np.uint8)
        allowed = np.unpackbits(packed, bitorder="little")[: self._n_tokens].astype(bool)
        return torch.where(torch.from_numpy(allowed), 0.0, self._refused)

    def _after(self, state: int, token: int) -> int:
        number = self._numbers.get((state, token))
        if number is None:
            number = self._numbers[state, token] = len(self._prefixes)
            self._prefixes.append((state, token))
        return number

    def _make_place(self, state: int) -> LLMatcher:
        """Return the matcher after a prefix, which must not be advanced."""
        if state == START:
            return self._first
        before, token = self._prefixes[state]
        place = self._place(before).deep_copy()
        place.consume_token(token)
        return place


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
    try:
        from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
        from llguidance.gbnf_to_lark import gbnf_to_lark
    except ImportError:
        raise MissingExtraError("llguidance", "grammar", "a grammar") from None
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
