"""Options that nothing would look at, given what else was typed: each is an error of one line.

Knows only what was typed; a default, and a value that the command line has no say in, is never wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click
from click.core import ParameterSource

from sottovoce.cli.options import is_file
from sottovoce.cli.parameters import numbers
from sottovoce.errors import OptionError

OF_DRAWS = ("best_of", "seed")
OF_BEAMS = ("beam_size", "patience", "lm", "grammar")
OF_EARLIER_TEXT = ("max_context", "prompt_reset_on_temperature")


def typed_options(context: click.Context) -> frozenset[str]:
    """The parameters whose values stand on the command line."""
    return frozenset(
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )


def check_idle(given: Mapping[str, Any], typed: Collection[str]) -> None:
    """Raises: OptionError for the first option that another one switches off."""
    tried = _temperatures(given)
    _check_search(given, typed, tried)
    _check_earlier_text(given, typed, tried)


def _temperatures(given: Mapping[str, Any]) -> tuple[float, ...]:
    tried = numbers("--temperature", given["temperature"])
    return tried[:1] if given["no_fallback"] else tried


def _check_search(given: Mapping[str, Any], typed: Collection[str], tried: tuple[float, ...]) -> None:
    """What draws alone use, what a beam search alone uses, and what ranks several readings."""
    told = "--no-fallback" if given["no_fallback"] else f"--temperature {given['temperature']}"
    if not any(tried):
        _refuse(OF_DRAWS, typed, f"draws are made at temperatures above 0, got {told}")
    if all(tried):
        asked = [*OF_BEAMS] if given["beam_size"] > 1 else [*OF_BEAMS[1:]]
        asked += ["hotwords"] if is_file(given["hotwords"]) else []
        _refuse(asked, typed, f"the beam search works at temperature 0, got {told}")
    n_draws = given["best_of"] if any(tried) else 1
    if n_draws == 1 and (given["beam_size"] == 1 or all(tried)):
        _refuse(("length_penalty",), typed, "ranks several hypotheses, got one")


def _check_earlier_text(given: Mapping[str, Any], typed: Collection[str], tried: tuple[float, ...]) -> None:
    """How much of earlier text is given, where none of it is."""
    is_initial_cut = given["initial_prompt"] is not None and not given["carry_initial_prompt"]
    if is_initial_cut and given["max_context"] == 0:
        raise OptionError("--initial-prompt: needs --carry-initial-prompt or tokens, got --max-context 0")
    alone = "--no-condition-on-previous-text" if given["no_condition_on_previous_text"] else "--batch-size"
    if given["no_condition_on_previous_text"] or given["batch_size"] > 1:
        asked = OF_EARLIER_TEXT[1:] if is_initial_cut else OF_EARLIER_TEXT
        _refuse(asked, typed, f"earlier text is not given with {alone}")
    if not any(tried):
        _refuse(OF_EARLIER_TEXT[1:], typed, "needs a temperature above 0 to be tried")


def _refuse(names: Collection[str], typed: Collection[str], why: str) -> None:
    for name in names:
        if name in typed:
            raise OptionError(f"--{name.replace('_', '-')}: {why}")
