"""Checks of a GBNF grammar's rules: brackets left open, and rules without finite texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

RULE = re.compile(r"^\s*([A-Za-z_][\w-]*)\s*::=", re.MULTILINE)
QUOTED = r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]'
NAME = r"[A-Za-z_][\w-]*"
_COMMENT = re.compile(rf"({QUOTED})|#[^\n]*")
_SYMBOL = re.compile(rf"{QUOTED}|{NAME}|\{{[^}}\n]*\}}|[()|?*+.]")


def left_open(text: str) -> tuple[int, str] | None:
    """Find the first line, counted from 1, that does not close a quotation mark or bracket; return which
    too.
    """
    for number, line in enumerate(text.splitlines(), 1):
        rest = _COMMENT.sub("", line)
        if mark := re.search(r'["\[]', rest):
            return number, mark[0]
    return None


def endless_rules(text: str) -> set[str]:
    """Find the rules of a grammar that no finite text satisfies, as `loop ::= "x" loop`.

    A name without a rule counts as one that can be satisfied: the grammar engine reports it.
    """
    bodies = dict(rules(text))
    ends: set[str] = set()
    while True:
        found = {
            name
            for name, symbols in bodies.items()
            if _RuleReader(symbols, ends | _undefined(symbols, bodies)).choice()
        }
        if found == ends:
            return set(bodies) - ends
        ends = found


def rules(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every rule's name and the symbols of its body."""
    plain = _COMMENT.sub(lambda piece: piece[1] or "", text)
    heads = list(RULE.finditer(plain))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = plain[head.end() : following.start() if following else len(plain)]
        yield head[1], _SYMBOL.findall(body)


def _undefined(symbols: list[str], bodies: dict[str, list[str]]) -> set[str]:
    return {symbol for symbol in symbols if symbol not in bodies}


class _RuleReader:
    """Goes through the body of a rule; ends: the names in which a text can end."""

    def __init__(self, symbols: list[str], ends: set[str]) -> None:
        self._symbols = symbols
        self._ends = ends
        self._at = 0

    def choice(self) -> bool:
        """Whether one of the alternatives ends."""
        can_end = self._sequence()
        while self._next() == "|":
            self._at += 1
            can_end |= self._sequence()
        return can_end

    def _sequence(self) -> bool:
        can_end = True
        while self._next() not in ("", "|", ")"):
            can_end &= self._item()
        return can_end

    def _item(self) -> bool:
        symbol = self._next()
        self._at += 1
        if symbol == "(":
            can_end = self.choice()
            self._at += 1
        else:
            can_end = symbol[0] in '"[.' or symbol in self._ends
        while (sign := self._next()) and (sign in "?*+" or sign[0] == "{"):
            can_end |= sign in "?*" or sign.startswith(("{0", "{,"))
            self._at += 1
        return can_end

    def _next(self) -> str:
        return self._symbols[self._at] if self._at < len(self._symbols) else ""
