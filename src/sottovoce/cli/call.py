"""What holds for a whole call of the command, whichever the subcommand: how much to say, and interrupts."""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from dataclasses import dataclass, field

import click

from sottovoce.cli.interrupt import Interrupts

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


@dataclass(slots=True)
class Call:
    """debug: show tracebacks, and warnings of libraries. verbosity: how often `-v` was given."""

    debug: bool = False
    verbosity: int = 0
    interrupts: Interrupts = field(default_factory=Interrupts)

    def begin(self) -> None:
        """Say little, until options ask for more."""
        warnings.simplefilter("ignore")
        logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
        logging.getLogger().setLevel(logging.WARNING)

    def more_verbose(self, times: int) -> None:
        self.verbosity += times
        logging.getLogger().setLevel(LEVELS[min(self.verbosity, 2)])

    def show_debugging(self) -> None:
        self.debug = True
        warnings.simplefilter("default")

    def trace(self) -> str | None:
        """Write the traceback of the error at hand; None where it is not to be shown."""
        return traceback.format_exc() if self.debug else None


def this_call(context: click.Context) -> Call:
    """Return the call that a subcommand runs in."""
    call = context.find_object(Call)
    assert call is not None, "the command line is run by sottovoce.cli.main.run"
    return call


def _verbose(context: click.Context, _: click.Parameter, value: int) -> None:
    if value:
        this_call(context).more_verbose(value)


def _debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        this_call(context).show_debugging()


def with_call_options(command: click.Command) -> click.Command:
    """Let a command, and all below it, know `-v` and `--debug`: people add them where they stand."""
    if isinstance(command, click.Group):
        for child in command.commands.values():
            with_call_options(child)
    if all(param.name != "verbose" for param in command.params):
        command.params += [
            click.Option(
                ["-v", "--verbose"],
                count=True,
                expose_value=False,
                callback=_verbose,
                help="Say more on standard error; twice for everything.",
            ),
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                callback=_debug,
                help="Show the traceback of an error.",
            ),
        ]
    return command


def one_line(message: str) -> str:
    """Strip line breaks and control characters, which names of files may hold, from a message."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)


def say_error(message: str) -> None:
    """Write one line on standard error."""
    click.echo(f"error: {one_line(message)}", err=True)
