"""What `sottovoce transcribe` was called with, as the options of the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from sottovoce.cli.flags import check_needs, read_values
from sottovoce.cli.options import hotword_text
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.speakers import speakers_of
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.needs import temperatures
from sottovoce.options.schema import Values, made, options_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import WINDOW_VAD, VadOptions
from sottovoce.text.disfluency import check_cleanable, check_verbatim
from sottovoce.text.languages import LanguageChoice, language_codes


def read_call(given: Mapping[str, Any]) -> Values:
    """Read the values of all options by key, with the mode that they imply.

    Raises: OptionError.
    """
    values = read_values(given)
    implies_vad = values["batch_size"] > 1 or values["channels"] == "apart" or _vad(values) is not None
    return {**values, "mode": "vad" if implies_vad else values["mode"] or "seek"}


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """Make the options of the library from those of the command line.

    Raises: OptionError.
    """
    values = read_call(given)
    _check_style(values)
    return made(
        TranscribeOptions,
        values,
        decoding=made(DecodingOptions, values, hotwords=hotword_text(given), task="transcribe"),
        fallback=made(FallbackOptions, values, temperatures=temperatures(values)),
        vad=_vad(values),
        speakers=speakers_of(given),
    )


def _vad(values: Values) -> VadOptions | None:
    """How to find speech; None where no option says anything about it."""
    given = {one.field: values[one.key] for one in options_of(VadOptions) if values.get(one.key) is not None}
    return replace(WINDOW_VAD, **given) if given else None


def _check_style(values: Values) -> None:
    """Raises: OptionError for both styles at once, and for a language in which one was not checked."""
    if values["verbatim"] and values["clean"]:
        raise OptionError("--verbatim: keeps what --clean takes out; expected one of them")
    language = LanguageChoice.parse(values["language"], language_codes()).fixed
    if language is None or values["task"] == "translate":
        return
    if values["verbatim"]:
        check_verbatim(language)
    if values["clean"]:
        check_cleanable(language)


def typed_options(context: click.Context) -> frozenset[str]:
    """Return the parameters whose values stand on the command line."""
    return frozenset(
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )


def check_idle(context: click.Context) -> None:
    """Look at the options of a command that were typed.

    Raises: OptionError for the first one that nothing would use, or that excludes another.
    """
    command = context.command
    assert isinstance(command, SectionedCommand)
    check_needs(read_call(context.params), typed_options(context), command.declared)
