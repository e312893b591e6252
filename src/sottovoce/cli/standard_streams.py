"""Standard input, output and error that never surprise: closed, full, or in an old encoding.

Files and pipes get UTF-8, as documents are written everywhere, whatever the locale says. A terminal gets its
own encoding, and what it cannot show as backslash escapes.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

import click

from sottovoce.errors import OutputError, cause_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def prepare_standard_streams() -> None:
    """Make the three usable, for a process that is ours alone."""
    sys.stdin = sys.stdin or _stand_in(0, os.O_WRONLY, "r")
    sys.stdout = _rewrapped(sys.stdout or _stand_in(1, os.O_RDONLY, "w"), StandardOutput)
    sys.stderr = _rewrapped(sys.stderr or _stand_in(2, os.O_WRONLY, "w"), StandardError)


class StandardOutput(io.TextIOWrapper):
    """Standard output; what cannot be written is one error that names it.

    A reader that went away (`| head`) has what it wanted: the call ends there, without an error.
    """

    def write(self, text: str, /) -> int:
        if text != "":  # click writes nothing to find out what a stream takes, and drops its errors
            with self.failing_once():
                super().write(text)
        return len(text)

    def flush(self) -> None:
        with self.failing_once():
            super().flush()

    @property
    def buffer(self) -> StandardBytes:  # type: ignore[override]
        """What takes bytes, with the same errors."""
        return StandardBytes(self, super().buffer)

    @contextmanager
    def failing_once(self) -> Iterator[None]:
        """Drop what is left after the first fault. Raises: OutputError; Exit where the reader went away."""
        try:
            yield
        except OSError as error:
            discard(self)  # what is still held would fail again when Python ends
            if isinstance(error, BrokenPipeError):
                raise click.exceptions.Exit(0) from None
            raise OutputError(f"standard output: cannot be written ({cause_of(error)})") from error


class _Bytes(Protocol):
    """What is below a stream of text."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class StandardBytes(io.BufferedIOBase):
    """Standard output for bytes: documents that are no text."""

    def __init__(self, stream: StandardOutput, below: _Bytes) -> None:
        self._stream = stream
        self._below = below

    def write(self, data: ReadableBuffer, /) -> int:
        with self._stream.failing_once():
            self._below.write(bytes(data))
            self._below.flush()
        return len(memoryview(data))

    def flush(self) -> None:
        with self._stream.failing_once():
            self._below.flush()

    def writable(self) -> bool:
        return True


class StandardError(io.TextIOWrapper):
    """Standard error; there is nobody left to tell when it cannot be written."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def discard(stream: TextIO) -> None:
    """Send the rest of a stream nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _stand_in(descriptor: int, flags: int, mode: Literal["r", "w"]) -> TextIO:
    """Something in the place of a stream that is closed, so that no file that is opened takes its number.

    It is open the wrong way round: reading from it or writing to it fails as it would on the closed one.
    Source: `stdopen` of GNU coreutils.
    """
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    return io.TextIOWrapper(open(descriptor, f"{mode}b", closefd=False))


def _rewrapped(stream: TextIO, kind: type[io.TextIOWrapper]) -> TextIO:
    """The same stream with other manners; left alone where it has no bytes below (tests, notebooks)."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    line_buffering, write_through = stream.line_buffering, stream.write_through
    encoding = stream.encoding if stream.isatty() else "utf-8"
    return kind(
        stream.detach(),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=line_buffering,
        write_through=write_through,
    )
