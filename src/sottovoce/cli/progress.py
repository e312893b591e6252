"""The inputs of a call, one after the other, with progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sottovoce.cli.invocation import Invocation, invocation_of, one_line
from sottovoce.cli.options import ModelOptions, open_model
from sottovoce.errors import AudioError, OutputError, SottovoceError, cause_of, is_out_of_memory
from sottovoce.formats.pages import clock
from sottovoce.options.schema import from_values
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Segment

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, TaskID

    from sottovoce.audio.io import AudioInfo, Source
    from sottovoce.recogniser import Recogniser


def with_model(
    context: click.Context,
    names: Sequence[str],
    work: Callable[[Recogniser, Source], None],
    *,
    check: Callable[[], None] | None = None,
    quiet: bool = False,
) -> int:
    """Process recordings with a model, loaded if one of them can be read. Return the exit code.

    check: of this machine, after the inputs and before the model is loaded.
    """
    from sottovoce.audio.io import Source

    invocation = invocation_of(context)
    reading = from_values(
        TranscribeOptions, {key: context.params.get(key) for key in ("audio_track", "input_format")}
    )
    headers = read_headers(names, invocation, reading)
    readable = [name for name in names if name in headers]
    if not readable:
        return exit_code(len(names), len(names))
    if check is not None:
        check()
    model = open_model(from_values(ModelOptions, context.params))
    return for_each_file(
        readable,
        lambda name: work(model, Source.of(name, reading)),
        invocation=invocation,
        progress=Progress(len(readable), quiet=quiet),
        n_refused=len(names) - len(readable),
    )


def read_headers(
    names: Sequence[str], invocation: Invocation, options: TranscribeOptions | None = None
) -> Mapping[str, AudioInfo | None]:
    """Read the headers of recordings (None: a pipe). An unreadable one is an error line, and left out."""
    from sottovoce.audio.io import Source, is_pipe, probe_audio

    progress = Progress(len(names))
    headers: dict[str, AudioInfo | None] = {}
    for name in dict.fromkeys(names):
        try:
            headers[name] = None if is_pipe(name) else probe_audio(Source.of(name, options))
        except AudioError as error:
            progress.failed(invocation.line_of(error), invocation.trace())
            invocation.has_failed = True
    return headers


def for_each_file(
    files: Sequence[str],
    work: Callable[[str], None],
    *,
    invocation: Invocation,
    progress: Progress | None = None,
    advice: str = "a smaller --model",
    n_refused: int = 0,
    n_skipped: int = 0,
) -> int:
    """Process every file; a failure is one line. Return the exit code.

    advice: for a lack of memory. n_refused, n_skipped: unreadable inputs, and those already done.
    """
    n_failed = 0
    progress = progress or Progress(len(files))
    with progress.bar:
        for name in files:
            progress.begin(name)
            try:
                work(name)
            except (OutputError, click.exceptions.Exit):
                raise
            except Exception as error:
                progress.failed(failure_line(error, name, advice, invocation), invocation.trace())
                invocation.has_failed = True
                n_failed += 1
                if "torch" in sys.modules:  # else nothing was allocated
                    from sottovoce.models.devices import empty_cache

                    empty_cache()
            progress.end()
            progress.n_ended += 1
    n_failed, n_inputs = n_failed + n_refused, len(files) + n_refused + n_skipped
    if n_failed and len(files) > 1:  # else the error is the last line anyway
        progress.note(f"{n_failed} of {n_inputs} failed (above)")
    return exit_code(n_failed, n_inputs)


def exit_code(n_failed: int, n_inputs: int) -> int:
    if not n_failed:
        return 0
    return 2 if n_failed == n_inputs else 1


def failure_line(error: Exception, name: str, advice: str, invocation: Invocation) -> str:
    if is_out_of_memory(error):
        return f"input '{name}': memory ran out; try {advice}"
    if isinstance(error, SottovoceError):
        return invocation.line_of(error)
    kind = type(error).__name__
    return f"input '{name}': failed with {kind}: {cause_of(error)}; --debug shows where"


def progress_bar(*columns: ProgressColumn, auto_refresh: bool = True) -> RichProgress:
    """Make a bar for a terminal, and none for a pipe. columns: none are rich's default ones."""
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    disable = not sys.stderr.isatty()  # with FORCE_COLOR rich treats a pipe as a terminal
    console = Console(stderr=True, highlight=False)
    return RichProgress(
        *columns,
        console=console,
        disable=disable,
        transient=True,
        auto_refresh=auto_refresh,
        redirect_stdout=sys.stdout.isatty(),  # else the bar's terminal would get what is for a file or pipe
    )


class Progress:
    """Progress over the files of a call. quiet: no bar."""

    def __init__(self, n_files: int, *, quiet: bool = False) -> None:
        is_terminal = sys.stderr.isatty()
        self._bar = file_bar() if is_terminal and not quiet else None
        self._has_headings = quiet and is_terminal and n_files > 1
        self._n_files = n_files
        self._n_begun = 0
        self.n_ended = 0
        self._task: TaskID | None = None

    @property
    def bar(self) -> AbstractContextManager[object]:
        """A context manager that shows the bar on a terminal."""
        return self._bar or nullcontext()

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console  # takes longer to import than a pipe needs

        return self._bar.console if self._bar else Console(stderr=True, highlight=False)

    def _print(self, markup: str, text: str) -> None:
        from rich.markup import escape

        self._console.print(markup.format(escape(one_line(text))), soft_wrap=True)

    def begin(self, name: str) -> None:
        self._n_begun += 1
        heading = name + (f" ({self._n_begun} of {self._n_files})" if self._n_files > 1 else "")
        if self._has_headings:
            self._print("[bold]{}[/bold]", heading)
        if self._bar:
            from rich.markup import escape

            self._task = self._bar.add_task(escape(one_line(heading)), total=None, at="0:00")

    def segment(self, segment: Segment, position_s: float, duration_s: float | None) -> None:
        if self._bar and self._task is not None:
            done = max(segment.end, position_s)
            self._bar.update(self._task, completed=done, total=duration_s, at=clock(done))

    def end(self) -> None:
        if self._bar and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def failed(self, message: str, trace: str | None) -> None:
        self.end()
        if trace is not None:
            self._console.print(trace, markup=False, soft_wrap=True)
        self._print("[red]error:[/red] {}", message)

    def written(self, places: Sequence[Path | str]) -> None:
        """Say on a terminal where the documents are."""
        names = ", ".join(str(place) for place in places if isinstance(place, Path))
        if names and sys.stderr.isatty():
            self._print("[green]→[/green] {}", names)

    def note(self, message: str) -> None:
        self._print("[yellow]note:[/yellow] {}", message)


def file_bar() -> RichProgress:
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    label, at = TextColumn("[bold]{task.description}"), TextColumn("{task.fields[at]}")
    return progress_bar(label, BarColumn(), at, TimeRemainingColumn())
