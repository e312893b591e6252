"""The command `sottovoce`: subcommands loaded when asked for, errors as one line, exit codes.

Exit codes: 0 done, 1 some inputs failed, 2 wrong usage or unreadable input, 130 interrupted, 143 and 129
ended by SIGTERM and SIGHUP.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click

from sottovoce.cli.call import Call, say_error, with_call_options
from sottovoce.cli.each_file import is_out_of_memory
from sottovoce.cli.standard_streams import prepare_standard_streams
from sottovoce.errors import OutputError, SottovoceError

COMMANDS = {
    "transcribe": ("sottovoce.cli.transcribe", "transcribe", "Transcribe recordings into text files."),
    "batch": ("sottovoce.cli.batch", "batch", "Transcribe an archive into one table."),
    "stream": ("sottovoce.cli.stream", "stream", "Transcribe live: microphone, standard input, or a file."),
    "detect-language": (
        "sottovoce.cli.detect_language",
        "detect_language",
        "Tell which language is spoken when.",
    ),
    "align": ("sottovoce.cli.align", "align", "Find when the words of a text are said."),
    "find": ("sottovoce.cli.find", "find", "Find where a phrase is said."),
    "convert": ("sottovoce.cli.convert", "convert", "Write finished transcripts in other formats."),
    "plot": ("sottovoce.cli.plot", "plot", "Draw what is heard in a recording."),
    "karaoke": ("sottovoce.cli.karaoke", "karaoke", "Make a video whose words are lit as they are said."),
    "serve": ("sottovoce.cli.serve", "serve", "Serve OpenAI's API, live sockets and a web page."),
    "models": ("sottovoce.cli.models", "models", "List, inspect, fetch and convert models."),
    "ctc": ("sottovoce.cli.ctc", "ctc", "Decode CTC emissions with language models."),
    "bench": ("sottovoce.cli.bench", "bench", "Measure how fast models are on this machine."),
    "eval": ("sottovoce.cli.evaluate", "evaluate", "Measure errors, latency and language over a manifest."),
}
"""Name, then module, attribute and one line of help: nothing heavy is imported to print the help."""


class CallInterruptedError(Exception):
    """A KeyboardInterrupt that click need not print an empty line for."""


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
        return with_call_options(command)

    def invoke(self, ctx: click.Context) -> object:
        try:
            result: object = super().invoke(ctx)
        except KeyboardInterrupt:
            raise CallInterruptedError from None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="sottovoce")
def cli() -> None:
    """Speech into text, live or from files, following the speaker across languages."""


with_call_options(cli)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    _shorten_spinning()
    prepare_standard_streams()
    code = run(arguments)
    with suppress(OutputError, click.exceptions.Exit):  # said already, or nobody is left to read it
        sys.stdout.flush()
    sys.exit(code)


def _shorten_spinning() -> None:
    """Let threads of PyTorch in this process, and in those that it starts, sleep after 1000 turns of waiting.

    OpenMP's own 300,000 turns take the processor from other programs (docs/figures/serving.md). PyTorch reads
    the variable when it is loaded. Nothing changes where the environment says how to wait.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, that of the process when None; return its exit code."""
    call = Call()
    call.begin()
    words = None if arguments is None else list(arguments)
    try:
        with call.interrupts.handled():
            result = cli.main(words, prog_name="sottovoce", standalone_mode=False, obj=call)
            call.interrupts.check()
            sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (CallInterruptedError, click.Abort, KeyboardInterrupt):
        click.echo(("\n" if sys.stderr.isatty() else "") + call.interrupts.word, err=True)
        return call.interrupts.exit_code
    except click.ClickException as error:
        say_usage(error)
        return 2
    except (SottovoceError, MemoryError, RuntimeError) as error:
        if not isinstance(error, SottovoceError) and not is_out_of_memory(error):
            raise
        if call.debug:
            traceback.print_exc()
        say_error(str(error) if isinstance(error, SottovoceError) else "memory ran out: try a smaller model")
        return 2
    return result if isinstance(result, int) else 0


def say_usage(error: click.ClickException) -> None:
    """Write one line on what is wrong with the words given; a group without a command shows its help."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        say_error(error.format_message())
    elif type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        say_error(f"{error.format_message().rstrip('.')} (see '{error.ctx.command_path} --help')")


if __name__ == "__main__":
    main()
