"""Ctrl-C and polite ends arrive wherever Python is; streams may be closed, full or of any encoding."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sottovoce.audio.container import MediaFile
from sottovoce.cli.invocation import Interrupts

POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def as_at_a_terminal() -> Iterator[None]:
    """SIGINT as Python handles it, even where the tests run in the background and it is ignored."""
    before = {number: signal.getsignal(number) for number in POLITE}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in POLITE[1:]:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)
    for _ in range(100):
        time.sleep(0)  # handlers run between bytecodes


class InterruptedFile(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        interrupt()
        return super().read(size)


class Destroyed:
    def __init__(self) -> None:
        self.reached: list[bool] = []

    def __del__(self) -> None:
        interrupt()
        self.reached.append(True)


def wait() -> None:
    begun = time.monotonic()
    try:
        time.sleep(5)
    finally:
        assert time.monotonic() - begun < 2, "what waits in the system was not woken"


def test_an_interrupt_is_raised_where_it_falls() -> None:
    with Interrupts().handled(), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_callback_of_libav_ends_first() -> None:
    """libav takes an exception in `read` for a damaged file, and goes on."""
    file = MediaFile(InterruptedFile(b"abcd"), "name")
    with Interrupts().handled():
        assert file.read(4) == b"abcd"
        with pytest.raises(KeyboardInterrupt):
            wait()


def test_a_destructor_ends_first() -> None:
    """Python ignores exceptions in destructors."""
    destroyed = Destroyed()
    reached = destroyed.reached
    with Interrupts().handled():
        del destroyed
        assert reached == [True]
        with pytest.raises(KeyboardInterrupt):
            wait()


def test_a_swallowed_interrupt_is_remembered_until_it_is_taken() -> None:
    interrupts = Interrupts()
    with interrupts.handled():
        interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.take()
        interrupts.check()


def test_a_swallowed_interrupt_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.cli.invocation.SWALLOWED_S", 0.1)
    with Interrupts().handled():
        with suppress(KeyboardInterrupt):
            interrupt()
        with pytest.raises(KeyboardInterrupt):
            wait()


def test_what_others_handle_is_left_to_them() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts().handled():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts().handled():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "hung up"),
    ],
)
def test_every_polite_end_tidies_up_like_ctrl_c(number: signal.Signals, code: int, word: str) -> None:
    interrupts = Interrupts()
    with interrupts.handled(), pytest.raises(KeyboardInterrupt):
        interrupt(number)
    assert (interrupts.exit_code, interrupts.word) == (code, word)
    assert interrupts.is_polite_end == (number is not signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts().handled():
        interrupt(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            interrupt(signal.SIGTERM)


def work(interrupts: Interrupts, done: list[str], *numbers: signal.Signals) -> None:
    with interrupts.deferred():
        for number in numbers:
            interrupt(number)
        done.append("done")


def test_what_must_end_ends_first_unless_asked_twice() -> None:
    interrupts = Interrupts()
    done: list[str] = []
    with interrupts.handled():
        with pytest.raises(KeyboardInterrupt):
            work(interrupts, done, signal.SIGTERM)
        assert done == ["done"]
        interrupts.take()
        work(interrupts, done)
        assert done == ["done", "done"]
        with pytest.raises(KeyboardInterrupt):
            work(interrupts, done, signal.SIGINT, signal.SIGINT)
        assert done == ["done", "done"]


CLIP = Path(__file__).parents[2] / "examples" / "clips" / "zh.flac"
SAY = """
import sys
from sottovoce.cli.main import prepare_standard_streams
prepare_standard_streams()
sys.stdout.write("Żółć 你好 \\U0001f600 \\udcff\\n")
sys.stdout.flush()
"""
HELP = [sys.executable, "-m", "sottovoce", "--help"]


def shell(command: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of shell with arguments "$@"; more: environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        ["bash", "-c", command, "bash", *arguments], capture_output=True, check=False, env=environment
    )


@pytest.mark.skipif(os.name != "posix", reason="a process ends otherwise there")
def test_an_interrupt_of_the_imports_is_no_traceback(tmp_path: Path) -> None:
    slow = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
    (tmp_path / "click.py").write_text(slow)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    result = subprocess.run(HELP, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_pipe_gets_utf8_whatever_the_locale_says(encoding: str) -> None:
    result = shell('"$@"', sys.executable, "-c", SAY, PYTHONIOENCODING=encoding)
    assert result.stdout.decode("utf-8") == "Żółć 你好 \U0001f600 \\udcff\n", result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("output", [">&-", ">/dev/full"])
def test_what_cannot_be_written_is_one_line(output: str, unbuffered: str) -> None:
    if output == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    result = shell(f'"$@" {output}', *HELP, PYTHONUNBUFFERED=unbuffered)
    assert result.returncode == 2
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith("error: standard output: cannot be written (")


def test_a_reader_that_goes_away_is_no_error() -> None:
    result = shell('"$@" | true; echo ${PIPESTATUS[0]}', *HELP)
    assert result.stdout.strip() == b"0"
    assert result.stderr == b""


@pytest.mark.parametrize(
    "words", ["convert {broken} {whole} -f txt -o -", "transcribe {broken} {clip} --dry-run"]
)
def test_a_reader_that_goes_away_hides_no_failure(words: str, tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken.srt", tmp_path / "whole.srt"
    broken.write_text("nothing")
    whole.write_text("1\n00:00:00,000 --> 00:00:01,000\nWir\n")
    names = words.format(broken=broken, whole=whole, clip=CLIP).split()
    result = shell('"$@" | true; echo ${PIPESTATUS[0]}', sys.executable, "-m", "sottovoce", *names)
    assert result.stdout.strip() == b"1"
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith("error: ")
    assert str(broken) in line


def test_errors_need_nobody_to_hear_them() -> None:
    for output in ("2>&-", "2>/dev/full" if Path("/dev/full").exists() else "2>/dev/null"):
        result = shell(f'"$@" {output}', sys.executable, "-m", "sottovoce", "transcrib")
        assert (result.returncode, result.stdout, result.stderr) == (2, b"", b"")


@pytest.mark.long
def test_documents_in_files_need_no_standard_output(tmp_path: Path) -> None:
    """A closed descriptor is the next that is opened: no recording may become standard output."""
    command = [sys.executable, "-m", "sottovoce", "transcribe", str(CLIP), "-m", "nano", "-l", "zh"]
    result = shell('"$@" >&- 2>&- <&-', *command, "-o", str(tmp_path))
    assert result.returncode == 0
    assert "公园" in (tmp_path / "zh.txt").read_text(encoding="utf-8")
