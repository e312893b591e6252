from __future__ import annotations

import pytest

from sottovoce.errors import LanguageModelError
from sottovoce.lm.grammar import Grammar, endless_rules, left_open


@pytest.mark.parametrize(
    ("text", "endless"),
    [
        ('root ::= "yes" | "no"', set()),
        ('root ::= "and " dead\ndead ::= "x" dead', {"root", "dead"}),
        ('root ::= "and " list\nlist ::= "x" | "x, " list', set()),
        ('root ::= "a" dead?\ndead ::= "x" dead', {"dead"}),
        ('root ::= "a" dead*\ndead ::= "x" dead', {"dead"}),
        ('root ::= "a" dead+\ndead ::= "x" dead', {"root", "dead"}),
        ('root ::= "a" dead{0,3}\ndead ::= "x" dead', {"dead"}),
        ('root ::= "a" dead{1,3}\ndead ::= "x" dead', {"root", "dead"}),
        ('root ::= ("a" | dead) [0-9]+ .\ndead ::= (dead "|")', {"dead"}),
        ('root ::= "dead" # | dead\ndead ::= dead', {"dead"}),
        ('root ::= one | two\none ::= two "x"\ntwo ::= one "y"', {"root", "one", "two"}),
        ('root ::= "a" nowhere', set()),
        ("root ::=", set()),
        ('root ::= "a" |\n  "\\"b" [\\]x"]\nnext ::= root', set()),
    ],
)
def test_rules_that_no_text_ends_in(text: str, endless: set[str]) -> None:
    assert endless_rules(text) == endless


def test_a_grammar_without_end_is_refused() -> None:
    with pytest.raises(LanguageModelError, match="expected a rule 'root' with texts"):
        Grammar('root ::= "and " dead\ndead ::= "x" dead')
    assert Grammar('root ::= "yes"\ndead ::= "x" dead').rule == "root"
    with pytest.raises(LanguageModelError, match="'dead'"):
        Grammar('root ::= "yes"\ndead ::= "x" dead', rule="dead")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('root ::= "a', (1, '"')),
        ('# "\nroot ::= "a" [a-z\n', (2, "[")),
        ('root ::= "a\\" b', (1, '"')),
        ('root ::= "[" [\\]"] # "', None),
        ('root ::= "a" |\n  "b"', None),
    ],
)
def test_what_is_left_open_is_found_in_the_text_as_it_is_written(
    text: str, found: tuple[int, str] | None
) -> None:
    assert left_open(text) == found
    if found:
        with pytest.raises(LanguageModelError, match=f"grammar, line {found[0]}: expected an end"):
            Grammar(text)
