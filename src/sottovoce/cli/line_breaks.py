"""How subtitles are broken into lines, as it was asked for. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sottovoce.errors import OptionError
from sottovoce.options.needs import times_words
from sottovoce.options.schema import made
from sottovoce.options.writer import WriterOptions


def writer_options(given: Mapping[str, Any]) -> WriterOptions:
    """Read how subtitles are broken into lines.

    Raises: OptionError when that needs word times which are not asked for.
    """
    options = made(WriterOptions, given)
    if options.need_words and not times_words(given):
        raise OptionError("line breaking and highlighting place single words: add --word-timestamps")
    return options
