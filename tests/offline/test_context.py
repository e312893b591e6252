from __future__ import annotations

import pytest

from sottovoce.errors import OptionError
from sottovoce.offline.transcriber import Context
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.for_model(51865, language="en")
INITIAL = tuple(TOKENIZER.encode(" a glossary"))


def context(**options: object) -> Context:
    return Context(TOKENIZER, TranscribeOptions(**options), 448)  # type: ignore[arg-type]


def test_the_prompt_is_what_was_said_last() -> None:
    said = context()
    said.remember(range(300))
    said.end_window(0.0)
    assert said.prompt() == tuple(range(300))[-223:]


def test_a_hot_window_is_forgotten_with_the_initial_prompt() -> None:
    said = context(initial_prompt="a glossary")
    assert said.prompt() == INITIAL
    said.remember([1, 2])
    said.end_window(0.4)
    assert said.prompt() == (*INITIAL, 1, 2)
    said.end_window(0.6)
    assert said.prompt() == ()


def test_the_temperature_that_resets_is_an_option() -> None:
    said = context(prompt_reset_on_temperature=0.3)
    said.remember([1, 2])
    said.end_window(0.4)
    assert said.prompt() == ()


def test_a_carried_prompt_stays() -> None:
    said = context(initial_prompt="a glossary", carry_initial_prompt=True)
    said.remember(range(300))
    assert said.prompt()[: len(INITIAL)] == INITIAL
    assert len(said.prompt()) == 223
    said.end_window(1.0)
    assert said.prompt() == INITIAL


def test_without_conditioning_only_the_first_window_is_prompted() -> None:
    said = context(initial_prompt="a glossary", condition_on_previous_text=False)
    assert said.prompt() == INITIAL
    said.remember([1, 2])
    said.end_window(0.0)
    assert said.prompt() == ()


def test_the_longest_context_is_an_option() -> None:
    """A carried prompt is no part of what was said, and stays."""
    said = context(max_context=2)
    said.remember(range(9))
    assert said.prompt() == (7, 8)
    assert context(max_context=0, initial_prompt="a glossary").prompt() == ()
    carried = context(max_context=1, initial_prompt="a glossary", carry_initial_prompt=True)
    carried.remember(range(9))
    assert carried.prompt() == (*INITIAL, 8)
    with pytest.raises(OptionError, match="max_context: expected at least 0, got -1"):
        context(max_context=-1)


def test_text_that_was_there_before_is_known_whatever_its_signs() -> None:
    said = context()
    said.remember([TOKENIZER.timestamp_begin, *TOKENIZER.encode(" It works, they say. Again?")])
    assert said.holds(" they say!")
    assert said.holds(" It works.")
    assert not said.holds(" it works again")
    assert not said.holds(" say they")
