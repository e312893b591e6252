"""The command `sottovoce`.

Exit codes: 0 done, 1 some inputs failed, 2 wrong usage or unreadable input, 130 interrupted, 143 SIGTERM, 129
SIGHUP. Files and pipes get UTF-8 in any locale, a terminal its own encoding.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from sottovoce.cli.invocation import Invocation, say_error, with_common_options
from sottovoce.errors import OutputError, SottovoceError, cause_of, is_out_of_memory

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


COMMANDS = {
    "transcribe": ("transcribe", "transcribe", "Transcribe recordings into text files."),
    "batch": ("batch", "batch", "Transcribe an archive into one table."),
    "stream": ("stream", "stream", "Transcribe live: microphone, standard input, or a file."),
    "detect-language": ("align", "detect_language", "Detect the language, or languages over time."),
    "align": ("align", "align", "Find the times of the words of a text."),
    "find": ("align", "find", "Find a spoken phrase."),
    "convert": ("convert", "convert", "Convert transcripts to other formats."),
    "plot": ("align", "plot", "Draw the spectrogram, words and languages."),
    "karaoke": ("align", "karaoke", "Make a video with highlighted words."),
    "serve": ("serve", "serve", "Serve OpenAI's API, live sockets and a web page."),
    "mcp": ("mcp", "mcp", "Serve an assistant: transcribe, find, listen."),
    "voices": ("models", "voices", "Keep voices by name, which --speakers recognises."),
    "models": ("models", "models", "List, inspect, fetch and convert models."),
    "ctc": ("ctc", "ctc", "Decode CTC emissions with language models."),
    "lm": ("lm", "lm", "Make n-gram models for --lm."),
    "bench": ("bench", "bench", "Measure the speed of models on this machine."),
    "eval": ("evaluate", "evaluate", "Measure errors, latency and language over a manifest."),
}
"""Module, attribute and help line by name."""
EXAMPLES = (
    ("sottovoce talk.mp3", "the text of a recording, as transcribe does"),
    ("sottovoce transcribe film.mkv -o film.srt", "subtitles"),
    ("sottovoce stream --mic", "captions of what is said now"),
    ("sottovoce serve", "captions on a web page"),
    ("sottovoce COMMAND --help", "the options of a command"),
)


class InvocationInterruptedError(Exception):
    """A KeyboardInterrupt for which click prints no empty line."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"sottovoce.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return with_common_options(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Transcribe files, as openai-whisper does, if no command is named."""
        name = args[0]
        if name not in COMMANDS and (os.path.exists(name) or "://" in name or Path(name).suffix):
            args = ["transcribe", *args]
        elif name not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS, n=2)
            raise click.UsageError(f"no command '{name}'{did_you_mean(close)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            result: object = super().invoke(ctx)
        except KeyboardInterrupt:
            raise InvocationInterruptedError from None
        return result

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        with formatter.section("Examples"):
            formatter.write_dl(EXAMPLES, col_max=52)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="sottovoce")
def cli() -> None:
    """Transcribe speech, live or from files, and follow the speaker across languages."""


with_common_options(cli)


def main(arguments: Sequence[str] | None = None) -> None:
    _shorten_spinning()
    prepare_standard_streams()
    code = run(arguments)
    with suppress(OutputError, click.exceptions.Exit):  # reported already, or unreadable
        sys.stdout.flush()
    sys.exit(code)


def _shorten_spinning() -> None:
    """Let PyTorch's threads sleep after 1000 turns of busy waiting: OpenMP's 300,000 slow other programs."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def run(arguments: Sequence[str] | None = None) -> int:
    invocation = Invocation()
    invocation.begin()
    words = None if arguments is None else list(arguments)
    result: object = 0
    try:
        with invocation.interrupts.handled():
            result = cli.main(words, prog_name="sottovoce", standalone_mode=False, obj=invocation)
            invocation.interrupts.check()
            sys.stdout.flush()
    except click.exceptions.Exit:  # the reader of standard output has gone
        pass
    except (InvocationInterruptedError, click.Abort, KeyboardInterrupt):
        click.echo(("\n" if sys.stderr.isatty() else "") + invocation.interrupts.word, err=True)
        return invocation.interrupts.exit_code
    except click.ClickException as error:
        say_usage(error)
        return 2
    except (SottovoceError, MemoryError, RuntimeError) as error:
        if not isinstance(error, SottovoceError) and not is_out_of_memory(error):
            raise
        if invocation.debug:
            traceback.print_exc()
        is_ours = isinstance(error, SottovoceError)
        too_large = "out of memory: try a smaller model, batch or beam"
        say_error(invocation.line_of(error) if is_ours else too_large)
        return 2
    return (result if isinstance(result, int) else 0) or int(invocation.has_failed)


def did_you_mean(names: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(names)}?" if names else ""


def say_usage(error: click.ClickException) -> None:
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        names = [name for param in error.ctx.command.get_params(error.ctx) for name in param.opts]
        longer = [name for name in names if name.startswith(error.option_name)]
        close = difflib.get_close_matches(error.option_name, names, n=2)
        error = click.UsageError(
            f"no option {error.option_name}{did_you_mean(sorted(longer, key=len)[:2] or close)}", error.ctx
        )
    elif isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        metavar = error.param.make_metavar(error.ctx) if error.ctx else error.param.name
        hint = ", or - for standard input" if error.param.metavar == "FILE…" else ""
        error = click.UsageError(f"expected {metavar}{hint}", error.ctx)
    if not isinstance(error, click.UsageError) or error.ctx is None:
        say_error(error.format_message())
    elif type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        say_error(f"{error.format_message().rstrip('.')} (see '{error.ctx.command_path} --help')")


def prepare_standard_streams() -> None:
    if sys.stdin is None:
        _occupy(0, os.O_WRONLY)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _guarded(sys.stdout, 1, os.O_RDONLY)
    sys.stderr = _guarded(sys.stderr, 2, os.O_WRONLY)


def _occupy(descriptor: int, flags: int) -> None:
    """Open nothing, for the opposite use, as a closed descriptor: no opened file may take it.

    Source: `stdopen` of GNU coreutils.
    """
    null = os.open(os.devnull, flags)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)


def _guarded(stream: TextIO | None, descriptor: int, flags: int) -> TextIO:
    if stream is None:
        _occupy(descriptor, flags)
    is_terminal = stream is not None and stream.isatty()
    if stream is not None and is_terminal and sys.platform == "win32":  # a console has its own calls
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(GuardedOutput(descriptor, "w", closefd=False)),
        encoding=stream.encoding if stream is not None and is_terminal else "utf-8",
        errors="backslashreplace",
        line_buffering=is_terminal or descriptor == 2,
    )


class GuardedOutput(io.FileIO):
    """Raises one error for standard output; if the reader has gone (`| head`), the call ends without one.

    Errors of standard error are ignored.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.fileno() == 2:
                return memoryview(data).nbytes
            _occupy(self.fileno(), os.O_WRONLY)  # buffered output would fail again at exit
            if isinstance(error, BrokenPipeError):
                raise click.exceptions.Exit(0) from None
            raise OutputError(f"standard output: cannot be written ({cause_of(error)})") from error
