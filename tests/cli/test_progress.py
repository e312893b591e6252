"""Whatever happens to one file, the others are done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sottovoce.cli.invocation import Invocation
from sottovoce.cli.progress import for_each_file
from sottovoce.errors import AudioError, OutputError, is_out_of_memory

LACKS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
]


def failing(error: Exception, done: list[str]) -> Callable[[str], None]:
    def work(name: str) -> None:
        if name == "bad":
            raise error
        done.append(name)

    return work


def code_of(error: Exception, files: list[str], done: list[str]) -> int:
    return for_each_file(files, failing(error, done), invocation=Invocation(), advice="--dtype int8")


OTHERS = [AudioError("bad: no sound"), RuntimeError("shape mismatch"), KeyError("x"), ZeroDivisionError()]


@pytest.mark.parametrize("error", [*LACKS, *OTHERS], ids=lambda error: repr(error)[:30])
def test_one_file_fails_in_one_line_and_the_next_is_done(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    assert code_of(error, ["a", "bad", "b"], done) == 1
    assert done == ["a", "b"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "bad" in line
    assert ("--dtype int8" in line) == is_out_of_memory(error)
    assert code_of(error, ["bad"], done) == 2


def test_nothing_more_is_done_where_nothing_can_be_written() -> None:
    done: list[str] = []
    with pytest.raises(OutputError):
        code_of(OutputError("standard output: cannot be written"), ["a", "bad", "b"], done)
    assert done == ["a"]


def test_a_name_with_line_breaks_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(AudioError("a\nb\x1b[31m: no sound"), ["bad"], []) == 2
    assert capsys.readouterr().err == "error: a\\nb\\x1b[31m: no sound\n"
