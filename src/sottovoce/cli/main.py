"""The command `sottovoce`: subcommands loaded when asked for, errors as one line, exit codes.

Exit codes: 0 done, 1 some inputs failed, 2 wrong usage or unreadable input, 130 interrupted.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

import click

from sottovoce.cli.interrupt import Interrupts
from sottovoce.errors import SottovoceError

COMMANDS = {
    "transcribe": ("sottovoce.cli.transcribe", "transcribe", "Transcribe recordings into text files."),
    "stream": ("sottovoce.cli.stream", "stream", "Transcribe live: microphone, standard input, or a file."),
    "detect-language": (
        "sottovoce.cli.detect_language",
        "detect_language",
        "Tell which language is spoken when.",
    ),
    "models": ("sottovoce.cli.models", "models", "List, inspect, fetch and convert models."),
    "ctc": ("sottovoce.cli.ctc", "ctc", "Decode CTC emissions with language models."),
    "eval": ("sottovoce.cli.evaluate", "evaluate", "Measure errors, latency and language over a manifest."),
}
"""Name, then module, attribute and one line of help: nothing heavy is imported to print the help."""


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is invoked, not when it is listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand; a reader that went away (`| head`) is no error, and ends it."""
        try:
            result: object = super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sottovoce")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("-v", "--verbose", count=True, help="Say more on standard error; twice for everything.")
@click.pass_context
def cli(context: click.Context, debug: bool, verbose: int) -> None:
    """Speech into text, live or from files, following the speaker across languages."""
    context.obj = {"debug": debug, "interrupts": context.obj or Interrupts()}
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s %(message)s", stream=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if debug:  # wherever it stands: people add it to the end of a command that failed
        words = ["--debug", *(word for word in words if word != "--debug")]
    else:
        warnings.simplefilter("ignore")
    sys.exit(run(words, debug=debug))


def run(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run the command line; return its exit code."""
    interrupts = Interrupts()
    try:
        with interrupts.handled():
            result = cli.main(list(arguments), prog_name="sottovoce", standalone_mode=False, obj=interrupts)
            interrupts.check()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    except SottovoceError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"error: {error}", err=True)
        return 2
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
