"""Options that nothing would use, or that exclude each other: each is an error of one line.

What an option needs stands with it (`options.schema.Need`). What was not typed is never wrong.
"""

from __future__ import annotations

import click
from click.core import ParameterSource

from sottovoce.cli.flags import check_needs
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.transcribe_request import read_call


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
