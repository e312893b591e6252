"""What a person sees while files are worked on: a bar on a terminal, one line per error, else nothing.

Everything here goes to standard error, and the text of the transcript never does.
"""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from sottovoce.cli.call import one_line
from sottovoce.types import Segment


class Progress:
    """Progress over the files of a call; a context manager.

    quiet: the transcript itself is shown on the terminal, so no bar is drawn over it; of several files, a
    line tells which one begins.
    """

    def __init__(self, n_files: int, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False)
        is_terminal = sys.stderr.isatty()  # FORCE_COLOR makes rich take a pipe for one
        self._bar = RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[at]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or not is_terminal,
            transient=True,
        )
        self._has_headings = quiet and is_terminal and n_files > 1
        self._n_files = n_files
        self._n_begun = 0
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, name: str) -> None:
        """Show that a file begins."""
        self._n_begun += 1
        count = f" ({self._n_begun} of {self._n_files})" if self._n_files > 1 else ""
        heading = escape(one_line(name) + count)
        if self._has_headings:
            self._console.print(f"[bold]{heading}[/bold]", soft_wrap=True)
        self._task = self._bar.add_task(heading, total=None, at="0:00")

    def segment(self, segment: Segment, position_s: float, duration_s: float | None) -> None:
        """Show that a segment came; all before position_s is done, of duration_s if that is known."""
        if self._task is not None:
            done = max(segment.end, position_s)
            self._bar.update(self._task, completed=done, total=duration_s, at=clock(done))

    def end(self) -> None:
        """Show that the file is done."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def failed(self, message: str, trace: str | None) -> None:
        """Show that a file failed, for this reason; the next one begins."""
        self.end()
        if trace is not None:
            self._console.print(trace, markup=False, soft_wrap=True)
        self._console.print(f"[red]error:[/red] {escape(one_line(message))}", soft_wrap=True)

    def note(self, message: str) -> None:
        """Something about the file at hand that a person should know."""
        self._console.print(f"[yellow]note:[/yellow] {escape(one_line(message))}", soft_wrap=True)


def clock(seconds: float) -> str:
    """h:mm:ss or m:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
