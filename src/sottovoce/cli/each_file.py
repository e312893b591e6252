"""Several files in one call: whatever happens to one, the others are done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from sottovoce.cli.call import Call
from sottovoce.cli.progress_bar import Progress
from sottovoce.errors import OutputError, SottovoceError

OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
"""How torch's allocators say it, in RuntimeErrors without a kind of their own."""


def each_file(
    files: Sequence[str],
    work: Callable[[str], None],
    *,
    progress: Progress,
    call: Call,
    advice: str,
    n_refused: int = 0,
    n_skipped: int = 0,
) -> int:
    """Do the work on every file; a failure is one line. Return the exit code of the call.

    advice: what to try against a lack of memory. n_refused, n_skipped: inputs of the call that are not among
    the files, since they cannot be read, or since nothing is left to do for them.
    Raises: OutputError: where nothing can be written, the other files cannot succeed either.
    """
    n_failed = 0
    with progress:
        for name in files:
            progress.begin(name)
            try:
                work(name)
            except OutputError:
                raise
            except (SottovoceError, MemoryError, RuntimeError) as error:
                progress.failed(failure_line(error, name, advice), call.trace())
                n_failed += 1
                free_memory()
            progress.end()
    return exit_code(n_failed + n_refused, len(files) + n_refused + n_skipped)


def exit_code(n_failed: int, n_inputs: int) -> int:
    """Give the exit code of a call with so many inputs, of which so many failed."""
    if not n_failed:
        return 0
    return 2 if n_failed == n_inputs else 1


def failure_line(error: Exception, name: str, advice: str) -> str:
    """Write the line for a failure that people can do something about.

    Raises: the error itself when it is none: a fault of the program shows its traceback.
    """
    if is_out_of_memory(error):
        return f"input '{name}': memory ran out; try {advice}"
    if isinstance(error, SottovoceError):
        return str(error)
    raise error


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out, on the processor or a device."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY)


def free_memory() -> None:
    """Give back what a device keeps of a file that failed, for the next one."""
    torch = sys.modules.get("torch")  # not imported yet means that nothing was allocated
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
