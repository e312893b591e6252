"""Ctrl-C arrives, wherever Python happens to be."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sottovoce.audio.sources import CheckedFile
from sottovoce.cli.interrupt import Interrupts


@pytest.fixture(autouse=True)
def as_at_a_terminal() -> Iterator[None]:
    """SIGINT as Python handles it, even where the tests run in the background and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
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
    time.sleep(5)


def test_an_interrupt_is_raised_where_it_falls() -> None:
    with Interrupts().handled(), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_callback_of_libav_ends_first() -> None:
    """libav takes an exception in `read` for a damaged file, and goes on."""
    file = CheckedFile(InterruptedFile(b"abcd"), "name")
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


def test_a_swallowed_interrupt_comes_again() -> None:
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
