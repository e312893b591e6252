"""State of one command-line call: verbosity, errors as one line, and interrupts.

Python drops a KeyboardInterrupt inside destructors and C callbacks, such as libav's, which read files. Such
an interrupt is raised again, as the recording would look complete.
"""

from __future__ import annotations

import _thread
import logging
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import click

SWALLOWED_S = 3.0
"""Delay after which an interrupt without effect is raised again."""
FILES = "sottovoce.audio.container"
"""The module that libav calls."""
CALLBACKS = frozenset({"read", "seek", "tell", "seekable", "readable"})
NAMES = re.compile(r"(?<![\w./'-])[a-z]+_[a-z_]+(?![\w./'-])")
"""Words of messages that may be names of options, and no part of a path."""
WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}


class Interrupts:
    """Raises the signals as KeyboardInterrupt, and remembers a dropped one."""

    def __init__(self) -> None:
        self._pending: signal.Signals | None = None
        self._last = signal.SIGINT
        self._is_deferring = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals within the block, unless ignored or handled otherwise."""
        is_main = threading.current_thread() is threading.main_thread()
        usual = (signal.default_int_handler, signal.SIG_DFL)
        before = {
            number: handler
            for number in signal.Signals
            if is_main and number.name in WORDS and (handler := signal.getsignal(number)) in usual
        }
        try:
            for number in before:
                signal.signal(number, self._handle)
            yield
        finally:
            self.take()
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay an interrupt until the block ends; a second one is immediate."""
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False
        self.check()

    def check(self) -> None:
        """Raise a pending interrupt."""
        if self._pending is not None:
            raise KeyboardInterrupt

    def take(self) -> None:
        self._pending = None

    @property
    def word(self) -> str:
        return WORDS[self._last.name]

    @property
    def exit_code(self) -> int:
        """As in shells."""
        return 128 + self._last

    @property
    def is_polite_end(self) -> bool:
        return self._last is not signal.SIGINT

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_waiting = self._is_deferring and self._pending is None
        self._pending = self._last = signal.Signals(number)
        if is_waiting:
            return
        is_dropped = drops_exceptions(frame)
        # An exception that is dropped where it is raised is raised again soon.
        again = threading.Timer(0.01 if is_dropped else SWALLOWED_S, self._again)
        again.daemon = True
        again.start()
        if not is_dropped:
            raise KeyboardInterrupt

    def _again(self) -> None:
        """Raise an interrupt without effect again, waking a blocked call."""
        if self._pending is None:
            return
        if sys.platform == "win32":
            _thread.interrupt_main(self._pending)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, self._pending)


def drops_exceptions(frame: FrameType | None) -> bool:
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if name == "__del__" or (module == FILES and name in CALLBACKS):
            return True
        frame = frame.f_back
    return False


class LogLines(logging.Handler):
    """Writes to the standard error of the moment: a progress bar replaces it to write above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


class LogFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return one_line(super().formatMessage(record))


@dataclass(slots=True)
class Invocation:
    """debug: show tracebacks and library warnings. verbosity: number of `-v`. has_failed: an input failed.
    flags: of the command, by the names of options in the library.
    """

    debug: bool = False
    verbosity: int = 0
    has_failed: bool = False
    flags: dict[str, str] = field(default_factory=dict)
    interrupts: Interrupts = field(default_factory=Interrupts)

    def begin(self) -> None:
        warnings.simplefilter("ignore")
        handler = LogLines()
        handler.setFormatter(LogFormatter("%(levelname)s %(message)s"))
        logging.basicConfig(handlers=[handler])
        logging.getLogger().setLevel(logging.WARNING)

    def line_of(self, error: object) -> str:
        """Return the message of an error, with flags in place of names such as `input_format`."""
        message = str(error)
        if message.startswith("--"):  # of the command: its names are values
            return message
        return NAMES.sub(lambda name: self.flags.get(name[0], name[0]), message)

    def trace(self) -> str | None:
        return traceback.format_exc() if self.debug else None


def invocation_of(context: click.Context) -> Invocation:
    invocation = context.find_object(Invocation)
    assert invocation is not None, "the command line is run by sottovoce.cli.main.run"
    return invocation


def _verbose(context: click.Context, _: click.Parameter, value: int) -> None:
    if value:
        invocation = invocation_of(context)
        invocation.verbosity += value
        logging.getLogger().setLevel(logging.WARNING - 10 * min(invocation.verbosity, 2))


def _debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        invocation_of(context).debug = True
        warnings.simplefilter("default")


def with_common_options(command: click.Command) -> click.Command:
    if isinstance(command, click.Group):
        for child in command.commands.values():
            with_common_options(child)
    if all(param.name != "verbose" for param in command.params):
        command.params += [
            click.Option(
                ["-v", "--verbose"],
                count=True,
                expose_value=False,
                callback=_verbose,
                help="Log more on standard error; twice for everything.",
            ),
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                callback=_debug,
                help="Show the traceback of errors.",
            ),
        ]
    return command


def one_line(message: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)


def say_error(message: str) -> None:
    is_plain = os.environ.get("NO_COLOR") or not sys.stderr.isatty()
    say(f"{'error:' if is_plain else click.style('error:', fg='red')} {one_line(message)}")


def say(text: str) -> None:
    """Write to the standard error of the moment, above live text; click would write into the live text."""
    print(text, file=sys.stderr)
